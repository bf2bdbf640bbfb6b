"""The guide's selectors: their syntax, their translation, their terms, and what they select.

Every expression of the user guide is translated, compiled, and evaluated on devices that match and
on devices that do not.
"""

import json
import textwrap
from dataclasses import replace
from typing import Any

import pytest
from cel_expr_python import cel
from cel_expr_python.ext import ext_bindings, ext_optional
from hypothesis import given
from hypothesis import strategies as st

from tensorfusion_dra.core import names
from tensorfusion_dra.core.cel import user_guide
from tensorfusion_dra.core.cel.syntax import MAX_DEPTH, CelError, Lookup, Term, parse, terms
from tensorfusion_dra.core.cel.user_guide import MAX_EXPRESSION_BYTES, translate
from tensorfusion_dra.core.devices.capacity import Oversubscription
from tensorfusion_dra.core.devices.device import Node
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.scheduling import cel_evaluation
from tensorfusion_dra.scheduling.devices import Attribute, PublishedDevice
from tests.support.builders.devices import published_devices
from tests.support.builders.gpus import gpu, gpus
from tests.support.selecting import A, C, as_scheduled


@pytest.mark.parametrize(
    ("text", "translated"),
    [
        ('device.attributes["model"] == "A100"', f'{A}.model == "A100"'),
        ("device.attributes['model'] == r'''A100'''", f"{A}.model == r'''A100'''"),
        (
            '.device.attributes [ "model" ]=="A"//x',
            f'.device.attributes [ "{names.DRIVER}" ].model=="A"//x',
        ),
        ('device.attributes["model"].startsWith("A")', f'{A}.model.startsWith("A")'),
        ('device.attributes["model"].size() == 4', f"{A}.model.size() == 4"),
        ('size(device.attributes["model"]) == 4', f"size({A}.model) == 4"),
        ('device.attributes["model"] in ["A", "B"]', f'{A}.model in ["A", "B"]'),
        ('has(device.attributes["model"])', f"has({A}.model)"),
        (
            'cel.bind(m, device.attributes["model"], m == "A" || m == "B")',
            f'cel.bind(m, {A}.model, m == "A" || m == "B")',
        ),
        (
            '["A100"].exists(m, device.attributes["model"] == m)',
            f'["A100"].exists(m, {A}.model == m)',
        ),
        (
            'device.attributes["driver_version"].isGreaterThan(semver("550.0.0"))',
            f'{A}.driver_version.isGreaterThan(semver("550.0.0"))',
        ),
        (
            'device.capacity["vram"].AsApproximateFloat64() >= 1',
            f"{C}.vram.asApproximateFloat() >= 1",
        ),
        (
            'device.capacity["vram"].compareTo(quantity("16Gi")) >= 0',
            f'{C}.vram.compareTo(quantity("16Gi")) >= 0',
        ),
        ('device.capacity["vram"] == quantity("80Gi")', f'{C}.vram == quantity("80Gi")'),
        (
            'device.capacity["tflops"].sub(12).AsApproximateFloat64() != 300.0',
            f"{C}.tflops.sub(12).asApproximateFloat() != 300.0",
        ),
        ('device.attributes["node_total_vram"] == "80Gi"', f'{A}.node_total_vram == "80Gi"'),
        (
            'device.attributes["node_total_tflops"].AsApproximateFloat64() > 2000',
            f"quantity({A}.node_total_tflops).asApproximateFloat() > 2000",
        ),
        (
            '(true ? device.capacity["tflops"] : quantity("5")).AsApproximateFloat64() >= 5',
            f'(true ? {C}.tflops : quantity("5")).asApproximateFloat() >= 5',
        ),
        (
            '// some\n!(device.attributes["qos"] in\t["low"]) && (true // "a"\n'
            '  || device.capacity["tflops"].AsApproximateFloat64() > '
            'device.capacity["vram"].AsApproximateFloat64() * 2.0)',
            f'// some\n!({A}.qos in\t["low"]) && (true // "a"\n'
            f"  || {C}.tflops.asApproximateFloat() > {C}.vram.asApproximateFloat() * 2.0)",
        ),
        (
            'device.attributes["qos"] == "high" ? device.attributes["node_total_gpus"] > 8.5 : '
            '312 <= device.capacity["tflops"].AsApproximateFloat64()',
            f'{A}.qos == "high" ? {A}.node_total_gpus > 8.5 : '
            f"312 <= {C}.tflops.asApproximateFloat()",
        ),
        ('has(device.capacity["virtual_vram"])', f"has({C}.virtual_vram)"),
        # One part in the dialect, the other not.
        (
            f'{A}.model == "A100" && device.attributes["qos"] == "medium"',
            f'{A}.model == "A100" && {A}.qos == "medium"',
        ),
        (f"{C}.tflops.AsApproximateFloat64() > 5", f"{C}.tflops.asApproximateFloat() > 5"),
    ],
)
def test_guides_form_is_translated_to_kubernetes_cel(text: str, translated: str) -> None:
    device = as_scheduled(published_devices(gpu())[0])

    assert translate(text) == translated
    assert translate(translated) == translated
    assert cel_evaluation.refusal(translated) is None
    cel_evaluation.selector(translated).matches(device)  # raises if anything fails at run time


