"""Checks of a selector that the API server would make, as far as they can be made locally."""

import math
import re
from dataclasses import dataclass
from typing import Final

from tensorfusion_dra.core.cel import cost, parser, translate, type_check
from tensorfusion_dra.core.cel.errors import CelError
from tensorfusion_dra.core.cel.translate import MAX_EXPRESSION_BYTES

_PLACED: Final = re.compile(r"ERROR: <input>:([0-9]+:[0-9]+: [^\n]*)")
_UNDECLARED: Final = re.compile(r"[0-9:]+ undeclared reference to '([A-Za-z.]+)'.*")
_NOT_COVERED: Final = frozenset(
    {"find", "findAll", "url", "isURL", "ip", "isIP", "cidr", "isCIDR", "sets", "includes"}
)
"""Functions of Kubernetes that the local CEL library lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of one check of an expression.

    Attributes:
        is_ok: None if the check was not made, or only in part.
    """

    check: str
    is_ok: bool | None
    text: str


def findings(expression: str, *, as_is: bool) -> list[Finding]:
    """Return the results of all checks; the first that cannot parse or translate is the last.

    Args:
        as_is: Check an expression in the user guide's dialect as it is, not its translation.
    """
    try:
        size = len(expression.encode(errors="surrogatepass"))
        parser.parse(expression)
        found = [Finding(check="syntax", is_ok=True, text="ok")]
    except CelError as error:
        return [Finding(check="syntax", is_ok=False, text=str(error))]
    try:
        translated = translate.translate(expression)
    except CelError as error:
        if size <= MAX_EXPRESSION_BYTES:
            return [*found, Finding(check="guide's CEL", is_ok=False, text=str(error))]
        translated = expression
    is_dialect = translated != expression
    if is_dialect:
        text = "found; Kubernetes accepts only its translation"
        found.append(Finding(check="guide's CEL", is_ok=not as_is, text=text))
    checked = expression if as_is else translated
    size = len(checked.encode(errors="surrogatepass"))
    found.append(
        Finding(
            check="length",
            is_ok=size <= MAX_EXPRESSION_BYTES,
            text=f"{size} of at most {MAX_EXPRESSION_BYTES} bytes",
        )
    )
    return [*found, _cost(checked), *_types(checked)]


def _cost(expression: str) -> Finding:
    estimate = cost.estimate(parser.parse(expression))
    shown = "without an end" if math.isinf(estimate) else f"{estimate:.0f}"
    return Finding(
        check="cost",
        is_ok=estimate <= cost.MAX_COST,
        text=f"{shown} of at most {cost.MAX_COST} units, estimated",
    )


def _types(expression: str) -> list[Finding]:
    """Check the types that are known without a CEL library, and the rest with it."""
    try:
        type_check.check(expression)
    except CelError as error:
        return [Finding(check="types", is_ok=False, text=str(error))]
    try:
        from tensorfusion_dra.scheduling import cel_evaluation  # noqa: PLC0415 - the extra 'cel'
    except ImportError:
        text = (
            "ok as far as known without a CEL library; for a full check install the extra 'cel' "
            "(pip install 'tensorfusion-dra[cel]', in a checkout pip install '.[cel]')"
        )
        return [Finding(check="types", is_ok=None, text=text)]
    try:
        cel_evaluation.selector(expression)
    except cel_evaluation.CelCompileError as error:
        reasons = _PLACED.findall(str(error)) or [str(error)]
        return [_type_error(reason) for reason in reasons]
    return [Finding(check="types", is_ok=True, text="ok")]


def _type_error(reason: str) -> Finding:
    undeclared = _UNDECLARED.fullmatch(reason)
    if undeclared and undeclared[1].partition(".")[0] in _NOT_COVERED:
        text = f"not checked: Kubernetes has {undeclared[1]}, the local CEL library does not"
        return Finding(check="types", is_ok=None, text=text)
    return Finding(check="types", is_ok=False, text=reason)
