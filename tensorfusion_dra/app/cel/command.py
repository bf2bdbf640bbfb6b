"""The verb `cel`: translate, check and explain device selectors."""

import argparse
import sys
from typing import Any, Final

from tensorfusion_dra.app.cel import explain
from tensorfusion_dra.app.shared import kubectl, streams
from tensorfusion_dra.core import names
from tensorfusion_dra.core.cel import dialect, syntax
from tensorfusion_dra.core.cel.syntax import CelError
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import Quantity, QuantityError
from tensorfusion_dra.scheduling import cel_evaluation

_CAPACITIES: Final = (
    names.CAPACITY_TFLOPS,
    names.CAPACITY_VRAM,
    names.CAPACITY_VIRTUAL_TFLOPS,
    names.CAPACITY_VIRTUAL_VRAM,
)


CheckResult = dict[str, Any]
"""A check of an expression, as in the JSON document; `ok` is None if it was not fully made."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `cel`."""
    streams.add_exit_codes(
        parser,
        "translate: done; check: nothing wrong; explain: a device matches",
        "check: the API server would refuse it, a name is unknown, or the types were not fully\n"
        "     checked; explain: no device matches",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    translating = actions.add_parser(
        "translate", help="translate the user guide's CEL for Kubernetes"
    )
    checking = actions.add_parser("check", help="check whether the API server would accept it")
    explaining = actions.add_parser(
        "explain", help="show which devices it selects, and what excludes each other device"
    )
    for action in (translating, checking, explaining):
        action.add_argument(
            "expression", nargs="?", help=f"the expression; {streams.STDIN} for stdin"
        )
        action.add_argument("-f", dest="file", metavar="FILE", help="read it from a file")
        streams.add_form(action)
    checking.add_argument(
        "--as-is",
        action="store_true",
        help="report the user guide's CEL as an error, as Kubernetes does",
    )
    explaining.add_argument(
        "--slices",
        metavar="FILE",
        help="ResourceSlices, as kubectl get resourceslices -o yaml prints them, and the "
        "ResourceClaims allocated from them; by default those of the cluster",
    )
    kubectl.add_flags(explaining)
    explaining.add_argument(
        "--request",
        action="append",
        default=[],
        metavar="AMOUNTS",
        help="capacities that the claim requests as well, such as tflops=100,vram=16Gi",
    )


def run(flags: argparse.Namespace) -> int:
    """Print the answer and return the exit code.

    Raises:
        InputError: The expression or a file cannot be used.
        RetryableError: The API server did not answer.
    """
    expression = _expression(flags.expression, flags.file)
    if flags.action == "translate":
        return _translate(expression, form=flags.form)
    if flags.action == "check":
        return _check(expression, form=flags.form, as_is=flags.as_is)
    requests = _requests(flags.request)
    return explain.run(
        expression,
        form=flags.form,
        slices=flags.slices,
        api=kubectl.api(flags.kubeconfig, flags.context),
        requests=requests,
    )


def _expression(text: str | None, file: str | None) -> str:
    if (text is None) == (file is None):
        found = "none" if text is None else "one, and a file"
        raise InputError(f"expression: found {found}, expected EXPR, -f FILE or {streams.STDIN}")
    if text == streams.STDIN:
        file = streams.STDIN
    # The line break that ends a file is not part of the expression.
    return streams.read(file).removesuffix("\n") if file is not None else str(text)


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


def _translate(expression: str, *, form: str) -> int:
    translated = dialect.translate(expression)
    for finding in _by_library(translated):
        if finding["ok"] is False:
            raise InputError(finding["text"])
    document = {"expression": translated, "changed": translated != expression}
    sys.stdout.write(streams.formatted(form, document, [translated]))
    return 0


def _check(expression: str, *, form: str, as_is: bool) -> int:
    found = _findings(expression, as_is=as_is)
    rows = [("CHECK", "RESULT"), *((each["check"], each["text"]) for each in found)]
    sys.stdout.write(streams.formatted(form, {"checks": found}, streams.table(rows, indent="")))
    return 0 if all(each["ok"] for each in found) else 1


def _findings(expression: str, *, as_is: bool) -> list[CheckResult]:
    """Return the results of all checks; the first that cannot parse or translate is the last.

    Args:
        as_is: Check an expression in the user guide's dialect as it is, not its translation.
    """
    try:
        size = len(expression.encode(errors="surrogatepass"))
        syntax.parse(expression)
        found = [CheckResult(check="syntax", ok=True, text="ok")]
    except CelError as error:
        return [CheckResult(check="syntax", ok=False, text=str(error))]
    try:
        translated = dialect.translate(expression)
    except CelError as error:
        if size <= dialect.MAX_EXPRESSION_BYTES:
            return [*found, CheckResult(check="guide's CEL", ok=False, text=str(error))]
        translated = expression
    is_dialect = translated != expression
    if is_dialect:
        text = "found; Kubernetes accepts only its translation"
        found.append(CheckResult(check="guide's CEL", ok=not as_is, text=text))
    checked = expression if as_is else translated
    size = len(checked.encode(errors="surrogatepass"))
    found.append(
        CheckResult(
            check="length",
            ok=size <= dialect.MAX_EXPRESSION_BYTES,
            text=f"{size} of at most {dialect.MAX_EXPRESSION_BYTES} bytes",
        )
    )
    return [*found, *_by_library(checked), *_unknown_names(checked)]


def _unknown_names(expression: str) -> list[CheckResult]:
    """Warn of names in this driver's domain that only a provider of another package could give."""
    known = {syntax.ATTRIBUTES: dialect.ATTRIBUTES, syntax.CAPACITY: dialect.CAPACITIES}
    return [
        CheckResult(
            check="names",
            ok=None,
            text=f"{names.DRIVER} has no {each.map} {each.name}, unless a package of yours adds "
            f"it; it has {', '.join(known[each.map])}",
        )
        for each in syntax.terms(expression).lookups
        if each.domain == names.DRIVER and each.name not in known[each.map]
    ]


def _by_library(expression: str) -> list[CheckResult]:
    """Check what needs the CEL library: the types."""
    errors = cel_evaluation.type_errors(expression)
    missing = cel_evaluation.not_covered(errors)
    if missing is not None:
        text = f"not checked: Kubernetes has {missing}, the local CEL library does not"
        return [CheckResult(check="types", ok=None, text=text)]
    types = [CheckResult(check="types", ok=False, text=error) for error in errors]
    return types or [CheckResult(check="types", ok=True, text="ok")]