V = f"has({C}.virtual_vram) && "
W = f"{C}.virtual_vram.asApproximateFloat() > 5"


@pytest.mark.parametrize(
    ("text", "translated"),
    [
        ("{}", V + W),
        ("true && {} && true", f"true && {V}{W} && true"),
        ("false || {}", f"false || ({V}{W})"),
        ("!({})", f"!({V}({W}))"),
        ("{} ? true : false", f"({V}{W}) ? true : false"),
        ("[1].exists(x, {})", f"{V}[1].exists(x, {W})"),
        ("cel.bind(x, 5, false || {})", f"cel.bind(x, 5, false || ({V}{W}))"),
        ("true && (false || {} || {})", f"true && (false || ({V}{W}) || ({V}{W}))"),
        ("{} == ({})", f"{V}{W} == ({W})"),
        (
            'device.attributes["node_total_vram"].AsApproximateFloat64() > 0 == ({})',
            f"{V}quantity({A}.node_total_vram).asApproximateFloat() > 0 == ({W})",
        ),
        ("[1, 2].all(x, x > 0 && {})", f"[1, 2].all(x, x > 0 && {V}{W})"),
        ("cel.bind(x, {}, false || x)", f"{V}cel.bind(x, {W}, false || x)"),
    ],
)
def test_condition_on_a_virtual_capacity_is_guarded(text: str, translated: str) -> None:
    dialect_text = text.replace("{}", 'device.capacity["virtual_vram"].AsApproximateFloat64() > 5')
    device = as_scheduled(published_devices(gpu())[0])

    assert translate(dialect_text) == translated
    assert cel_evaluation.selector(translated).matches(device) == text.startswith("!")


