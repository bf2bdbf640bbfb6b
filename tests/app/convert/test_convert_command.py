"""The verb `convert`: output, exit codes and bad input."""

from pathlib import Path

import pytest

from tensorfusion_dra import cli
from tensorfusion_dra.app.convert.convert import convert
from tests.support import forks

GUIDE = Path(__file__).parent / "guide"
TEMPLATE = GUIDE / "3.2-template.yaml"
POD = GUIDE / "1.1-pod.yaml"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["convert", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_the_text_is_on_stdout_and_the_diff_with_reasons_on_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = run(capsys, "-f", str(TEMPLATE))
    checked = run(capsys, "-f", str(TEMPLATE), "--check")

    assert checked == (1, "", err)
    lines = err.splitlines()
    assert (code, out) == (0, convert(TEMPLATE.read_text()).text)
    assert lines[:2] == [f"--- {TEMPLATE}", f"+++ {TEMPLATE}, converted"]
    assert "-apiVersion: resource.k8s.io/v1beta2" in lines
    assert "+apiVersion: resource.k8s.io/v1" in lines
    assert lines[-1] == f"{TEMPLATE}:16: unknown field selector: renamed to selectors, a list"


def test_a_text_without_changes_is_printed_without_a_diff(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(capsys, "-f", str(POD)) == (0, POD.read_text(), "")
    assert run(capsys, "-f", str(POD), "--check") == (0, "", "")


def test_an_error_that_cannot_be_converted_is_exit_code_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(
        "annotations:\n  tensor-fusion.ai/dra-cel-expression: 'device.x[\"quota\"] ='\n"
    )

    code, out, err = run(capsys, "-f", str(file))

    assert (code, out) == (1, file.read_text())
    assert err.startswith(f"{file}:2: refused: expression 1:19: found '=', expected a name")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"a: [", "YAML: while parsing"),
        (b"a: \xff", "found byte 3, expected UTF-8"),
        (None, "No such file"),
    ],
)
def test_bad_input_is_a_one_line_error_with_exit_code_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: bytes | None, expected: str
) -> None:
    file = tmp_path / "pod.yaml"
    if text is not None:
        file.write_bytes(text)

    code, out, err = run(capsys, "-f", str(file))

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert expected in err


def test_stdin_is_printed_byte_for_byte() -> None:
    text = POD.read_bytes().replace(b"\n", b"\r\n") + "# é".encode()

    ended = forks.run("convert", "-f", "-", stdin=text)

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, text.decode(), "")
