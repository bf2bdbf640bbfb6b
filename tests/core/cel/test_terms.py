"""Splitting of an expression into terms, with their lookups in a device."""

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.cel.terms import Lookup, Term, terms
from tensorfusion_dra.scheduling import cel_evaluation
from tests.support.selecting import A, C


def leaves(term: Term) -> list[Term]:
    return [leaf for part in term.parts for leaf in leaves(part)] if term.parts else [term]


def test_expression_is_split_at_its_operators() -> None:
    found = terms('a && !(b || c == \n"x && y") && d')

    assert found.operator == "&&"
    assert [part.text for part in found.parts] == ["a", '!(b || c == "x && y")', "d"]
    either = found.parts[1].parts[0]
    assert (found.parts[1].operator, either.operator) == ("!", "||")
    assert [leaf.text for leaf in leaves(either)] == ["b", 'c == "x && y"']


def test_term_can_be_evaluated_alone_even_under_a_binding() -> None:
    text = (
        f'cel.bind(tf, {A}, tf.model == "A100" && cel.bind(n, 8, tf.node_total_gpus >= n || false))'
    )

    found = terms(text)

    assert found.operator == "&&"
    assert [leaf.expression for leaf in leaves(found)] == [
        f'cel.bind(tf, {A}, tf.model == "A100")',
        f"cel.bind(tf, {A}, cel.bind(n, 8, tf.node_total_gpus >= n))",
        f"cel.bind(tf, {A}, cel.bind(n, 8, false))",
    ]
    assert all(cel_evaluation.check_expression(leaf.expression) is None for leaf in leaves(found))


@pytest.mark.parametrize(
    ("text", "lookups"),
    [
        (f'{A}.model == "A"', [("attributes", names.DRIVER, "model")]),
        (f'{A}["model"] == "A"', [("attributes", names.DRIVER, "model")]),
        (f'{A}.?model.orValue("") == "A"', [("attributes", names.DRIVER, "model")]),
        (f'"model" in {A}', [("attributes", names.DRIVER, "model")]),
        (f"has({C}.vram) && {C}.vram.sign() > 0", [("capacity", names.DRIVER, "vram")]),
        (
            f"cel.bind(a, {A}, cel.bind(b, a, a.model == b.qos))",
            [("attributes", names.DRIVER, "model"), ("attributes", names.DRIVER, "qos")],
        ),
        (f"cel.bind(a, {A}, [{{}}].exists(a, a.model == 1))", []),
        ('device.attributes["x.org"].y == 1', [("attributes", "x.org", "y")]),
        ("device.driver == 'x' || a.b.c || device.other['x'].y", []),
        (f"[1].exists(device, {A}.model == 1)", []),
    ],
)
def test_lookups_in_a_device_are_found(text: str, lookups: list[tuple[str, str, str]]) -> None:
    assert terms(text).lookups == tuple(Lookup(*lookup) for lookup in lookups)
