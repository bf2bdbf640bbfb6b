"""Untyped YAML: values as Kubernetes reads them, bounds, and the line of an error."""

import pytest

from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.runtime import untyped_yaml
from tests.support.yaml_bombs import BOMBS


@pytest.mark.parametrize(("text", "reason"), BOMBS.values(), ids=BOMBS)
def test_text_that_describes_too_much_is_refused_with_its_line(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=f"^{reason}"):
        untyped_yaml.documents(text)


def test_values_nested_by_aliases_are_refused() -> None:
    text = "".join(f"a{i}: &a{i} [{'[' * 59}*a{i - 1}{']' * 59}, 0]\n" for i in range(1, 9))

    with pytest.raises(InputError, match=r"^line 3: found more than 100 levels of nesting"):
        untyped_yaml.documents("a0: &a0 {}\n" + text)


@pytest.mark.sweep
def test_a_million_values_are_read_and_one_more_is_not() -> None:
    most = "- \n" * (untyped_yaml.MAX_VALUES - 1)

    (read,) = untyped_yaml.documents(most)
    assert isinstance(read, list)
    with pytest.raises(InputError, match=r"^line 1: found more than 1000000 values"):
        untyped_yaml.documents(most + "- ")


def test_values_of_all_documents_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untyped_yaml, "MAX_VALUES", 10)

    assert untyped_yaml.documents("[1, 2, 3, 4]\n--- {a: b, c: d}\n")
    with pytest.raises(InputError, match=r"^line 3: found more than 10 values"):
        untyped_yaml.documents("[1, 2, 3, 4]\n--- {a: b, c: d}\n--- 1\n")


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100 + "a" + "]" * 100,
        "a: &a {x: 1}\n" + "".join(f"b{i}: {{<<: *a, c: [*a]}}\n" for i in range(200)),
        # Another document may use the same anchor for another value.
        "a: &a [1]\nb: &b [*a]\nc: [*b]\n---\na: &b [1]\nb: [*b]\n",
    ],
)
def test_nesting_and_aliases_as_people_use_them_are_read(text: str) -> None:
    assert untyped_yaml.documents(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: [", "line 1: expected the node content"),
        ("a: 1\n---\nb: c: d\n", "line 3: mapping values are not allowed here"),
        ("a: 1\nb: *nothing\n", "line 2: found undefined alias 'nothing'"),
        ("a: 1\nb: \x00", "line 2: unacceptable character #x0000"),
        ("a:\n- !!set {b}\n", "line 2: could not determine a constructor for the tag"),
        ("a:\n- !!python/object:os.system {}\n", "line 2: could not determine a constructor"),
        ("a: 1\nb: !!int many\n", "line 2: invalid literal"),
        (b"a: 1\nb: \xff\n", "line 2: unacceptable character #x00ff: invalid start byte"),
        (f"a: 1\nb: 1{':1' * 300_000}\n", "line 2: found a number of 600001 characters"),
        (f"a: 1\nb: 0x{'f' * 300_000}\n", "line 2: found a number of 300002 characters"),
    ],
)
def test_error_has_the_line(text: str | bytes, reason: str) -> None:
    with pytest.raises(InputError, match=f"^{reason}"):
        untyped_yaml.documents(text)


def test_values_are_those_of_json_and_times_are_text_as_in_kubernetes() -> None:
    text = "{a: 2024-01-01, b: 2024-01-01T00:00:00Z, c: [1, 0x10, 1.5, yes, null, '2']}\n--- d\n"

    first, second = untyped_yaml.documents(text)

    expected = {"a": "2024-01-01", "b": "2024-01-01T00:00:00Z", "c": [1, 16, 1.5, True, None, "2"]}
    assert (first, second) == (expected, "d")