@pytest.mark.parametrize(
    "text",
    [
        "true",
        f'device.driver == "{names.DRIVER}" && device.allowMultipleAllocations',
        f'{A}.model == "A100" // a comment',
        f'{A}["model"] == "A100"',
        f'cel.bind(tf, {A}, tf.model == "A100" && tf.node_total_gpus >= 8)',
        f'{A}.?model.orValue("") == "A100"',
        f'"model" in {A} && has({A}.model)',
        f"{A}.team_rating > 5",
        f'{C}.tflops.compareTo(quantity("100")) >= 0 && {C}.vram.asApproximateFloat() >= 5.0',
        f"{C}.tflops.asApproximateFloat() >= 5",
        f"double({A}.node_total_tflops) > 2000.0",
        f'quantity({A}.node_total_vram).isGreaterThan(quantity("300Gi"))',
        'device.attributes["resource.kubernetes.io"].pcieRoot == "pci0000:00"',
        'device.attributes["gpu.nvidia.com"].productName == "x"',
        'device.attributes["gpu"].model == "A100"',
        'device.attributes["gpu"]["model"] == "A100"',
        'device.attributes["gpu"].?model.orValue("") == "A100"',
        'device.attributes["model"].model == "A100"',
        '"model" in device.attributes["gpu"] && "gpu" in device.attributes',
        '"x" in device.attributes["model"]',
        'device.attributes["gpu"].exists(k, k == "model")',
        'cel.bind(g, device.attributes["gpu"], g.model == "A100")',
        'cel.bind(g, device.attributes["gpu"], g.size()) > 0',
        'device.?attributes["model"].hasValue()',
        '[{"attributes": {"model": "A"}}].exists(device, device.attributes["model"] == "A")',
        'size(device.attributes["gpu"]) == 0',
        '[device.attributes["gpu"]].size() == 1',
        'device.attributes[?"gpu"].hasValue()',
        'device.attributes["a-b"] == {}',
        'device.capacity["gpu"].memory.isGreaterThan(quantity("1Gi"))',
        "device.attributes[device.driver].model == 'A100'",
        '[{"model": 1}].exists(device, device["model"] == 1)',
        'cel.bind(device, {"attributes": {"model": "A"}}, device.attributes["model"] == "A")',
        '{"attributes": {"model": "A"}}.attributes["model"] == "A"',
        "'device.attributes[\"model\"]' == r'\\d' || b'\\xff' == b'x'",
    ],
)
def test_kubernetes_cel_stays_unchanged_byte_for_byte(text: str) -> None:
    assert translate(text) == text


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            'device.attributes["quota"] == 5',
            "1:19: found attribute 'quota', expected one of pool",
        ),
        ('true &&\n  device.attributes["Model"] == "A"', "2:21: found attribute 'Model'"),
        ('device.attributes["quota"].startsWith("x")', "1:19: found attribute 'quota'"),
        ('has(device.attributes["quota"])', "1:23: found attribute 'quota'"),
        (
            'device.capacity["memory"].AsApproximateFloat64() > 1',
            "1:17: found capacity 'memory', expected one of tflops, vram, virtual_tflops, "
            'virtual_vram; any other needs its domain, such as device.capacity["'
            f'{names.DRIVER}"].memory',
        ),
        ('100 <= device.capacity["tflops"]', "1:8: found a Quantity as operand of <="),
        ('device.capacity["tflops"] == 100', "1:1: found a Quantity as operand of =="),
        ('device.capacity["vram"] / 2 > 5', "1:1: found a Quantity as operand of /"),
        ('-device.capacity["vram"] < 5', "1:2: found a Quantity as operand of -"),
        ('device.capacity["tflops"] in [100]', "1:1: found a Quantity as operand of in"),
        ('device.capacity["vram"] >= "16Gi"', "1:1: found a Quantity as operand of >="),
        (
            'device.capacity["vram"] >= quantity("16Gi")',
            '1:1: found a Quantity as operand of >=, expected device.capacity["vram"].',
        ),
        (
            'device.attributes["model"].AsApproximateFloat64() > 1',
            "1:28: found AsApproximateFloat64() of a string, expected a Quantity",
        ),
        (
            'device.attributes["node_total_gpus"].AsApproximateFloat64() > 1',
            "1:38: found AsApproximateFloat64() of an integer, expected a Quantity",
        ),
        ("device.AsApproximateFloat64() > 1", "1:8: found AsApproximateFloat64() of the device"),
        (
            'device.attributes["node_total_vram"] > "80Gi"',
            "1:1: found a string that holds an amount as operand of >, "
            'expected device.attributes["node_total_vram"].AsApproximateFloat64()',
        ),
        ('device.attributes["model"] = "A100"', "1:28: found '=', expected a name or"),
        ('device.attributes["model" == "A100"', "1:36: found the end, expected ]"),
    ],
)
def test_expression_that_no_device_could_evaluate_is_refused_with_its_position(
    text: str, error: str
) -> None:
    with pytest.raises(CelError) as raised:
        translate(text)

    assert str(raised.value).startswith(error)


