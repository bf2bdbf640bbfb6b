"""AdmissionReviews, and the objects that the webhook reads."""

import copy
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from threading import Lock
from typing import Any

from dra_simulator.api import patches
from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import cards
from tensorfusion_dra.core.admission.cards import Cards
from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.core.kubernetes import review
from tensorfusion_dra.core.kubernetes.projection import Projection, projected
from tensorfusion_dra.core.kubernetes.review import Review

Json = dict[str, Any]


def review_of(document: Json, *, operation: str = "CREATE", old: Json | None = None) -> Review:
    """Return the review of an object."""
    return review.parse(review_body(document, operation=operation, old=old), wait_seconds=5)


def review_body(document: Json, *, operation: str = "CREATE", old: Json | None = None) -> bytes:
    """Return the AdmissionReview that the API server posts for an object."""
    group, _, version = document["apiVersion"].rpartition("/")
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": group, "version": version, "kind": document["kind"]},
        "operation": operation,
        "name": document["metadata"].get("name", ""),
        "namespace": document["metadata"].get("namespace", ""),
        "object": document,
        "oldObject": old,
    }
    document = {"apiVersion": review.API_VERSION, "kind": review.KIND, "request": request}
    return json.dumps(document).encode()


def patched(document: Json, operations: Sequence[object]) -> Json:
    """Apply a JSON patch to an object as the simulated API server does, and return the result."""
    return patches.operated(document, operations)


class Source:
    """What a test has the API server answer.

    Attributes:
        error: Raised in place of each answer; None for none.
    """

    error: Exception | None = None

    def check(self, *, wait_seconds: float = 1.0) -> None:
        """Raise the error, if there is one."""
        assert wait_seconds > 0
        if self.error is not None:
            raise self.error


class ObjectsInMemory(Source):
    """Objects set by a test; implements core.claims.ports.Objects."""

    def __init__(self, *items: Json) -> None:
        self.listed: Sequence[Json] = items

    def items(self) -> Sequence[Json]:
        self.check()
        return self.listed


class QuotasInMemory(ObjectsInMemory):
    """Quotas set by a test; implements the QuotaReader and QuotaStore of webhook.quota_admission.

    Attributes:
        refused: Raised by each write; None for none.
    """

    def __init__(self, *items: Json) -> None:
        super().__init__(*items)
        self.refused: Exception | None = None
        self._guard = Lock()

    def current(self, *, wait_seconds: float) -> Sequence[Json]:
        self.check(wait_seconds=wait_seconds)
        return self.listed

    def of_namespace(self, name: str, *, wait_seconds: float) -> Sequence[Json]:
        self.check(wait_seconds=wait_seconds)
        with self._guard:
            return copy.deepcopy([e for e in self.listed if e["metadata"]["namespace"] == name])

    def annotate(self, quota: Mapping[str, Any], text: str, *, wait_seconds: float) -> bool:
        assert wait_seconds > 0
        if self.refused is not None:
            raise self.refused
        about = quota["metadata"]
        with self._guard:
            found = (each["metadata"] for each in self.listed)
            stored = next(each for each in found if each["name"] == about["name"])
            if stored.get("resourceVersion") != about.get("resourceVersion"):
                return False
            stored["resourceVersion"] = f"{int(stored.get('resourceVersion', '0')) + 1}"
            stored["annotations"] = {names.QUOTA_ADMITTED: text}
            return True


class PodsInMemory(Source):
    """Pods by UID; implements core.claims.ports.Pods."""

    def __init__(self) -> None:
        self.stored: dict[str, Json] = {}

    def find(self, pod: PodRef, *, wait_seconds: float) -> Json | None:
        self.check(wait_seconds=wait_seconds)
        return self.stored.get(pod.uid)


class ClaimsInMemory(Source):
    """Claims of one namespace; implements webhook.quota_admission.ClaimReader."""

    def __init__(self, *claims: Json) -> None:
        self.stored = [*claims]

    def of_namespace(self, name: str, keep: Projection, *, wait_seconds: float) -> Sequence[Json]:
        assert name == "team-a"
        self.check(wait_seconds=wait_seconds)
        return [projected(each, keep) for each in self.stored]


class PrioritiesInMemory(Source):
    """PriorityClasses by name; for AdmissionRules.has_priority_class."""

    def __init__(self, *known: str) -> None:
        self.known = known

    def exists(self, name: str, wait_seconds: float) -> bool:
        self.check(wait_seconds=wait_seconds)
        return name in self.known


class SlicesInMemory(Source):
    """Slices set by a test; implements webhook.admission.CardReader.

    Attributes:
        reads: How often the slices themselves were read.
    """

    def __init__(self, *slices: Json) -> None:
        self.slices: Sequence[Json] = slices
        self.reads = 0

    def current(self) -> Cards:
        self.check()
        return cards.of_slices(self.slices)

    def selected(
        self, key: Hashable, select: Callable[[Any], Any], *, namespace: str, wait_seconds: float
    ) -> Cards:
        assert hash(key)
        assert namespace
        self.reads += 1
        self.check(wait_seconds=wait_seconds)
        return cards.of_slices(map(select, self.slices))
