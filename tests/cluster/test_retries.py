"""Errors of reads that were tried several times."""

import pytest

from tensorfusion_dra.cluster.api import RetriedReads, StatusError
from tensorfusion_dra.core.errors import RetryableError

NO_ANSWER = RetryableError("no answer within the time")
NOT_FOUND = StatusError("404: page not found", 404)


def error_of(*errors: RetryableError, wait_seconds: float = 0.5) -> str:
    """Return the text after these errors, the last of which comes again until the time is over."""
    left = list(errors)

    def ask(_seconds: float) -> None:
        raise left.pop(0) if len(left) > 1 else left[0]

    with pytest.raises(RetryableError) as raised:
        RetriedReads().with_retries("claim a", ask, wait_seconds=wait_seconds)
    return str(raised.value)


def test_an_answer_is_named_though_the_last_try_got_none() -> None:
    assert error_of(NOT_FOUND, NO_ANSWER) == "claim a: 404: page not found"


def test_without_any_answer_the_last_error_is_named() -> None:
    assert error_of(NO_ANSWER) == "claim a: no answer within the time"


def test_the_newest_answer_is_named() -> None:
    refused = StatusError("403: no right", 403)  # which is not tried again

    assert error_of(NOT_FOUND, refused, wait_seconds=60) == "claim a: 403: no right"
