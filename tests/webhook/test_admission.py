"""Decisions that take pools and pods of the cluster."""

from typing import Any

import pytest

from tensorfusion_dra.core.doctor.webhook import trial_pod
from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.core.kubernetes.review import PASSED, Verdict
from tensorfusion_dra.webhook.admission import Admission
from tests.support.admission import (
    Json,
    ObjectsInMemory,
    PodsInMemory,
    SlicesInMemory,
    asked,
    claim,
    gpupool,
    pod,
    published,
    said,
)

AMOUNTS: Any = {"tflops_request": "100", "vram_request": "16Gi"}
ON: Any = {"draConfig": {"enable": True}}


class Cluster:
    """What the webhook sees, and the webhook."""

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
        return self.admission.pod(asked(pod(said(**annotations))))

    def claim(self, **annotations: str) -> Verdict:
        self.pods.stored["uid-train"] = pod(said(**annotations))
        return self.admission.claim(asked(claim()))


def errors(verdict: Verdict) -> list[str]:
    return [str(error) for error in verdict.errors]


def requests(verdict: Verdict) -> Json:
    assert verdict.changed is not None
    found: Json = verdict.changed["spec"]["devices"]["requests"][0]["exactly"]
    return dict(found["capacity"]["requests"])


def test_a_pod_that_says_so_uses_dra() -> None:
    verdict = Cluster().pod(dra_enabled="true", gpupool="default", **AMOUNTS)

    assert verdict.changed is not None
    assert verdict.changed["spec"]["resourceClaims"]


def test_the_doctors_pod_on_trial_gets_a_claim_whatever_its_pool_does() -> None:
    for pools in ([], [gpupool("a", default=True)]):
        verdict = Cluster(*pools).admission.pod(asked(dict(trial_pod("default"))))

        assert verdict.changed is not None
        assert verdict.changed["spec"]["resourceClaims"]


@pytest.mark.parametrize(
    ("pools", "annotations", "is_on"),
    [
        ([gpupool("a", **ON)], {"gpupool": "a"}, True),
        ([gpupool("a")], {"gpupool": "a"}, False),
        ([gpupool("a")], {"gpupool": "a", "dra_enabled": "true"}, True),
        ([gpupool("a", **ON)], {"gpupool": "a", "dra_enabled": "false"}, False),
        ([gpupool("a", **ON), gpupool("b", default=True)], {}, False),
        ([gpupool("a"), gpupool("b", default=True, **ON)], {}, True),
        ([], {}, False),
        ([gpupool("a", **ON)], {}, False),
        ([gpupool("a", **ON)], {"gpupool": "gone"}, False),
    ],
)
def test_dra_is_on_by_the_pods_annotation_and_else_by_its_pool(
    pools: list[Json], annotations: dict[str, str], *, is_on: bool
) -> None:
    verdict = Cluster(*pools).pod(**AMOUNTS, **annotations)

    assert (verdict.changed is not None) is is_on
    assert not verdict.errors


def test_a_pool_turns_dra_on_by_its_scheduling_config_template() -> None:
    cluster = Cluster(gpupool("a", schedulingConfigTemplate="on"))
    cluster.templates.told = [{"metadata": {"name": "on"}, "spec": {"dra": {"enable": True}}}]

    assert cluster.pod(gpupool="a", **AMOUNTS).changed is not None


def test_the_pool_that_was_chosen_is_written_back() -> None:
    verdict = Cluster(gpupool("b", default=True)).pod(dra_enabled="true", **AMOUNTS)

    assert verdict.changed is not None
    annotations = verdict.changed["metadata"]["annotations"]
    assert annotations["tensor-fusion.ai/gpupool"] == "b"


@pytest.mark.parametrize(
    "document",
    [
        pod({}),
        pod({"example.com/a": "b"}),
        pod(said(gpupool="a", qos="high")),
        pod(said(dra_enabled="false", vram_request="nonsense")),
    ],
)
def test_a_pod_that_asks_for_nothing_is_left_alone_even_while_nothing_is_known(
    document: Json,
) -> None:
    cluster = Cluster()
    cluster.pools.error = RetryableError("not listed yet")

    assert cluster.admission.pod(asked(document)) is PASSED