def test_longest_expression_passes_and_one_byte_more_is_refused() -> None:
    longest = "true //" + "é" * ((MAX_EXPRESSION_BYTES - 7) // 2) + "."

    assert translate(longest) == longest
    with pytest.raises(CelError, match="1:1: found 10241 bytes, expected at most 10240"):
        translate(longest + ".")


def test_translation_that_is_too_long_is_refused() -> None:
    text = " && ".join([f'device.attributes["model"] == "{"A" * 150}"'] * 50)

    with pytest.raises(CelError, match="found 10696 bytes when translated, expected at most 10240"):
        translate(text)


def test_guide_knows_every_published_attribute_and_capacity() -> None:
    device = published_devices(gpu())[0]
    own = {name for name in device.attributes if "/" not in name}

    assert set(user_guide.ATTRIBUTES) == own
    assert set(user_guide.CAPACITIES) - user_guide.NOT_ON_EVERY_DEVICE == set(device.capacity)


@pytest.mark.parametrize(
    "part",
    [
        *("({} + 1)", "f({})", "[{}]", "{{1: {}}}", "!({})", "({} && a)", "(a ? a : {})", "a[{}]"),
        *("[1].exists(x, {})", "cel.bind(x, {}, x)", "cel.bind(x, 1, {})", "{}.f", "(1 in [{}])"),
        *("({})", "f({}, 1)", "a ? b : {}", "-({})", "x.y({})"),
    ],
)
def test_deepest_expression_that_parses_can_be_translated_and_split(part: str) -> None:
    text, error = "a", ""
    while not error:
        deeper = part.format(text)
        try:
            text = text if parse(deeper).end < len(deeper) else deeper
        except CelError as found:
            error = str(found)

    assert f"found nesting more than {MAX_DEPTH} levels deep" in error
    assert translate(text) == text
    assert terms(text).text


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


def test_operators_bind_as_in_cel() -> None:
    node = parse("a || b && !c == d + e * f")
    ternary = parse("a ? b : c ? d : e")

    equal = node.parts[1].parts[1]
    assert (node.text, node.parts[1].text, equal.text) == ("||", "&&", "==")
    assert [part.text for part in equal.parts] == ["!", "+"]
    assert equal.parts[1].parts[1].text == "*"
    assert (ternary.form, ternary.parts[2].form) == ("ternary", "ternary")


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


def leaves(term: Term) -> list[Term]:
    return [leaf for part in term.parts for leaf in leaves(part)] if term.parts else [term]


def test_expression_is_split_at_its_operators() -> None:
    found = terms('a && !(b || c == \n"x && y") && (d && ( (e) ) == 1)')

    assert found.operator == "&&"
    assert [part.text for part in found.parts] == [
        "a",
        '!(b || c == "x && y")',
        "(d && ( (e) ) == 1)",
    ]
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
        (f"has({C}.vram) && sign({C}.vram) > 0", [("capacity", names.DRIVER, "vram")]),
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


NODE = Node(name="node-01", gpupool="production", qos="high")


def scheduled_device(*, of: int = 8, node: Node = NODE, **attributes: str) -> PublishedDevice:
    """Return the first device of a node; model, vram (GiB) and tflops are those of its card."""
    card: dict[str, Any] = {name: attributes.pop(name) for name in ("model",) if name in attributes}
    for name, field, unit in (("vram", "vram_bytes", GIB), ("tflops", "milli_tflops", 1000)):
        if name in attributes:
            card[field] = int(attributes.pop(name)) * unit
    listed = as_scheduled(published_devices(gpu(**card), *gpus(of)[1:], node=node)[0])
    more = {name: Attribute("string", text) for name, text in attributes.items()}
    return replace(listed, attributes={**listed.attributes, **more})


@pytest.mark.parametrize(
    ("text", "matching", "others"),
    [
        pytest.param(
            """
        device.attributes["model"] == "H100" &&
        device.capacity["vram"].AsApproximateFloat64() >= 100 &&
        device.attributes["qos"] == "critical"
        """,
            ({"model": "H100", "node": replace(NODE, qos="critical")},),
            ({"model": "H100"}, {"node": replace(NODE, qos="critical")}),
            id="4.2.4",
        ),
        pytest.param(
            """
        device.attributes["model"] == "A100" &&
        device.attributes["pool_name"] == "production" &&
        device.attributes["phase"] == "Running"
        """,
            ({},),
            ({"model": "H100"}, {"node": replace(NODE, gpupool="test")}, {"phase": "Pending"}),
            id="5.5, 1",
        ),
        pytest.param(
            """
        device.capacity["tflops"].AsApproximateFloat64() >= 200 &&
        device.capacity["vram"].AsApproximateFloat64() >= 32000000000
        """,
            ({}, {"tflops": "200", "vram": "30"}),
            ({"tflops": "199"}, {"vram": "29"}),
            id="5.5, 2",
        ),
        pytest.param(
            """
        (device.attributes["model"] == "H100" || device.attributes["model"] == "A100") &&
        device.capacity["vram"].AsApproximateFloat64() >= 40000000000 &&
        device.attributes["qos"] == "high"
        """,
            ({}, {"model": "H100"}),
            ({"model": "T4"}, {"vram": "37"}, {"node": replace(NODE, qos="low")}),
            id="5.5, 3",
        ),
        pytest.param(
            """
        device.attributes["node_total_gpus"] >= 8 &&
        device.attributes["node_total_tflops"].AsApproximateFloat64() > 2000 &&
        device.attributes["phase"] == "Running"
        """,
            ({}, {"of": 9}),
            ({"of": 7}, {"node_total_tflops": "2000"}, {"phase": "Pending"}),
            id="5.5, 4",
        ),
        pytest.param(
            """
        device.attributes["model"] != "V100" &&
        device.attributes["qos"] != "low" &&
        device.attributes["phase"] == "Running"
        """,
            ({}, {"model": "T4"}),
            ({"model": "V100"}, {"node": replace(NODE, qos="low")}, {"phase": "Pending"}),
            id="5.5, 5",
        ),
        pytest.param(
            """
        device.attributes["model"] == "A100" &&
        device.attributes["pool_name"] == "prod-pool" &&
        device.capacity["tflops"].AsApproximateFloat64() >= 200 &&
        device.capacity["vram"].AsApproximateFloat64() >= 34359738368 &&
        device.attributes["qos"] == "high" &&
        device.attributes["phase"] == "Running" &&
        device.attributes["used_by"] == ""
        """,
            ({"pool_name": "prod-pool"}, {"pool_name": "prod-pool", "vram": "32"}),
            (
                {},
                {"pool_name": "prod-pool", "vram": "31"},
                {"pool_name": "prod-pool", "used_by": "x"},
            ),
            id="5.6",
        ),
        pytest.param(
            'device.attributes["phase"] == "Running"',
            ({},),
            ({"phase": "Pending"},),
            id="5.7, status",
        ),
        pytest.param(
            'device.capacity["tflops"].AsApproximateFloat64() >= 100',
            ({},),
            ({"tflops": "99"},),
            id="5.7, conversion",
        ),
        pytest.param(
            """
        (device.attributes["model"] == "A100" && device.capacity["tflops"].AsApproximateFloat64() >= 200) ||
        (device.attributes["model"] == "H100" && device.capacity["tflops"].AsApproximateFloat64() >= 400) ||
        (device.attributes["model"] == "V100" && device.capacity["tflops"].AsApproximateFloat64() >= 100 && device.attributes["qos"] == "high")
        """,  # noqa: E501 - lines as the guide has them
            ({}, {"model": "H100", "tflops": "989"}, {"model": "V100", "tflops": "112"}),
            (
                {"model": "H100"},
                {"tflops": "199"},
                {"model": "V100", "node": replace(NODE, qos="low")},
            ),
            id="5.7, complex",
        ),
        pytest.param(
            """
        (device.attributes["model"] == "H100" || device.attributes["model"] == "A100") &&
        device.capacity["vram"].AsApproximateFloat64() >= 40000000000 &&
        device.attributes["qos"] != "low" &&
        device.attributes["node_total_gpus"] >= 8 &&
        device.attributes["phase"] == "Running"
        """,
            ({}, {"model": "H100"}),
            ({"of": 7}, {"model": "T4"}, {"vram": "37"}, {"phase": "Pending"}),
            id="appendix, 2",
        ),
    ],
)
def test_example_selects_the_devices_that_the_guide_describes(
    text: str, matching: tuple[dict[str, Any], ...], others: tuple[dict[str, Any], ...]
) -> None:
    """IDs are sections of the guide; devices are given by the arguments of scheduled_device()."""
    text = textwrap.dedent(text)
    translated = translate(text)

    assert cel_evaluation.check_expression(text) is not None, (
        "the API server accepts the guide's own form"
    )
    assert cel_evaluation.check_expression(translated) is None
    selector = cel_evaluation.selector(translated)
    for devices, is_selected in ((matching, True), (others, False)):
        for changes in devices:
            assert selector.matches(scheduled_device(**changes)) is is_selected


TEXTS = (
    *("model", "pool_name", "pod_namespace", "uuid", "phase", "used_by", "node_name", "qos"),
    *("node_total_tflops", "node_total_vram", "node_virtual_tflops", "node_virtual_vram"),
)


@pytest.mark.parametrize(
    ("name", "different"),
    [
        *((name, {name: "other"}) for name in TEXTS),
        *((name, {"of": 7}) for name in ("node_total_gpus", "node_managed_gpus")),
    ],
)
def test_every_attribute_of_the_guide_can_be_compared(name: str, different: dict[str, Any]) -> None:
    value = json.dumps(scheduled_device().attributes[name].value)
    selector = cel_evaluation.selector(translate(f'device.attributes["{name}"] == {value}'))

    assert selector.matches(scheduled_device())
    assert not selector.matches(scheduled_device(**different))


@pytest.mark.parametrize("name", ["tflops", "vram", "virtual_tflops", "virtual_vram"])
def test_every_capacity_of_the_guide_can_be_compared(name: str) -> None:
    half_more = Oversubscription(tflops_percent=150, host_memory_percent=0, host_disk_percent=0)
    selector = cel_evaluation.selector(
        translate(f'device.capacity["{name}"].AsApproximateFloat64() > 0')
    )

    assert selector.matches(scheduled_device(node=replace(NODE, oversubscription=half_more)))
    assert selector.matches(scheduled_device()) == (not name.startswith("virtual"))
