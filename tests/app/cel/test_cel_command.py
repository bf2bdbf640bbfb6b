"""The verb `cel`: translations, checks and bad input."""

import json
from pathlib import Path

import pytest

from tests.support.cel_command import A100, child, run, squeezed
from tests.support.selecting import A


def test_translate_prints_the_translation(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "translate", A100) == (0, f'{A}.model == "A100"\n', "")


def test_translate_reads_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "selector.cel"
    file.write_text(f"{A100} && // é\n  true\n")

    code, out, err = run(capsys, "translate", "-f", str(file))

    assert (code, out, err) == (0, f'{A}.model == "A100" && // é\n  true\n', "")


def test_translate_reads_stdin() -> None:
    assert child("translate", "-", stdin="true\n") == (0, "true\n", "")
    assert child("translate", "-f", "-", stdin="true") == (0, "true\n", "")


def test_translate_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "translate", "-o", "json", A100)

    assert json.loads(out) == {"expression": f'{A}.model == "A100"', "changed": True}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["translate"], "expression: found none"),
        (["translate", "true", "-f", "x"], "expression: found one, and a file"),
        (["translate", "-f", "/nowhere"], "/nowhere: No such file"),
        (["translate", 'device.attributes["quota"]'], "1:19: found attribute 'quota'"),
        (["translate", "a ="], "1:3: found '='"),
        (["translate", "device.nosuch == 'x'"], "1:7: undefined field 'nosuch'"),
        (
            ["explain", "device.foo", "--slices", "/nowhere"],
            "compilation failed: ERROR: <input>:1:7: undefined",
        ),
        (["explain", "true", "--slices", "/nowhere"], "/nowhere: No such file"),
        (["explain", "true", "--kubeconfig", "/nowhere"], "kubeconfig /nowhere"),
        (["explain", "true", "--request", "speed=1"], "request: found 'speed=1'"),
        (["explain", "true", "--request", "vram=1 Gi"], "request: vram: found '1 Gi'"),
    ],
)
def test_bad_input_is_a_one_line_error_with_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    code, out, err = run(capsys, *arguments)

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("tensorfusion-dra: ")
    assert expected in err


def test_invalid_utf8_is_bad_input(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "selector.cel"
    file.write_bytes(b"true // \xff")

    code, _, err = run(capsys, "translate", "-f", str(file))

    assert (code, err) == (2, f"tensorfusion-dra: {file}: found byte 8, expected UTF-8\n")


@pytest.mark.parametrize(
    ("arguments", "code", "lines"),
    [
        (
            [f'{A}.model == "A100"'],
            0,
            ["syntax ok", "length 64 of at most 10240 bytes", "types ok"],
        ),
        ([A100], 0, ["guide's CEL found; Kubernetes accepts only its translation", "types ok"]),
        (["--as-is", A100], 1, ["types 1:28: found no matching overload for '_==_'"]),
        (["true &&\n  1 +"], 1, ["syntax 2:6: found the end, expected a value"]),
        (["true &&\n  device.foo"], 1, ["types 2:9: undefined field 'foo'"]),
        (["1 + 1"], 1, ["types must evaluate to bool or the unknown type, not int"]),
        ([f"{A}.model > 5"], 1, ["types 1:56: found no matching overload for '_>_'"]),
        (
            ['device.capacity["tflops"].AsApproximateFloat64() == 312'],
            1,
            ["types 1:76: found no matching overload for '_==_'"],
        ),
        (
            ['device.attributes["node_total_tflops"] > 312'],
            1,
            ["guide's CEL 1:1: found a string that holds an amount as operand of >"],
        ),
        (["'a'.matches(5)"], 1, ["types 1:12: found no matching overload for 'matches'"]),
        (
            ['device.capacity["tflops"] >= 100'],
            1,
            ["guide's CEL 1:1: found a Quantity as operand of >="],
        ),
        (["true //" + "x" * 10_240], 1, ["length 10247 of at most 10240 bytes"]),
        (
            [f'{A}.model.find("A") == "A"'],
            3,
            ["types not checked: Kubernetes has find, the local CEL library does not"],
        ),
    ],
)
def test_check_reports_the_errors_of_the_api_server(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, lines: list[str]
) -> None:
    ended, out, err = run(capsys, "check", *arguments)
    shown = squeezed(out)

    assert (ended, err) == (code, "")
    assert shown[0] == "CHECK RESULT"
    for line in lines:
        assert any(line in one for one in shown), out


def test_check_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "check", "-o", "json", "1 +")

    assert json.loads(out) == {
        "checks": [{"check": "syntax", "ok": False, "text": "1:4: found the end, expected a value"}]
    }


def test_check_without_the_cel_library_reports_that_types_are_unchecked() -> None:
    code, out, err = child("check", "device.nosuch == 'x'", without_cel=True)

    assert (code, err) == (3, "")
    assert "not checked without a CEL library; install the extra 'cel'" in out


def test_translate_needs_no_cel_library() -> None:
    assert child("translate", A100, without_cel=True) == (0, f'{A}.model == "A100"\n', "")