def test_every_error_of_a_pod_is_told_at_once() -> None:
    cluster = Cluster(gpupool("a"))
    document = pod(
        said(dra_enabled="true", gpupool="b", qos="best", vram_request="x", inject_container="y")
    )
    document["spec"]["containers"][0]["env"] = [{"name": "TF_SHM_FILE"}]

    found = errors(cluster.admission.pod(asked(document)))

    assert [text.partition(":")[0] for text in found] == [
        "metadata.annotations[tensor-fusion.ai/vram-request]",
        "metadata.annotations[tensor-fusion.ai/qos]",
        "metadata.annotations[tensor-fusion.ai/gpupool]",
        "metadata.annotations[tensor-fusion.ai/inject-container]",
    ]


def test_a_pool_that_is_not_there_is_told_with_those_that_are() -> None:
    verdict = Cluster(gpupool("a")).pod(dra_enabled="true", gpupool="b", **AMOUNTS)

    assert errors(verdict) == [
        "metadata.annotations[tensor-fusion.ai/gpupool]: found 'b', expected a GPUPool such as a"
    ]


def test_errors_of_a_pod_for_which_dra_is_off_are_not_ours_to_tell() -> None:
    assert Cluster(gpupool("a")).pod(gpupool="a", vram_request="x") is PASSED


def test_a_pod_waits_until_pools_are_known() -> None:
    cluster = Cluster()
    cluster.pools.error = RetryableError("gpupools: not listed by the API server yet")

    verdict = cluster.pod(dra_enabled="true", **AMOUNTS)

    assert verdict.code == 503
    assert errors(verdict) == ["gpupools: not listed by the API server yet"]


def test_without_tensor_fusions_definitions_a_pod_names_the_pool_of_its_nodes() -> None:
    cluster = Cluster()
    cluster.pools.error = cluster.templates.error = InputError("no such resource")

    verdict = cluster.pod(dra_enabled="true", gpupool="default", **AMOUNTS)

    assert verdict.changed is not None


@pytest.mark.parametrize("operation", ["UPDATE", "DELETE", "CONNECT"])
def test_only_new_pods_and_claims_are_changed(operation: str) -> None:
    cluster = Cluster()
    cluster.pods.stored["uid-train"] = pod(said(**AMOUNTS))
    document = pod(said(dra_enabled="true", **AMOUNTS))

    assert cluster.admission.pod(asked(document, operation=operation)) is PASSED
    assert cluster.admission.claim(asked(claim(), operation=operation)) is PASSED


def test_a_claim_is_filled_with_what_its_pod_asks_for() -> None:
    verdict = Cluster().claim(dra_enabled="true", gpupool="default", **AMOUNTS)

    assert requests(verdict) == {"tflops": "100", "vram": "16Gi"}


@pytest.mark.parametrize(
    ("pools", "virtual", "expected"),
    [
        ([], False, "vram"),
        ([], True, "virtual_vram"),
        ([gpupool("a")], True, "vram"),
        ([gpupool("a", capacityConfig={"oversubscription": {}})], False, "virtual_vram"),
    ],
)
def test_the_amounts_are_those_that_the_pools_cards_divide(
    pools: list[Json], *, virtual: bool, expected: str
) -> None:
    verdict = Cluster(*pools, virtual=virtual).claim(gpupool="a", vram_request="16Gi")

    assert requests(verdict) == {expected: "16Gi"}


def test_a_claim_of_a_pod_without_annotations_stays_as_its_template_has_it() -> None:
    assert Cluster().claim() is PASSED


def test_a_claim_without_the_label_is_left_alone() -> None:
    document = claim()
    document["metadata"]["labels"] = {}

    assert Cluster().admission.claim(asked(document)) is PASSED


def test_a_claim_whose_pod_is_gone_is_refused() -> None:
    verdict = Cluster().admission.claim(asked(claim()))

    assert errors(verdict) == [
        "metadata.ownerReferences: found no pod team-a/train of UID uid-train, "
        "expected the pod that the claim is for"
    ]


