"""Controller that creates claims from templates, and releases and deletes unused claims.

Source: pkg/controller/resourceclaim/controller.go, release 1.37, and the part of the garbage
collector that deletes generated claims.
"""

from collections.abc import Mapping
from typing import Any, Final

from dra_simulator import podclaims
from dra_simulator.loop import Loop, LoopComponent, Recorder, Watched
from dra_simulator.podclaims import FINALIZER
from dra_simulator.rest import (
    CLAIMS,
    PODS,
    TEMPLATES,
    ApiError,
    Client,
    Json,
    RestError,
)
from tensorfusion_dra.core.kubernetes import resource_claims
from tensorfusion_dra.core.kubernetes.review import annotations_of

Document = Mapping[str, Any]


class ClaimController(LoopComponent):
    """Resource claim controller of kube-controller-manager."""

    def __init__(self, url: str) -> None:
        self._client: Final = Client(url)
        self._recorder: Final = Recorder(self._client, "resource_claim")
        watched = [Watched(CLAIMS), Watched(PODS), Watched(TEMPLATES)]
        self._loop = Loop("claim-controller", self._client, watched=watched, sync=self._sync)

    def _sync(self) -> None:
        # Claims before pods: a consumer that is not among the pods is then gone, and cannot be one
        # that was created between the two lists.
        claims = self._client.list(CLAIMS).items
        pods = self._client.list(PODS).items
        by_owner: dict[str, list[Json]] = {}
        for claim in claims:
            for owner in claim["metadata"].get("ownerReferences") or ():
                by_owner.setdefault(owner["uid"], []).append(claim)
        by_uid = {podclaims.uid(pod): pod for pod in pods}
        failure: RestError | None = None
        for pod in pods:
            try:
                self._provide(pod, by_owner.get(podclaims.uid(pod), []))
            except RestError as error:
                failure = error
        for claim in claims:
            try:
                self._release(claim, by_uid)
            except RestError as error:
                failure = error
        if failure is not None:
            raise failure

    def _provide(self, pod: Document, owned: list[Json]) -> None:
        """Create the claims of a pod's templates and write their names into the pod's status.

        Args:
            owned: Claims that were already created for the pod.
        """
        if podclaims.is_done(pod) or "deletionTimestamp" in pod["metadata"]:
            return
        statuses = list((pod.get("status") or {}).get("resourceClaimStatuses") or ())
        known = {status["name"]: status.get("resourceClaimName") for status in statuses}
        existing = {claim["metadata"]["name"]: claim for claim in owned}
        changed = False
        for entry in podclaims.claim_entries(pod):
            template = entry.get("resourceClaimTemplateName")
            if not template or known.get(entry["name"]) in existing:
                continue
            claim = next(
                (
                    found
                    for found in existing.values()
                    if annotations_of(found).get(resource_claims.POD_CLAIM_ANNOTATION)
                    == entry["name"]
                ),
                None,
            )
            if claim is None:
                claim = self._create(pod, entry["name"], template)
            if claim is None:
                continue
            known[entry["name"]] = claim["metadata"]["name"]
            changed = True
        if changed:
            names = [{"name": name, "resourceClaimName": found} for name, found in known.items()]
            status = {"status": {"resourceClaimStatuses": names}}
            self._client.patch(PODS, pod, status, subresource="status")

    def _create(self, pod: Document, name: str, template_name: str) -> Json | None:
        """Create the claim of a pod's entry; on failure write an Event and return None."""
        namespace = pod["metadata"]["namespace"]
        template = self._client.find(TEMPLATES, template_name, namespace)
        if template is None:
            missing = f'resourceclaimtemplate.resource.k8s.io "{template_name}" not found'
            self._report_failure(pod, name, f'resource claim template "{template_name}": {missing}')
            return None
        try:
            return self._client.create(CLAIMS, generated_claim(pod, name, template))
        except ApiError as error:
            self._report_failure(pod, name, f"create ResourceClaim: {error}")
            return None

    def _report_failure(self, pod: Document, name: str, error: str) -> None:
        message = f"PodResourceClaim {name}: failed to create ResourceClaim: {error}"
        self._recorder.record(pod, "FailedResourceClaimCreation", message)

    def _release(self, claim: Json, pods: Mapping[str, Document]) -> None:
        """Remove consumers that are gone; free or delete a claim that has none left."""
        status = claim.get("status") or {}
        reserved = status.get("reservedFor") or []
        remaining = [consumer for consumer in reserved if _keeps(consumer, pods)]
        if len(remaining) < len(reserved):
            status["reservedFor"] = remaining
            if not remaining:
                # status.devices describes the devices of the allocation, so it goes with it.
                for name in ("reservedFor", "allocation", "devices"):
                    status.pop(name, None)
            claim = self._client.replace_status(CLAIMS, {**claim, "status": status})
        is_being_deleted = not remaining and "deletionTimestamp" in claim["metadata"]
        if is_being_deleted and (claim.get("status") or {}).get("allocation"):
            claim = self._client.replace_status(CLAIMS, {**claim, "status": {}})
        # A scheduler writes the finalizer first and then the allocation. So that the finalizer is
        # not removed in between, remove it only from claims just released or being deleted.
        was_released = bool(reserved) and not remaining
        has_finalizer = FINALIZER in claim["metadata"].get("finalizers", ())
        if has_finalizer and (was_released or is_being_deleted):
            metadata = claim["metadata"]
            left = [name for name in metadata["finalizers"] if name != FINALIZER]
            changed = {**claim, "metadata": {**metadata, "finalizers": left}}
            claim = self._client.replace(CLAIMS, changed)
        if not remaining and "deletionTimestamp" not in claim["metadata"]:
            self._delete_if_orphaned(claim, pods)

    def _delete_if_orphaned(self, claim: Document, pods: Mapping[str, Document]) -> None:
        metadata = claim["metadata"]
        owners = [
            owner for owner in metadata.get("ownerReferences") or () if owner["kind"] == "Pod"
        ]
        if not owners:
            return
        pod = pods.get(owners[0]["uid"])
        if pod is not None and not podclaims.is_done(pod):
            return
        self._client.delete(CLAIMS, metadata["name"], metadata["namespace"], uid=metadata["uid"])


def generated_claim(pod: Document, name: str, template: Document) -> Json:
    """Return the claim of a template for an entry of a pod."""
    made = resource_claims.created(pod, name, template)
    del made["metadata"]["name"]
    made["metadata"]["generateName"] = f"{pod['metadata']['name']}-{name}-"
    return made


def _keeps(consumer: Document, pods: Mapping[str, Document]) -> bool:
    """Return True if a consumer still needs its reservation, as any but a pod always does."""
    if consumer.get("apiGroup") or consumer["resource"] != "pods":
        return True
    pod = pods.get(consumer["uid"])
    return pod is not None and not podclaims.is_done(pod)
