"""Errors are one printable line, whatever external text they quote."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfusion_dra.core import printable
from tensorfusion_dra.core.claims import share_policy
from tensorfusion_dra.core.claims.share_policy import ParameterError
from tensorfusion_dra.core.errors import ClaimError, FatalError, InputError, RetryableError
from tensorfusion_dra.core.kubernetes import field_errors

HOSTILE = "a\nb\r\x1b[31m\u202ec\x85\ud800\x9b"
SHOWN = r"a\nb\r\x1b[31m\u202ec\x85\ud800\x9b"


@pytest.mark.parametrize("text", ["", "plain text, with ä and 漢", "back\\slash"])
def test_printable_text_stays_as_it_is(text: str) -> None:
    assert printable.one_line(text) == text


def test_other_characters_become_escapes() -> None:
    assert printable.one_line(HOSTILE) == SHOWN


@given(st.text())
def test_any_text_becomes_one_printable_line(text: str) -> None:
    assert printable.one_line(text).isprintable()


@pytest.mark.parametrize("kind", [ClaimError, FatalError, InputError, RetryableError])
def test_text_of_every_error_is_printable(kind: type[ClaimError]) -> None:
    assert str(kind(f"field {HOSTILE}: found 1")) == f"field {SHOWN}: found 1"


def test_name_of_an_unknown_field_is_shown_as_one_line() -> None:
    found = {"apiVersion": "tensor-fusion.ai/v1alpha1", "kind": "GpuShare", HOSTILE: 1}

    with pytest.raises(ParameterError) as caught:
        share_policy.parse(found, trusted=False)

    assert SHOWN in str(caught.value)
    assert str(caught.value).isprintable()


def test_path_of_a_field_error_is_shown_as_one_line() -> None:
    error = field_errors.forbidden(f"spec.{HOSTILE}", "expected no such field")

    assert str(error) == f"spec.{SHOWN}: Forbidden: expected no such field"