def test_a_claim_for_no_pod_is_refused() -> None:
    document = claim()
    document["metadata"]["ownerReferences"] = []

    (error,) = errors(Cluster().admission.claim(asked(document)))

    assert error.startswith("metadata.ownerReferences: found no owner of kind Pod")


def test_a_claim_waits_for_its_pod_to_be_readable() -> None:
    cluster = Cluster()
    cluster.pods.error = RetryableError("pod team-a/train: no answer")

    assert cluster.admission.claim(asked(claim())).code == 503


@pytest.mark.parametrize(
    ("pool", "annotations", "error"),
    [
        (gpupool("a"), {"vram_request": "x"}, "pod team-a/train: metadata.annotations["),
        (gpupool("a"), {"gpupool": "b", **AMOUNTS}, "pod team-a/train: found 'b', expected"),
        (
            gpupool("a", qosConfig={"defaultQoS": "best"}),
            {"gpupool": "a", **AMOUNTS},
            "pod team-a/train: GPUPool a: spec.qosConfig.defaultQoS",
        ),
    ],
)
def test_a_claim_that_cannot_be_filled_says_why(
    pool: Json, annotations: dict[str, str], error: str
) -> None:
    (found,) = errors(Cluster(pool).claim(**annotations))

    assert found.startswith(error)


def test_parameters_are_checked_when_they_are_written_and_changed() -> None:
    opaque = {"driver": "tensor-fusion.ai.dra-driver", "parameters": {"kind": "GpuShare"}}
    document = claim()
    document["spec"]["devices"]["config"] = [{"opaque": opaque}]
    admission = Cluster().admission

    created = admission.parameters(asked(document))
    changed = admission.parameters(asked(document, operation="UPDATE", old=claim()))
    kept = admission.parameters(asked(document, operation="UPDATE", old=document))

    assert len(created.errors) == len(changed.errors) == 1
    assert kept is PASSED


@pytest.mark.parametrize("enforces_hard", [False, True])
def test_hard_isolation_is_taken_where_the_enforcer_brings_a_limiter_for_it(
    *, enforces_hard: bool
) -> None:
    cluster = Cluster(enforces_hard=enforces_hard)
    parameters = {
        "apiVersion": "tensor-fusion.ai/v1alpha1",
        "kind": "GpuShare",
        "isolation": "hard",
    }
    config = [{"opaque": {"driver": "tensor-fusion.ai.dra-driver", "parameters": parameters}}]

    of_pod = cluster.pod(dra_enabled="true", isolation="hard", **AMOUNTS)
    of_claim = cluster.admission.parameters(asked(claim(devices={"config": config})))

    assert [bool(verdict.errors) for verdict in (of_pod, of_claim)] == [not enforces_hard] * 2


A100, T4 = ("A100", "312"), ("T4", "65")


@pytest.mark.parametrize("virtual", [False, True])
def test_percents_of_compute_become_tflops_of_the_pool_s_gpus(*, virtual: bool) -> None:
    cluster = Cluster(virtual=virtual)
    cluster.slices.slices = [published(A100, pool="a"), published(T4, pool="b")]
    percents = {"compute_percent_request": "25", "compute_percent_limit": "50"}

    of_pod = cluster.pod(dra_enabled="true", gpupool="a", vram_request="8Gi", **percents)
    of_claim = cluster.claim(dra_enabled="true", gpupool="a", vram_request="8Gi", **percents)

    assert of_pod.changed is not None
    annotations = of_pod.changed["metadata"]["annotations"]
    assert annotations["tensor-fusion.ai/tflops-request"] == "78"
    assert annotations["tensor-fusion.ai/tflops-limit"] == "156"
    prefix = "virtual_" if virtual else ""
    assert requests(of_claim) == {f"{prefix}tflops": "78", f"{prefix}vram": "8Gi"}


