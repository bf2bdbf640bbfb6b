"""Translation of operators of which one operand is an amount.

Kubernetes compares numbers of different types by ``<``, ``<=``, ``>`` and ``>=``, but not by ``==``
and ``in``, and has no arithmetic on mixed types. There, integers are translated to doubles.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tensorfusion_dra.core.cel import dialect
from tensorfusion_dra.core.cel.dialect import Kind
from tensorfusion_dra.core.cel.edits import Edits
from tensorfusion_dra.core.cel.syntax import Literal, Node, Unary
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import QuantityError

_NUMBERS = (Kind.INT, Kind.DOUBLE, Kind.NUMBER)


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand of an operator, with its kind."""

    node: Node
    kind: Kind


def ordered(edits: Edits, operator: str, left: Operand, right: Operand) -> None:
    """Translate ``left < right``, or ``<=``, ``>``, ``>=``."""
    for side, other in ((left, right), (right, left)):
        _refuse_quantity(edits, operator, side)
        if side.kind is not Kind.AMOUNT:
            continue
        if isinstance(other.node, Literal) and other.kind is Kind.STRING:
            _amount_literal(edits, other.node)
        if other.kind is not Kind.STRING or isinstance(other.node, Literal):
            number(edits, side)


def equal(edits: Edits, operator: str, left: Operand, right: Operand) -> None:
    """Translate ``left == right`` or ``left != right``."""
    for side, other in ((left, right), (right, left)):
        if other.kind not in (Kind.QUANTITY, Kind.UNKNOWN):
            _refuse_quantity(edits, operator, side)
        if side.kind is Kind.VERSION and other.kind is Kind.STRING:
            text = edits.text(other.node)
            edits.refuse(
                f"found a version compared with a string, expected semver({text})", other.node.start
            )
    alike(edits, (left, right))


def contained(edits: Edits, left: Operand, items: Sequence[Operand]) -> None:
    """Translate ``left in [items]``."""
    for item in items:
        if item.kind not in (Kind.QUANTITY, Kind.UNKNOWN):
            _refuse_quantity(edits, "in", left)
    alike(edits, (left, *items))


def calculated(edits: Edits, operator: str, left: Operand, right: Operand) -> Kind:
    """Translate arithmetic such as ``left + right``; return the kind of the result."""
    for side in (left, right):
        _refuse_quantity(edits, operator, side)
    kinds = {left.kind, right.kind}
    if operator == "+" and Kind.STRING in kinds:
        return Kind.STRING
    if kinds == {Kind.INT}:
        return Kind.INT
    if Kind.AMOUNT in kinds or Kind.NUMBER in kinds:
        for side in (left, right):
            _double(edits, side)
        return Kind.NUMBER
    return Kind.UNKNOWN


def negated(edits: Edits, operand: Operand) -> Kind:
    """Translate ``-operand``; return the kind of the result."""
    _refuse_quantity(edits, "-", operand)
    if operand.kind is not Kind.AMOUNT:
        return operand.kind
    number(edits, operand)
    return Kind.NUMBER


def alike(edits: Edits, operands: Sequence[Operand]) -> Kind:
    """Translate values that must be of one kind; return that kind."""
    kinds = {operand.kind for operand in operands}
    if Kind.NUMBER in kinds or (Kind.AMOUNT in kinds and not kinds.isdisjoint(_NUMBERS)):
        for operand in operands:
            _double(edits, operand)
        return Kind.NUMBER
    return kinds.pop() if len(kinds) == 1 else Kind.UNKNOWN


def number(edits: Edits, operand: Operand) -> None:
    """Translate an amount to a number."""
    edits.wrap(operand.node, "quantity(", ").asApproximateFloat()")


def _double(edits: Edits, operand: Operand) -> None:
    node = operand.node
    if operand.kind is Kind.AMOUNT:
        number(edits, operand)
    elif operand.kind is not Kind.INT:
        return
    elif isinstance(node, Literal):
        edits.replace(node.token.start, node.token.end, f"{node.token.value!r}.0")
    elif isinstance(node, Unary):
        _double(edits, Operand(node.operand, Kind.INT))
    else:
        edits.wrap(node, "double(", ")")


def _amount_literal(edits: Edits, node: Literal) -> None:
    try:
        quantity.parse(node.token.value)
    except QuantityError as error:
        edits.refuse(str(error), node.token.start)
    number(edits, Operand(node, Kind.AMOUNT))


def _refuse_quantity(edits: Edits, operator: str, side: Operand) -> None:
    if side.kind is Kind.QUANTITY:
        edits.refuse(
            f"found a Quantity as operand of {operator}, "
            f"expected {edits.text(side.node)}.{dialect.TO_NUMBER}()",
            side.node.start,
        )
