"""A cluster as the webhook sees it, with the webhook's rules."""

from typing import Any

from tensorfusion_dra.core.kubernetes.review import Verdict
from tensorfusion_dra.webhook.admission import Admission
from tests.support.admission import Json, ObjectsInMemory, PodsInMemory, SlicesInMemory, review_of
from tests.support.builders.pods import pod_annotations, pod_document
from tests.support.builders.stored_claims import template_claim

AMOUNTS: Any = {"tflops_request": "100", "vram_request": "16Gi"}
ON: Any = {"draConfig": {"enable": True}}
A100, T4 = ("A100", "312"), ("T4", "65")


class Cluster:
    """The cluster as the webhook sees it, with the webhook's rules."""

    def __init__(self, *pools: Json, virtual: bool = False, enforces_hard: bool = False) -> None:
        self.pools = ObjectsInMemory(*pools)
        self.templates = ObjectsInMemory()
        self.pods = PodsInMemory()
        self.slices = SlicesInMemory()
        self.admission = Admission(
            pools=self.pools,
            templates=self.templates,
            pods=self.pods,
            slices=self.slices,
            scheduler="default-scheduler",
            virtual=virtual,
            enforces_hard=enforces_hard,
        )

    def pod(self, **annotations: str) -> Verdict:
        return self.admission.pod(review_of(pod_document(pod_annotations(**annotations))))

    def claim(self, **annotations: str) -> Verdict:
        self.pods.stored["uid-train"] = pod_document(pod_annotations(**annotations))
        return self.admission.claim(review_of(template_claim()))


def errors(verdict: Verdict) -> list[str]:
    return [str(error) for error in verdict.errors]


def requests(verdict: Verdict) -> Json:
    assert verdict.changed is not None
    found: Json = verdict.changed["spec"]["devices"]["requests"][0]["exactly"]
    return dict(found["capacity"]["requests"])