def test_a_pod_that_was_admitted_needs_no_slices_for_its_claim() -> None:
    cluster = Cluster()
    cluster.slices.slices = [published(A100)]
    of_pod = cluster.pod(dra_enabled="true", compute_percent_request="25")
    assert of_pod.changed is not None
    cluster.slices.slices = [published(A100, T4)]

    again = cluster.admission.pod(asked(dict(of_pod.changed)))
    cluster.pods.stored["uid-train"] = dict(of_pod.changed)
    of_claim = cluster.admission.claim(asked(claim()))

    assert again.changed == of_pod.changed
    assert requests(of_claim) == {"tflops": "78"}
    assert cluster.slices.reads == 1


def test_percents_of_gpus_that_differ_are_refused_with_what_to_name() -> None:
    cluster = Cluster()
    cluster.slices.slices = [published(A100, T4)]

    (found,) = errors(cluster.pod(dra_enabled="true", compute_percent_request="25"))

    assert found == (
        "metadata.annotations[tensor-fusion.ai/compute-percent-request]: found T4 of 65 TFLOPS, "
        "A100 of 312 TFLOPS, expected one kind of GPU (tensor-fusion.ai/gpu-model), "
        "or tensor-fusion.ai/tflops-request instead of a percentage"
    )
    cluster.slices.error = RetryableError("no answer")
    assert cluster.pod(dra_enabled="true", compute_percent_request="25").code == 503


def test_only_pods_that_ask_in_percent_have_slices_read() -> None:
    cluster = Cluster()

    cluster.pod(dra_enabled="true", **AMOUNTS)
    cluster.pod(dra_enabled="true", compute_percent_request="25", tflops_request="100")
    cluster.claim(dra_enabled="true", **AMOUNTS)

    assert cluster.slices.reads == 0


def test_shared_isolation_needs_no_amounts_and_gives_whole_gpus() -> None:
    cluster = Cluster()
    found = claim()
    capacity = {"requests": {"vram": "1Gi", "tensor-fusion.ai.dra-driver/tflops": "1"}}
    found["spec"]["devices"]["requests"][0]["exactly"]["capacity"] = capacity

    of_pod = cluster.pod(dra_enabled="true", isolation="shared", gpu_count="1")
    cluster.pods.stored["uid-train"] = pod(said(dra_enabled="true", isolation="shared"))
    of_claim = cluster.admission.claim(asked(found))

    assert not of_pod.errors
    assert of_claim.changed is not None
    assert "capacity" not in of_claim.changed["spec"]["devices"]["requests"][0]["exactly"]
    assert of_claim.changed["metadata"]["annotations"]["tensor-fusion.ai/isolation"] == "shared"


def test_partitioned_isolation_is_refused_with_the_ways_to_go() -> None:
    (found,) = errors(Cluster().pod(dra_enabled="true", isolation="partitioned", gpu_count="1"))

    assert found == (
        "metadata.annotations[tensor-fusion.ai/isolation]: found 'partitioned', expected one of "
        "soft, hard, shared (cards are not partitioned by this driver: soft divides a card by "
        "limits, shared gives whole cards, and MIG devices come from NVIDIA's own driver for "
        "Kubernetes)"
    )


def test_hard_isolation_is_taken_in_a_pool_that_sets_it() -> None:
    rules = [{"mode": "hard", "selector": {"matchLabels": {"type": "p5"}}}]
    cluster = Cluster(gpupool("a", nodeManagerConfig={"isolationModeRules": rules}), gpupool("b"))
    asks = {"dra_enabled": "true", "isolation": "hard", **AMOUNTS}

    assert not cluster.pod(gpupool="a", **asks).errors
    assert cluster.pod(gpupool="b", **asks).errors


@pytest.mark.parametrize(
    ("annotations", "is_refused"),
    [({"dra_enabled": "true"}, True), ({"dra_enabled": "false"}, False), ({}, False)],
)
def test_a_pod_with_tensor_fusion_s_own_label_is_left_to_it_unless_dra_is_on(
    annotations: dict[str, str], *, is_refused: bool
) -> None:
    document = pod(said(**AMOUNTS, **annotations))
    document["metadata"]["labels"] = {"tensor-fusion.ai/enabled": "true"}

    verdict = Cluster().admission.pod(asked(document))

    assert bool(verdict.errors) is is_refused
    assert verdict.changed is None
