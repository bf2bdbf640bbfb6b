"""The selector generated from a pod's annotations, evaluated on published devices."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfusion_dra.core.admission.claim_admission import selector
from tensorfusion_dra.core.cel.syntax import quoted
from tensorfusion_dra.scheduling import cel_evaluation
from tensorfusion_dra.scheduling.devices import Attribute, Device, DeviceId
from tests.support.builders.devices import NODE, published_devices
from tests.support.builders.gpus import gpu
from tests.support.selecting import as_scheduled

ALL = {"model": "A100", "pool": "prod-pool", "qos": "high"}
A100 = as_scheduled(
    published_devices(gpu(), node=replace(NODE, gpupool="prod-pool", qos="high"))[0]
)


def selects(terms: Mapping[str, str], device: Device = A100) -> bool:
    expression = selector(**terms)
    assert cel_evaluation.check_expression(expression) is None
    return cel_evaluation.selector(expression).matches(device)


def test_device_that_satisfies_all_terms_matches() -> None:
    assert selects(ALL)


@pytest.mark.parametrize(
    "terms",
    [
        {**ALL, "model": "H100"},
        {**ALL, "model": "a100"},
        {**ALL, "pool": "other"},
        {**ALL, "qos": "low"},
    ],
)
def test_device_that_fails_one_term_does_not_match(terms: Mapping[str, str]) -> None:
    assert not selects(terms)


def test_without_terms_every_running_device_matches() -> None:
    pending = replace(A100, attributes={**A100.attributes, "phase": Attribute("string", "Pending")})

    assert selects({})
    assert not selects({}, pending)


def test_device_without_the_attributes_does_not_match_and_raises_nothing() -> None:
    foreign = Device(id=DeviceId("gpu.example.com", "pool", "gpu-0"))

    assert not selects(ALL, foreign)
    assert not selects({}, foreign)


def test_long_pool_name_matches_the_truncated_attribute() -> None:
    long = ".".join(["production"] * 12)
    device = as_scheduled(published_devices(gpu(), node=replace(NODE, gpupool=long))[0])

    assert selects({"pool": long}, device)


# Without NUL, which terminates the evaluator's C strings.
@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=16))
def test_any_text_is_compared_literally(text: str) -> None:
    named = replace(A100, attributes={**A100.attributes, "model": Attribute("string", text)})

    assert selects({"model": text}, named)
    assert not selects({"model": text + "x"}, named)


def test_text_cannot_break_out_of_its_literal() -> None:
    assert not selects({"model": 'x" || true || "" == "'})


def test_quoted_text_stays_on_one_line() -> None:
    assert quoted('a\n"\\\u2028\x00é') == r'"a\U0000000a\"\\\U00002028\U00000000é"'
