"""Checks of a selector that the API server would make, as far as they can be made locally."""

from dataclasses import dataclass

from tensorfusion_dra.core.cel import syntax, translate
from tensorfusion_dra.core.cel.syntax import CelError
from tensorfusion_dra.core.cel.translate import MAX_EXPRESSION_BYTES


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
        syntax.parse(expression)
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
    return [*found, *by_library(checked)]


def by_library(expression: str) -> list[Finding]:
    """Check what needs the CEL library: the types, and the least that the expression costs."""
    try:
        from tensorfusion_dra.scheduling import cel_evaluation  # noqa: PLC0415 - the extra 'cel'
    except ImportError:
        text = (
            "not checked without a CEL library; install the extra 'cel' "
            "(pip install 'tensorfusion-dra[cel]', in a checkout pip install '.[cel]')"
        )
        return [Finding(check="types", is_ok=None, text=text)]
    least, most = cel_evaluation.least_cost(expression), cel_evaluation.MAX_COST
    text = f"at least {least} of at most {most} units"
    found = [Finding(check="cost", is_ok=least <= most, text=text)]
    errors = cel_evaluation.type_errors(expression)
    missing = cel_evaluation.not_covered(errors)
    if missing is not None:
        text = f"not checked: Kubernetes has {missing}, the local CEL library does not"
        return [*found, Finding(check="types", is_ok=None, text=text)]
    types = [Finding(check="types", is_ok=False, text=error) for error in errors]
    return [*found, *(types or [Finding(check="types", is_ok=True, text="ok")])]
