"""What the API server would say to a selector, as far as it can be known here."""

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
"""Functions of Kubernetes that the library here does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check of an expression.

    Attributes:
        is_ok: None if it was not made, or not to its end.
    """

    check: str
    is_ok: bool | None
    text: str


def findings(expression: str, *, as_is: bool) -> list[Finding]:
    """All checks of an expression; those after the first that fails at reading it are left out.

    Args:
        as_is: An expression in the guide's dialect is checked as it is, and not as translated.
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
        text = "it is; Kubernetes takes it only as translated"
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
    """What is known of types without a CEL library, and with it the rest."""
    try:
        type_check.check(expression)
    except CelError as error:
        return [Finding(check="types", is_ok=False, text=str(error))]
    try:
        from tensorfusion_dra.simulator import cel  # noqa: PLC0415 - the extra 'cel'
    except ImportError:
        text = (
            "ok as far as they are known here; for all of them install the extra 'cel' "
            "(pip install 'tensorfusion-dra[cel]')"
        )
        return [Finding(check="types", is_ok=None, text=text)]
    try:
        cel.selector(expression)
    except cel.CelCompileError as error:
        reasons = _PLACED.findall(str(error)) or [str(error)]
        return [_type_error(reason) for reason in reasons]
    return [Finding(check="types", is_ok=True, text="ok")]


def _type_error(reason: str) -> Finding:
    undeclared = _UNDECLARED.fullmatch(reason)
    if undeclared and undeclared[1].partition(".")[0] in _NOT_COVERED:
        text = f"not checked: {undeclared[1]}, which Kubernetes has and the library here has not"
        return Finding(check="types", is_ok=None, text=text)
    return Finding(check="types", is_ok=False, text=reason)
