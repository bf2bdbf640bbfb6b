"""The parser accepts the same expressions as Google's own, and errors give the position."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfusion_dra.core.cel import syntax
from tensorfusion_dra.core.cel.errors import CelError
from tensorfusion_dra.core.cel.parser import MAX_DEPTH, parse
from tensorfusion_dra.core.cel.syntax import Binary, Literal, Logic, Ternary, Unary
from tensorfusion_dra.scheduling import cel_evaluation

LEAVES = (
    *("a", "b.c", ".a", "a.`x-y`", "true", "null", "1", "-1", "1u", "0x1F", "0XF", "0x1fU"),
    *(
        "9223372036854775807",
        "-9223372036854775808",
        "18446744073709551615u",
        ".5",
        "1.5e-3",
        "1e9",
    ),
    *("9223372036854775808", "18446744073709551616u", "1.", "in", "var", "@", "a.in", "a.var"),
    *("'t'", '"\\n\\"\\x41\\101\\u00e9\\U0001F600"', "r'\\d'", "R'''a'b'''", '"""m\n"x"""'),
    *("b'\\xff\\777'", 'b"x"', "br'''y'''", '"\\q"', '"\\ud800"', "'open", '"""open"', "'a\nb'"),
    *("M{}", "a.b.M{f: 1, ?g: 2,}", "[]", "[,]", "{}", "{,}", "a.?b", "a.?b()", "''", "b''"),
)


def larger(part: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    two = st.tuples(part, part)
    return st.one_of(
        part.map("({})".format),
        part.map("!{}".format),
        part.map("-{}".format),
        two.map(lambda p: "{}.exists(x, {})".format(*p)),
        two.map(lambda p: "[{}, // b\n ?{}]".format(*p)),
        two.map(lambda p: "{{{}: {}}}".format(*p)),
        two.map(lambda p: "f({}).g({})".format(*p)),
        two.map(lambda p: "cel.bind(v, {}, {})".format(*p)),
        two.map(lambda p: "{}[?{}].?h".format(*p)),
        st.tuples(part, part, part).map(lambda p: "{} ? {} : {}".format(*p)),
        st.tuples(
            part,
            st.sampled_from(("&&", "||", "==", "<=", " in ", "+", "-", "*", "%", "&", " ")),
            part,
        ).map("".join),
    )


@given(st.recursive(st.sampled_from(LEAVES), larger, max_leaves=8))
def test_parser_accepts_the_same_expressions_as_googles(text: str) -> None:
    assert is_read(text) == cel_evaluation.is_syntax(text)


def is_read(text: str) -> bool:
    try:
        parse(text)
    except CelError:
        return False
    return True


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "1:1: found the end, expected a value"),
        ("  // nothing", "1:13: found the end, expected a value"),
        ("a ==", "1:5: found the end, expected a value"),
        ("a &&\n  == b", "2:3: found ==, expected a value"),
        ("a b", "1:3: found b, expected an operator or the end"),
        ("(a", "1:3: found the end, expected )"),
        ("a[1", "1:4: found the end, expected ]"),
        ("f(a,)", "1:5: found ), expected a value"),
        ("a ? b", "1:6: found the end, expected :"),
        ("a.1", "1:2: found .1, expected an operator or the end"),
        ("a.", "1:3: found the end, expected a field's name"),
        ("a = b", "1:3: found '=', expected a name, a literal or an operator"),
        ("a & b", "1:3: found '&', expected a name, a literal or an operator"),
        ("'é' + 'open", "1:7: found an unterminated string, expected closing quotes on its line"),
        ('"""open', "1:1: found an unterminated string, expected closing quotes"),
        ("'\\d+'", "1:2: found the escape \\d, expected one of CEL's, such as \\n or \\x41"),
        ("b'\\u0041'", "1:3: found the escape \\u0041, expected one of CEL's"),
        ("for", "1:1: found for, which CEL reserves, expected a name"),
        ("9223372036854775808", "1:1: found 9223372036854775808, expected at most"),
        ("-!a", "1:2: found !, expected a value after -"),
        ("[1].all(1, true)", "1:9: all: found 1, expected a name to bind"),
        ("{1: 2, 3}", "1:9: found }, expected :"),
        ("'\ud800'", "1:1: found an unpaired surrogate, expected text that UTF-8 can encode"),
    ],
)
def test_error_gives_position_found_and_expected(text: str, error: str) -> None:
    with pytest.raises(CelError) as raised:
        parse(text)

    assert str(raised.value).startswith(error)


def test_operator_precedence() -> None:
    node = parse("a || b && !c == d + e * f")

    assert isinstance(node, Logic)
    both = node.operands[1]
    assert isinstance(both, Logic)
    equal = both.operands[1]
    assert isinstance(equal, Binary)
    assert isinstance(equal.left, Unary)
    assert isinstance(equal.right, Binary)
    assert (equal.operator.text, equal.right.operator.text) == ("==", "+")


def test_row_of_one_operator_is_one_node_and_parentheses_nest() -> None:
    row, nested = parse("a && b && c && d"), parse("(a && b) && c")

    assert isinstance(row, Logic)
    assert isinstance(nested, Logic)
    assert (len(row.operands), len(nested.operands)) == (4, 2)


def test_span_of_a_node_includes_its_parentheses() -> None:
    text = "x && ( (a) ) == 1"
    node = parse(text)

    assert isinstance(node, Logic)
    equal = node.operands[1]
    assert text[equal.start : equal.end] == "( (a) ) == 1"


def test_ternary_is_right_associative() -> None:
    node = parse("a ? b : c ? d : e")

    assert isinstance(node, Ternary)
    assert isinstance(node.no, Ternary)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("'a\\x41\\101\\u00e9\\U0001F600'", "aAAé😀"),
        ("r'\\n'", "\\n"),
        ('"""a\n"b"""', 'a\n"b'),
        ("b'\\xffé'", b"\xff\xc3\xa9"),
        ("b'\\377'", b"\xff"),
        ("'\\a\\b\\f\\n\\r\\t\\v\\\\\\'\\\"\\`\\?'", "\a\b\f\n\r\t\v\\'\"`?"),
        ("0x1F", 31),
        ("017", 17),
        ("7u", 7),
        ("1.5e2", 150.0),
    ],
)
def test_value_of_a_literal(text: str, value: object) -> None:
    node = parse(text)

    assert isinstance(node, Literal)
    assert node.token.value == value


@pytest.mark.parametrize(
    "part",
    ["({})", "[{}]", "f({})", "!({})", "{{1: {}}}", "a[{}]", "a ? b : {}", "-({})", "x.y({})"],
)
def test_nesting_is_limited(part: str) -> None:
    text = "1"
    for _ in range(MAX_DEPTH - 1):
        text = part.format(text)
    deeper = part.format(part.format(text))

    assert parse(text).end == len(text)
    with pytest.raises(CelError, match="deep"):
        parse(deeper)


def test_long_row_does_not_count_as_nesting() -> None:
    node = parse(" && ".join(["a"] * 2000))

    assert len(list(syntax.children(node))) == 2000
