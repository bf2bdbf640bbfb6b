"""Errors are one printable line, whatever external text they quote."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfusion_dra.core import printable
from tensorfusion_dra.core.errors import ClaimError, FatalError, InputError, RetryableError
from tensorfusion_dra.core.kubernetes import field_errors

HOSTILE = "a\nb\r\x1b[31m\u202ec\x85\ud800\x9b"
SHOWN = r"a\nb\r\x1b[31m\u202ec\x85\ud800\x9b"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("plain text, with ä and 漢", "plain text, with ä and 漢"),
        ("back\\slash", "back\\slash"),
        (HOSTILE, SHOWN),
    ],
)
def test_other_than_printable_characters_become_escapes(text: str, shown: str) -> None:
    assert printable.one_line(text) == shown


@given(st.text())
def test_any_text_becomes_one_printable_line(text: str) -> None:
    assert printable.one_line(text).isprintable()


@pytest.mark.parametrize("kind", [ClaimError, FatalError, InputError, RetryableError])
def test_text_of_every_error_is_printable(kind: type[ClaimError]) -> None:
    assert str(kind(f"field {HOSTILE}: found 1")) == f"field {SHOWN}: found 1"
    of_field = field_errors.forbidden(f"spec.{HOSTILE}", "expected no such field")
    assert str(of_field) == f"spec.{SHOWN}: Forbidden: expected no such field"
