"""The guide's selectors as Kubernetes takes them.

- ``device.attributes["model"]`` is looked up under the driver's domain. A key is a name of the
  dialect if it is a C identifier with nothing looked up in it: no ``.field`` and no ``[key]``
  follows. All else is a domain of Kubernetes' own and stays.
- ``.AsApproximateFloat64()`` becomes Kubernetes' ``asApproximateFloat``, and amounts that devices
  hold in strings (``node_total_vram``) are read as quantities where they are compared as numbers.
- A condition that names a capacity which only oversubscribing pools have does not hold on other
  devices, where it would otherwise stop the scheduling of the pod. Condition means the smallest
  part between ``&&``, ``||`` and ``!``. Attributes need no such care: every device of this driver
  has every one that the dialect knows.

All else, spaces and comments too, stays as it is.
"""

from typing import Final

from tensorfusion_dra.core.cel import edits, parser, rewriting
from tensorfusion_dra.core.cel.edits import Edit
from tensorfusion_dra.core.cel.errors import CelError

MAX_EXPRESSION_BYTES: Final = 10_240
"""CELSelectorExpressionMaxLength of resource.k8s.io."""


def translate(expression: str) -> str:
    """The expression as Kubernetes takes it; unchanged if it is that already.

    Raises:
        CelError: It is no CEL, too long before or after, or says what no device can answer.
    """
    return edits.applied(expression, changes(expression))


def changes(expression: str) -> tuple[Edit, ...]:
    """What `translate` changes, in the order of the expression.

    Raises:
        CelError: As `translate`.
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
