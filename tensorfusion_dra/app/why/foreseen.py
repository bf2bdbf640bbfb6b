"""What the webhook would make of a pod and of its claims, by the webhook's own rules."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tensorfusion_dra.app.why.observed import Observed
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.core.kubernetes.review import Review, Verdict
from tensorfusion_dra.webhook.admission import Admission

Document = Mapping[str, Any]

_WAIT_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class _Listed:
    """Objects read before; implements driver.ports.cluster.Objects and PublishedSlices."""

    listed: Sequence[Document]

    def items(self) -> Sequence[Document]:
        return self.listed

    def published(self, *, wait_seconds: float) -> Sequence[Document]:
        del wait_seconds
        return self.listed


@dataclass(frozen=True, slots=True)
class _OnePod:
    """The pod in question; implements webhook.ports.PodReader."""

    pod: Document

    def find(self, pod: PodRef, *, wait_seconds: float) -> Document | None:
        del pod, wait_seconds
        return self.pod


class Foreseen:
    """The webhook's verdicts on one pod.

    Its settings are not known here. A claim requests virtual amounts if the published devices have
    them, and isolation `hard` is allowed: the node refuses it if its enforcer has none.
    """

    def __init__(self, observed: Observed, pod: Document) -> None:
        ours = [each for each in observed.slices if each["spec"]["driver"] == names.DRIVER]
        self._pod: Final = pod
        self._admission: Final = Admission(
            pools=_Listed(observed.pools),
            templates=_Listed(observed.pool_templates),
            pods=_OnePod(pod),
            slices=_Listed(ours),
            scheduler="default-scheduler",
            virtual=any(
                names.CAPACITY_VIRTUAL_VRAM in (device.get("capacity") or {})
                for each in ours
                for device in each["spec"].get("devices") or ()
            ),
            enforces_hard=True,
        )

    def pod(self) -> Verdict:
        """Return the verdict on the pod."""
        return self._admission.pod(_review("", "Pod", self._pod))

    def claim(self, claim: Document) -> Verdict:
        """Return the verdict on a claim that was just created for the pod."""
        return self._admission.claim(_review(names.RESOURCE_GROUP, "ResourceClaim", claim))


def _review(group: str, kind: str, document: Document) -> Review:
    metadata = document.get("metadata") or {}
    return Review(
        uid="",
        group=group,
        version="v1",
        kind=kind,
        operation="CREATE",
        subresource="",
        namespace=str(metadata.get("namespace", "")),
        name=str(metadata.get("name", "")),
        document=dict(document),
        old={},
        wait_seconds=_WAIT_SECONDS,
    )
