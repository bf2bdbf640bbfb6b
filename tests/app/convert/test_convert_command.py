"""The verb `convert`, as a person calls it."""

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


def test_the_text_is_on_stdout_and_why_it_differs_on_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = run(capsys, "-f", str(TEMPLATE))

    lines = err.splitlines()
    assert (code, out) == (0, convert(TEMPLATE.read_text()).text)
    assert lines[:2] == [f"--- {TEMPLATE}", f"+++ {TEMPLATE}, converted"]
    assert "-apiVersion: resource.k8s.io/v1beta2" in lines
    assert "+apiVersion: resource.k8s.io/v1" in lines
    assert lines[-1] == f"{TEMPLATE}:16: unknown field selector: renamed to selectors, a list"


def test_what_needs_no_change_is_printed_without_a_word(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(capsys, "-f", str(POD)) == (0, POD.read_text(), "")
    assert run(capsys, "-f", str(POD), "--check") == (0, "", "")


def test_check_prints_no_text_and_tells_by_its_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = run(capsys, "-f", str(TEMPLATE), "--check")

    assert (code, out) == (1, "")
    assert f"{TEMPLATE}:16: unknown field selector" in err


def test_what_stays_refused_is_exit_code_1(
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
    ("text", "said"),
    [
        (b"a: [", "YAML: while parsing"),
        (b"a: \xff", "found byte 3, expected UTF-8"),
        (None, "No such file"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: bytes | None, said: str
) -> None:
    file = tmp_path / "pod.yaml"
    if text is not None:
        file.write_bytes(text)

    code, out, err = run(capsys, "-f", str(file))

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


def test_stdin_is_read_and_every_byte_of_it_comes_back() -> None:
    text = POD.read_bytes().replace(b"\n", b"\r\n") + "# é".encode()

    ended = forks.run("convert", "-f", "-", stdin=text)

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, text.decode(), "")
