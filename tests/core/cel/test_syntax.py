"""The parser reads what Google's own reads, and errors give the position."""

import pytest
from cel_expr_python import cel
from cel_expr_python.ext import ext_bindings, ext_optional
from hypothesis import given
from hypothesis import strategies as st

from tensorfusion_dra.core.cel.syntax import MAX_DEPTH, CelError, parse

GOOGLES = cel.NewEnv(extensions=[ext_bindings.ExtBindings(), ext_optional.ExtOptional()])
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
    *("M{}", "a.b.M{f: 1, ?g: 2,}", "[]", "{}", "a.?b", "a.?b()", "''", "b''"),
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
def test_parser_reads_every_expression_that_googles_reads(text: str) -> None:
    try:
        GOOGLES.compile(text, disable_check=True)
    except RuntimeError:
        return
    assert parse(text).start < len(text)


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
        ("a ? b", "1:6: found the end, expected :"),
        ("a.1", "1:2: found .1, expected an operator or the end"),
        ("a.", "1:3: found the end, expected a name"),
        ("a = b", "1:3: found '=', expected a name or an operator"),
        ("a & b", "1:3: found '&', expected a name or an operator"),
        ("'é' + 'open", '1:7: found "\'", expected closing quotes'),
        ('"""open', "1:1: found '\"', expected closing quotes"),
    ],
)
def test_error_gives_position_found_and_expected(text: str, error: str) -> None:
    with pytest.raises(CelError) as raised:
        parse(text)

    assert str(raised.value).startswith(error)


def test_operator_precedence() -> None:
    node = parse("a || b && !c == d + e * f")

    equal = node.parts[1].parts[1]
    assert (node.text, node.parts[1].text, equal.text) == ("||", "&&", "==")
    assert [part.text for part in equal.parts] == ["!", "+"]
    assert equal.parts[1].parts[1].text == "*"


def test_row_of_one_operator_is_one_node_and_parentheses_nest() -> None:
    assert len(parse("a && b && c && d").parts) == 4
    assert len(parse("(a && b) && c").parts) == 2


def test_span_of_a_node_includes_its_parentheses() -> None:
    text = "x && ( (a) ) == 1"

    equal = parse(text).parts[1]

    assert text[equal.start : equal.end] == "( (a) ) == 1"


def test_ternary_is_right_associative() -> None:
    node = parse("a ? b : c ? d : e")

    assert (node.form, node.parts[2].form) == ("ternary", "ternary")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("'a'", "a"),
        ("'a\\x41'", None),
        ("r'\\n'", "\\n"),
        ('"""a\n"b"""', 'a\n"b'),
        ("b'x'", None),
        ("1", None),
    ],
)
def test_value_of_a_string(text: str, value: str | None) -> None:
    assert parse(text).string() == value


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
    assert len(parse(" && ".join(["a"] * 2000)).parts) == 2000
