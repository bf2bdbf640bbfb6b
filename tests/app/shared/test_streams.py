"""What processes write: amounts in tables, and the lines of the log."""

import io
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import structlog

from tensorfusion_dra.app.shared import logging as app_logging
from tensorfusion_dra.app.shared import streams
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes import quantity


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("71200m", "71.2"), ("1n", "0.000000001"), ("312", "312"), ("0", "0"), ("300", "300")),
        *(("16Gi", "16Gi"), ("123100Mi", "120.2Gi"), ("1048577Ki", "1Gi"), ("3Ti", "3072Gi")),
        *(("1023Mi", "1023Mi"), ("1536Ki", "1.5Mi"), ("100Gi", "100Gi"), ("5Ki", "5Ki")),
        *(("0.19999Gi", "204.7Mi"), ("-5Gi", "-5Gi")),
        # Memory is known by its name as well.
        *((f"17000000000 {name}", "15.8Gi") for name in ("vram", "virtual_vram")),
        ("17000000000 tflops", "17G"),
    ],
)
def test_amounts_for_people_have_a_decimal_point_and_memory_one_unit(
    text: str, expected: str
) -> None:
    amount, _, name = text.partition(" ")

    assert streams.shown(quantity.parse(amount), name) == expected


def test_amounts_in_a_text() -> None:
    found = streams.with_points("271200m of 312 taken, 40m more, vram 125098Mi, gpu-12m3, 1g.10gb")

    assert found == "271.2 of 312 taken, 0.04 more, vram 122.1Gi, gpu-12m3, 1g.10gb"


def test_text_of_16_mib_is_read_and_a_longer_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "long"
    file.touch()
    os.truncate(file, streams.MAX_BYTES)

    assert len(streams.read(str(file))) == streams.MAX_BYTES
    os.truncate(file, 2**40)
    with pytest.raises(InputError, match=f"^{file}: found over 16777216 bytes"):
        streams.read(str(file))


@pytest.mark.parametrize(
    ("text", "found"),
    [("--- {a: 1}\n--- b\n", "'b'"), ("items: [{a: 1}, [b]]", r"\"\['b'\]\"")],
)
def test_what_is_no_object_is_refused(tmp_path: Path, text: str, found: str) -> None:
    file = tmp_path / "objects.yaml"
    file.write_text(text)

    with pytest.raises(InputError, match=f"^{file}: found {found}, expected an object"):
        streams.documents(str(file))


def test_objects_of_lists_are_read_one_by_one(tmp_path: Path) -> None:
    file = tmp_path / "objects.yaml"
    file.write_text("---\n--- {a: 1}\n--- {kind: List, items: [{b: 1}, {items: [{c: 1}]}]}\n")

    assert streams.documents(str(file)) == [{"a": 1}, {"b": 1}, {"c": 1}]


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Yield the log of a process that logs JSON at level debug."""
    written = io.StringIO()
    root = logging.getLogger()
    handlers, level, settings = root.handlers[:], root.level, structlog.get_config()
    app_logging.configure(level="debug", form="json", stream=written)
    yield written
    root.handlers, root.level = handlers, level
    structlog.configure(**settings)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_librarys_warning_has_the_form_of_all_lines_and_no_token(stream: io.StringIO) -> None:
    text = "Retrying (%s) after\nAuthorization: Bearer s3cr3t-t0k3n"
    logging.getLogger("urllib3.connectionpool").warning(text, "1")

    (line,) = lines(stream)
    expected = {
        "event": "library_warned",
        "library": "urllib3.connectionpool",
        "error": "Retrying (1) after Authorization: <hidden>",
    }
    assert line.items() >= expected.items()


def test_messages_of_libraries_below_warning_are_never_logged(stream: io.StringIO) -> None:
    for name in ("urllib3.connectionpool", "kubernetes.client.rest", "http.client"):
        for level in (logging.DEBUG, logging.INFO):
            logging.getLogger(name).log(level, "Authorization: Bearer s3cr3t-t0k3n")

    assert lines(stream) == []


@pytest.mark.parametrize("form", ["json", "console"])
def test_every_fact_is_one_printable_line(form: str, stream: io.StringIO) -> None:
    app_logging.configure(level="debug", form=form, stream=stream)

    structlog.get_logger().warning(
        "refused", claim="a\nb", error="\x1b[31mred", path=["c\rd"], map={"k": "\u202e"}
    )

    (text,) = stream.getvalue().splitlines()
    shown = text.replace("\\\\", "\\")
    assert text.isprintable()
    assert all(each in shown for each in (r"a\nb", r"\x1b[31mred", r"c\rd", r"\u202e"))


def test_fact_that_json_does_not_know_is_shown_by_its_repr(stream: io.StringIO) -> None:
    structlog.get_logger().info("found", path=PurePosixPath("/a"), seconds=0.5, device=None)

    (line,) = lines(stream)
    assert (line["path"], line["seconds"], line["device"]) == ("PurePosixPath('/a')", 0.5, None)


def test_tables_fit_on_a_terminal_unless_they_are_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    rows = [("POD", "NODE", "WHY"), (f"{'a' * 24}-bfr5p", "node-01", f"{'b' * 15} {'c' * 14}")]

    cut, wide = streams.table(rows, indent="", is_wide=False), streams.table(rows, indent="")

    assert max(map(len, cut)) == 40
    assert cut[1] == f"{'a' * 7}…-bfr5p  node-01  {'b' * 14}…"
    assert wide[1] == f"{'a' * 24}-bfr5p  node-01  {'b' * 15} {'c' * 14}"
    monkeypatch.setenv("COLUMNS", "10")
    assert streams.table(rows, indent="", is_wide=False)[1] == (
        f"{'a' * 5}…-bfr5p  node-01  {'b' * 11}…"
    )
