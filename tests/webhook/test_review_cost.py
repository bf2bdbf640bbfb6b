"""No small review takes much work, whatever it has many of: others wait for it meanwhile."""

import json
import sys
import time
from typing import Any

import pytest

from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.runtime.http_server import Request
from tensorfusion_dra.webhook.admission import AdmissionRules
from tensorfusion_dra.webhook.quota_admission import QuotaAdmission
from tensorfusion_dra.webhook.reviews import Reviews
from tensorfusion_dra.webhook.server import is_small
from tests.support.admission import (
    ClaimsInMemory,
    ObjectsInMemory,
    QuotasInMemory,
    SlicesInMemory,
)
from tests.support.builders.classes import share_class
from tests.support.builders.quotas import quota_document
from tests.support.hostile_reviews import PATHS, hostile_review
from tests.support.tally import INPUTS_FUZZED, Tally, portion

Json = dict[str, Any]

MAX_CALLS = 60_000
"""Calls of functions; 20 ms by themselves."""
MAX_RATIO = 2.0
"""Processor time by that of a million turns of a loop, which take 25 ms or more."""


class OnePod:
    """The pod of every claim."""

    document: Json | None = None

    def find(self, pod: PodRef, *, wait_seconds: float) -> Json | None:
        assert pod.name
        assert wait_seconds > 0
        return self.document


def reviews(pods: OnePod) -> Reviews:
    amounts = {"vram": "1Gi", "tflops": "2"}
    quota = quota_document(
        limits={"vram": "1Gi"}, single={"maxRequests": amounts, "maxGPUCount": 3}, vram="1Gi"
    )
    quotas = QuotasInMemory(quota)
    classes = ObjectsInMemory(
        share_class("quarter", requests=amounts, limits={"vram": "2Gi", "tflops": "4"})
    )
    rules = AdmissionRules(
        pools=ObjectsInMemory(),
        templates=ObjectsInMemory(),
        pods=pods,
        slices=SlicesInMemory(),
        classes=classes,
        scheduler="default-scheduler",
        virtual=False,
        quotas=quotas,
        names_containers=True,
    )
    of_quotas = QuotaAdmission(quotas, quotas, ClaimsInMemory(), pods, classes, trusts_clients=True)
    return Reviews(rules, of_quotas, on_review=lambda *_: None)


def calls(to: Reviews, request: Request) -> int:
    """Return how many functions are called for the answer."""
    found = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal found
        found += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        to.respond(request)
    finally:
        sys.setprofile(None)
    return found


def seconds(to: Reviews, request: Request) -> float:
    """Return the processor time of the answer."""
    started = time.thread_time()
    to.respond(request)
    return time.thread_time() - started


def seconds_of_a_million_turns() -> float:
    started = time.thread_time()
    for _ in range(10**6):
        pass
    return time.thread_time() - started


@pytest.mark.parametrize("path", PATHS)
def test_no_small_review_takes_much_work(path: str, tally: Tally) -> None:
    pods = OnePod()
    to, most = reviews(pods), MAX_RATIO * min(seconds_of_a_million_turns() for _ in range(3))
    for seed in range(portion(120)):
        pod = json.loads(hostile_review(seed, "/mutate-pods", is_small))
        pods.document = pod["request"]["object"]
        name, _, query = path.partition("?")
        request = Request(
            path=name,
            method="POST",
            query=query,
            content_type="application/json",
            body=hostile_review(seed, path, is_small),
        )
        to.respond(request)  # loads what it needs

        assert calls(to, request) <= MAX_CALLS, seed
        # A busy neighbor slows a core down for a while.
        assert any(seconds(to, request) <= most for _ in range(5)), seed
    tally[INPUTS_FUZZED] += portion(120)
