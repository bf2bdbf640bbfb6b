"""What to do with an expression, as the flags of `cel` say it."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tensorfusion_dra.app import reading
from tensorfusion_dra.app.reading import STDIN
from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import Quantity, QuantityError

_EXIT_CODES: Final = """\
exit codes:
  0  translate: done; check: nothing wrong; explain: a device matches
  1  check: the API server would refuse it; explain: no device matches, or no answer from the server
  2  the expression or a flag cannot be used
  3  check: nothing wrong was found, but without the extra 'cel' types were not checked
"""
_CAPACITIES: Final = (
    names.CAPACITY_TFLOPS,
    names.CAPACITY_VRAM,
    names.CAPACITY_VIRTUAL_TFLOPS,
    names.CAPACITY_VIRTUAL_VRAM,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to do with an expression.

    Attributes:
        action: translate, check or explain.
        form: table or json.
        as_is: The guide's dialect counts as wrong, as an API server sees it (check).
        slices: File with ResourceSlices; None to ask the API server (explain).
        kubeconfig: None for the one that kubectl would take (explain).
        requests: Amounts by capacity that a claim asks for (explain).
    """

    action: str
    expression: str
    form: str
    as_is: bool = False
    slices: str | None = None
    kubeconfig: str | None = None
    requests: Mapping[str, Quantity]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `cel`."""
    parser.epilog = _EXIT_CODES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    translate = actions.add_parser("translate", help="the user guide's CEL as Kubernetes takes it")
    check = actions.add_parser("check", help="whether the API server would take it")
    explain = actions.add_parser("explain", help="which devices it selects, and why no others")
    for action in (translate, check, explain):
        action.add_argument("expression", nargs="?", help=f"the expression; {STDIN} for stdin")
        action.add_argument("-f", dest="file", metavar="FILE", help="read it from a file")
        action.add_argument(
            "-o", dest="form", choices=("table", "json"), default="table", help="how to show it"
        )
    check.add_argument(
        "--as-is",
        action="store_true",
        help="take the user guide's CEL for wrong, as Kubernetes does",
    )
    explain.add_argument(
        "--slices",
        metavar="FILE",
        help="ResourceSlices, as kubectl get resourceslices -o yaml shows them, and ResourceClaims "
        "that take of them; without it, those of the cluster",
    )
    explain.add_argument(
        "--kubeconfig", metavar="FILE", help="of the cluster; without it, the one kubectl takes"
    )
    explain.add_argument(
        "--request",
        action="append",
        default=[],
        metavar="AMOUNTS",
        help="what a claim asks for beside, such as tflops=100,vram=16Gi",
    )


def from_flags(flags: argparse.Namespace) -> Options:
    """The options in the flags of `cel`, checked, with the expression read.

    Raises:
        InputError: There is no expression, or two, or an amount is malformed.
    """
    return Options(
        action=flags.action,
        expression=_expression(flags.expression, flags.file),
        form=flags.form,
        as_is=getattr(flags, "as_is", False),
        slices=getattr(flags, "slices", None),
        kubeconfig=getattr(flags, "kubeconfig", None),
        requests=_requests(getattr(flags, "request", [])),
    )


def _expression(text: str | None, file: str | None) -> str:
    if (text is None) == (file is None):
        found = "none" if text is None else "one, and a file"
        raise InputError(f"expression: found {found}, expected EXPR, -f FILE or {STDIN}")
    if text == STDIN:
        file = STDIN
    # A file ends its last line; the expression does not.
    return reading.read(file).removesuffix("\n") if file is not None else str(text)


def _requests(texts: list[str]) -> dict[str, Quantity]:
    amounts = {}
    for part in (part for text in texts for part in text.split(",")):
        name, _, value = part.partition("=")
        if name not in _CAPACITIES:
            raise InputError(f"request: found {part!r}, expected {'=..., '.join(_CAPACITIES)}=...")
        try:
            amounts[name] = quantity.parse(value)
        except QuantityError as error:
            raise InputError(f"request: {name}: {error}") from error
    return amounts
