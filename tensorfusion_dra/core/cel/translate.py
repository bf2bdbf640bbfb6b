"""Translation of the user guide's selectors to Kubernetes' CEL.

- ``device.attributes["model"]`` is looked up under the driver's domain. A key is a name of the
  dialect if it is a C identifier and nothing is looked up in its value: neither ``.field`` nor
  ``[key]`` follows. Any other key is a domain, as in Kubernetes, and stays unchanged.
- ``.AsApproximateFloat64()`` becomes Kubernetes' ``asApproximateFloat``. Amounts that devices
  publish as strings (``node_total_vram``) become quantities where they are compared as numbers.
- A condition on a capacity that only oversubscribing pools have is guarded by ``has()``, so that it
  is false on other devices. Without the guard it would stop the scheduling of the pod. A condition
  is the smallest part between ``&&``, ``||`` and ``!``. Attributes need no guard: every device of
  this driver has every attribute that the dialect knows.

Everything else, whitespace and comments included, stays unchanged.
"""

from typing import Final

from tensorfusion_dra.core.cel import edits, parser, rewriting
from tensorfusion_dra.core.cel.edits import Edit
from tensorfusion_dra.core.cel.errors import CelError

MAX_EXPRESSION_BYTES: Final = 10_240
"""CELSelectorExpressionMaxLength of resource.k8s.io."""


def translate(expression: str) -> str:
    """Translate an expression to Kubernetes' CEL; return it unchanged if it is that already.

    Raises:
        CelError: It is not valid CEL, is too long before or after its translation, or no device
            could evaluate it.
    """
    return edits.applied(expression, changes(expression))


def changes(expression: str) -> tuple[Edit, ...]:
    """Return the edits that `translate` applies, in the order of the expression.

    Raises:
        CelError: As from `translate`.
    """
    _check_length(expression, expression, "")
    found = rewriting.edits(expression, parser.parse(expression))
    _check_length(edits.applied(expression, found), expression, " when translated")
    return found


def _check_length(text: str, expression: str, when: str) -> None:
    size = len(text.encode(errors="surrogatepass"))
    if size > MAX_EXPRESSION_BYTES:
        raise CelError(
            f"found {size} bytes{when}, expected at most {MAX_EXPRESSION_BYTES}",
            expression=expression,
            offset=0,
        )
