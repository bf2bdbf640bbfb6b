"""Rereading of kubeconfigs, and errors of broken ones."""

from pathlib import Path

import pytest

from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.core.errors import RetryableError
from tests.support.answers import SLICES_PATH, Answers, failing


def test_rejected_token_is_read_again(answers: Answers, tmp_path: Path) -> None:
    api = Api(answers.kubeconfig(tmp_path, "first-token"))
    api.call("GET", SLICES_PATH)
    answers.kubeconfig(tmp_path, "second-token")
    answers.status = 401
    failing(api)
    answers.status = 200

    api.call("GET", SLICES_PATH)

    assert answers.tokens == ["Bearer first-token", "Bearer first-token", "Bearer second-token"]


def test_kubeconfig_that_breaks_later_is_retryable(answers: Answers, tmp_path: Path) -> None:
    path = answers.kubeconfig(tmp_path, "first-token")
    api = Api(path)
    api.call("GET", SLICES_PATH)
    answers.status = 401
    failing(api)
    path.write_text("{")

    with pytest.raises(RetryableError, match="kubeconfig"):
        api.call("GET", SLICES_PATH)
