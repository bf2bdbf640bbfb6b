"""The labels of a PromQL query's result, computed from its syntax tree.

Prometheus answers a query that names an unknown metric or label: with nothing, or with a sum over
more than was meant. Here both are errors, and so is a match of two vectors that may have several
series for one label set, which Prometheus finds only when it happens.
"""

from collections.abc import Mapping
from typing import Final, TypeAlias

from promql_parser import (
    AggModifierType,
    AggregateExpr,
    BinaryExpr,
    BinModifier,
    Call,
    Expr,
    LabelModifierType,
    MatchOp,
    MatrixSelector,
    NumberLiteral,
    ParenExpr,
    StringLiteral,
    SubqueryExpr,
    UnaryExpr,
    VectorMatchCardinality,
    VectorSelector,
    parse,
)

Labels: TypeAlias = frozenset[str]

Known: TypeAlias = Mapping[str, Labels]
"""The labels of each metric, those of the scrape's target among them."""

_ABSENT: Final = frozenset({"absent", "absent_over_time"})
_SCALARS: Final = frozenset({"scalar", "time"})
_KEEP_LABELS: Final = frozenset({"topk", "bottomk"})


class QueryError(Exception):
    """The query cannot be parsed, or names what does not exist."""


def labels(query: str, known: Known) -> Labels:
    """Return the labels of the result.

    Raises:
        QueryError: The query has a syntax error, an unknown metric or label, or an ambiguous match.
    """
    try:
        return _labels(parse(query), known) or frozenset()
    except (QueryError, ValueError) as error:
        raise QueryError(f"{query}: {error}") from error


def _labels(expr: Expr, known: Known) -> Labels | None:
    """Return the labels of a vector; None for a scalar or a string."""
    match expr:
        case NumberLiteral() | StringLiteral():
            return None
        case ParenExpr() | SubqueryExpr() | UnaryExpr():
            return _labels(expr.expr, known)
        case MatrixSelector(vector_selector=selector) | (VectorSelector() as selector):
            return _selected(selector, known)
        case AggregateExpr():
            return _aggregated(expr, known)
        case Call():
            return _called(expr, known)
        case BinaryExpr():
            return _combined(expr, known)
    raise QueryError(f"{type(expr).__name__}: not known here")


def _selected(selector: VectorSelector, known: Known) -> Labels:
    name = selector.name
    if name is None or name not in known:
        raise QueryError(f"{name}: no such metric")
    _expect({matcher.name for matcher in selector.matchers.matchers}, known[name], name)
    return known[name]


def _aggregated(expr: AggregateExpr, known: Known) -> Labels:
    operand = _labels(expr.expr, known) or frozenset()
    named = set(expr.modifier.labels) if expr.modifier else set()
    _expect(named, operand, f"{expr.op} of {expr.expr}")
    if str(expr.op) in _KEEP_LABELS:
        return operand
    if expr.modifier and expr.modifier.type == AggModifierType.Without:
        return operand - named
    return frozenset(named)


def _called(call: Call, known: Known) -> Labels | None:
    name = call.func.name
    if name in _ABSENT:
        return _labels_of_absent(call, known)
    operands = [found for each in call.args if (found := _labels(each, known)) is not None]
    if name in _SCALARS:
        return None
    if not operands:  # vector(1)
        return frozenset()
    texts = [each.val for each in call.args if isinstance(each, StringLiteral)]
    (operand,) = operands
    if name == "label_replace":
        _expect({texts[2]}, operand, name)
        return operand | {texts[0]}
    if name == "histogram_quantile":
        _expect({"le"}, operand, name)
        return operand - {"le"}
    return operand


def _labels_of_absent(call: Call, known: Known) -> Labels:
    (argument,) = call.args
    _labels(argument, known)
    selector = argument.vector_selector if isinstance(argument, MatrixSelector) else argument
    if not isinstance(selector, VectorSelector):
        return frozenset()
    return frozenset(
        matcher.name for matcher in selector.matchers.matchers if matcher.op == MatchOp.Equal
    )


def _combined(expr: BinaryExpr, known: Known) -> Labels | None:
    left, right = _labels(expr.lhs, known), _labels(expr.rhs, known)
    if left is None or right is None:
        return left if right is None else right
    modifier = expr.modifier
    matched = _matched(modifier, left, right)
    if str(expr.op) == "or":
        return left | right
    card = modifier.card if modifier else None
    if card == VectorMatchCardinality.ManyToMany:  # and, unless
        return left
    many_left = card == VectorMatchCardinality.ManyToOne
    many_right = card == VectorMatchCardinality.OneToMany
    group = frozenset((modifier.group_labels if modifier else None) or ())
    _expect(group, left if many_right else right, "group_left or group_right")
    for side, is_many in ((left, many_left), (right, many_right)):
        if not is_many and (several := side - matched - group):
            raise QueryError(
                f"{expr}: found {sorted(several)} beside the labels {sorted(matched)} that are "
                "matched, so there may be several series for one match; expected an aggregation"
            )
    if many_left or many_right:
        return (left if many_left else right) | group
    return matched


def _matched(modifier: BinModifier | None, left: Labels, right: Labels) -> Labels:
    """Return the labels by which the series of two vectors find each other."""
    matching = modifier.matching if modifier else None
    if matching is None:
        if left != right:
            raise QueryError(f"found labels {sorted(left)} and {sorted(right)}, expected on()")
        return left
    named = frozenset(matching.labels)
    if matching.type == LabelModifierType.Include:
        for side in (left, right):
            _expect(named, side, "on()")
        return named
    return left - named


def _expect(named: set[str] | Labels, found: Labels, what: str) -> None:
    if missing := set(named) - found:
        raise QueryError(f"{what}: found labels {sorted(found)}, expected also {sorted(missing)}")
