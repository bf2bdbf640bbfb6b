"""Admission of pods and of the claims that are made for them."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tensorfusion_dra.app.doctor.objects import trial_pod
from tensorfusion_dra.core.admission import pod_request
from tensorfusion_dra.core.admission.dialects import Dialect
from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.core.kubernetes.review import PASSED, Verdict
from tensorfusion_dra.webhook.admission import AdmissionRules
from tests.support.admission import (
    Json,
    ObjectsInMemory,
    PodsInMemory,
    PrioritiesInMemory,
    SlicesInMemory,
    review_of,
)
from tests.support.builders.classes import share_class
from tests.support.builders.gpupools import gpupool_document
from tests.support.builders.pods import pod_annotations, pod_document
from tests.support.builders.quotas import quota_document
from tests.support.builders.slices import slice_of_models
from tests.support.builders.stored_claims import template_claim
from tests.support.hostile_selectors import LISTS

AMOUNTS: Any = {"tflops_request": "100", "vram_request": "16Gi"}
ON: Any = {"draConfig": {"enable": True}}
QUARTER = share_class("gpu-quarter", requests={"tflops": "78", "vram": "20Gi"})
A100, T4 = ("A100", "312"), ("T4", "65")


class Cluster:
    """The cluster as the webhook sees it, with the webhook's rules."""

    def __init__(
        self,
        *pools: Json,
        slices: Sequence[Json] = (),
        virtual: bool = False,
        enforces_hard: bool = False,
        has_crd: bool = True,
    ) -> None:
        enabling = {"metadata": {"name": "on"}, "spec": {"dra": {"enable": True}}}
        self.pools, self.templates = ObjectsInMemory(*pools), ObjectsInMemory(enabling)
        if not has_crd:
            self.pools.error = self.templates.error = InputError("no such resource")
        self.pods = PodsInMemory()
        self.slices = SlicesInMemory(*slices)
        self.quotas = ObjectsInMemory()
        self.priorities = PrioritiesInMemory("tensor-fusion-high", "tensor-fusion-medium")
        self.classes = ObjectsInMemory(QUARTER)
        self.splits = False
        self.admission = AdmissionRules(
            pools=self.pools,
            templates=self.templates,
            pods=self.pods,
            slices=self.slices,
            quotas=self.quotas,
            has_priority_class=self.priorities.exists,
            classes=self.classes,
            keeps_cards_apart=lambda _: not self.splits,
            scheduler="default-scheduler",
            virtual=virtual,
            enforces_hard=enforces_hard,
        )

    def pod(self, **annotations: str) -> Verdict:
        return self.admission.pod(review_of(pod_document(pod_annotations(**annotations))))

    def claim(self, **annotations: str) -> Verdict:
        self.pods.stored["uid-train"] = pod_document(pod_annotations(**annotations))
        return self.admission.claim(review_of(template_claim()))

    def claim_of(self, admitted: Verdict) -> Verdict:
        """Store an admitted pod; return the verdict on the claim that is made for it."""
        assert admitted.changed is not None
        self.pods.stored["uid-train"] = dict(admitted.changed)
        return self.admission.claim(review_of(template_claim()))


def errors(verdict: Verdict) -> list[str]:
    return [str(error) for error in verdict.errors]


def requests(verdict: Verdict) -> Json:
    assert verdict.changed is not None
    found: Json = verdict.changed["spec"]["devices"]["requests"][0]["exactly"]
    return dict(found["capacity"]["requests"])


def test_doctors_trial_pod_gets_a_claim_whatever_its_pool() -> None:
    for pools in ([], [gpupool_document("a", default=True)]):
        verdict = Cluster(*pools).admission.pod(review_of(dict(trial_pod("default"))))

        assert verdict.changed is not None
        assert verdict.changed["spec"]["resourceClaims"]


def published(*pools: str) -> list[Json]:
    return [{"spec": {"pool": {"name": f"{pool}/node-{i}"}}} for i, pool in enumerate(pools)]


A, B_DEFAULT = gpupool_document("a"), gpupool_document("b", default=True)
A_ON, B_DEFAULT_ON = gpupool_document("a", **ON), gpupool_document("b", default=True, **ON)
BY_TEMPLATE = gpupool_document("a", schedulingConfigTemplate="on")


@pytest.mark.parametrize(
    ("cluster", "annotations", "is_on"),
    [
        (Cluster(A_ON), {"gpupool": "a"}, True),
        (Cluster(A), {"gpupool": "a"}, False),
        (Cluster(A), {"gpupool": "a", "dra_enabled": "true"}, True),
        (Cluster(A_ON), {"gpupool": "a", "dra_enabled": "false"}, False),
        (Cluster(A_ON, B_DEFAULT), {}, False),
        (Cluster(A, B_DEFAULT_ON), {}, True),
        (Cluster(BY_TEMPLATE), {"gpupool": "a"}, True),
        # Nodes whose pool is set beside the GPUPools.
        (Cluster(B_DEFAULT_ON, slices=published("default")), {}, True),
        (Cluster(), {}, False),
        (Cluster(A_ON), {}, False),
        (Cluster(A_ON), {"gpupool": "gone"}, False),
        # Without DRA, errors do not matter.
        (Cluster(A), {"gpupool": "a", "vram_request": "x"}, False),
        # Without the CRD of GPUPools, a pod may name its nodes' pool.
        (Cluster(has_crd=False), {"gpupool": "default", "dra_enabled": "true"}, True),
    ],
)
def test_pods_annotation_overrides_its_pools_dra_setting(
    cluster: Cluster, annotations: dict[str, str], *, is_on: bool
) -> None:
    verdict = cluster.pod(**{**AMOUNTS, **annotations})

    assert (verdict.changed is not None) is is_on
    assert not verdict.errors


def test_chosen_pool_is_written_into_the_pod() -> None:
    verdict = Cluster(gpupool_document("b", default=True)).pod(dra_enabled="true", **AMOUNTS)

    assert verdict.changed is not None
    annotations = verdict.changed["metadata"]["annotations"]
    assert annotations["tensor-fusion.ai/gpupool"] == "b"


@pytest.mark.parametrize(
    "document",
    [
        pod_document({}),
        pod_document({"example.com/a": "b"}),
        pod_document(pod_annotations(gpupool="a", qos="high")),
        pod_document(pod_annotations(dra_enabled="false", vram_request="nonsense")),
    ],
)
def test_pod_without_a_request_passes_even_if_pools_are_unknown(
    document: Json,
) -> None:
    cluster = Cluster()
    cluster.pools.error = RetryableError("not listed yet")

    assert cluster.admission.pod(review_of(document)) is PASSED


def test_all_errors_of_a_pod_are_reported_at_once() -> None:
    cluster = Cluster(gpupool_document("a"))
    document = pod_document(
        pod_annotations(
            dra_enabled="true", gpupool="b", qos="best", vram_request="x", inject_container="y"
        )
    )
    document["spec"]["containers"][0]["env"] = [{"name": "TF_SHM_FILE"}]

    found = errors(cluster.admission.pod(review_of(document)))

    assert [text.partition(":")[0] for text in found] == [
        "metadata.annotations[tensor-fusion.ai/vram-request]",
        "metadata.annotations[tensor-fusion.ai/qos]",
        "metadata.annotations[tensor-fusion.ai/gpupool]",
        "metadata.annotations[tensor-fusion.ai/inject-container]",
    ]


def test_translated_pod_gets_the_claim_that_its_words_ask_for() -> None:
    cluster = Cluster(slices=[slice_of_models(A100, T4)])
    document = pod_document({"nvidia.com/use-gputype": "a100", "nvidia.com/numa-bind": "true"})
    (container,) = document["spec"]["containers"]
    container["resources"] = {"limits": {"nvidia.com/gpumem-percentage": "25"}}

    translated = cluster.admission.dialect(Dialect.HAMI, review_of(document))
    assert translated.changed is not None
    filled = cluster.claim_of(cluster.admission.pod(review_of(dict(translated.changed))))

    assert requests(filled) == {"tflops": "78", "vram": "20Gi"}
    assert filled.changed is not None
    (request,) = filled.changed["spec"]["devices"]["requests"]
    assert '.contains("A100")' in request["exactly"]["selectors"][-1]["cel"]["expression"]
    assert [text.partition(":")[0] for text in translated.warnings] == [
        *("nvidia.com/use-gputype", "nvidia.com/numa-bind", "nvidia.com/gpumem-percentage", "hami")
    ]
    assert cluster.admission.dialect(Dialect.HAMI, review_of(dict(translated.changed))) is PASSED


def test_pod_whose_words_cannot_be_said_is_refused() -> None:
    document = pod_document({"gpu-fraction": "2"})
    document["spec"]["containers"] = [
        {"name": name, "resources": {"limits": {"nvidia.com/gpu": "2"}}} for name in "ab"
    ]

    found = errors(Cluster().admission.dialect(Dialect.KAI, review_of(document)))

    assert found == [
        "metadata.annotations[gpu-fraction]: found '2', expected more than 0 and less than 1",
        "spec: found amounts for containers a, b, expected one GPU for each: a container with a "
        "share of its own names one request",
    ]


def test_models_in_order_of_preference_become_alternatives_of_each_card() -> None:
    slices = [slice_of_models(A100, T4)]
    annotations = {"gpu_model": "A100,T4", "gpu_count": "2", "compute_percent_request": "20"}
    cluster = Cluster(slices=slices)
    filled = cluster.claim_of(
        cluster.pod(dra_enabled="true", vram_request="4Gi", **annotations)
    ).changed

    assert filled is not None
    devices = filled["spec"]["devices"]
    both = ["gpu-request", "gpu-request-2"]
    assert [request["name"] for request in devices["requests"]] == both
    for request in devices["requests"]:
        assert [
            (each["name"], each["count"], each["capacity"]["requests"])
            for each in request["firstAvailable"]
        ] == [
            ("choice-1", 1, {"tflops": "62400m", "vram": "4Gi"}),
            ("choice-2", 1, {"tflops": "13", "vram": "4Gi"}),
        ]
    assert devices["constraints"] == [
        {"requests": both, "distinctAttribute": "tensor-fusion.ai.dra-driver/uuid"},
        {"requests": both, "matchAttribute": "tensor-fusion.ai.dra-driver/model"},
    ]


def test_percentages_of_several_models_stay_percentages_in_the_pod() -> None:
    cluster = Cluster(slices=[slice_of_models(T4)])
    request = {"gpu_model": "H100,T4", "compute_percent_request": "20"}

    admitted = cluster.pod(dra_enabled="true", vram_request="4Gi", **request)

    assert admitted.changed is not None
    assert "tensor-fusion.ai/tflops-request" not in admitted.changed["metadata"]["annotations"]


@pytest.mark.parametrize("named", ["", "default"])
@pytest.mark.parametrize("is_default", [True, False])
def test_pod_gets_gpus_of_nodes_whose_pool_is_set_beside_gpupools(
    named: str, is_default: bool
) -> None:
    """Node plugins with pool-source=settings, in a cluster with a GPUPool of another name."""
    cluster = Cluster(
        gpupool_document("prod", default=is_default), slices=published("default", "default")
    )
    asks = {"dra_enabled": "true", **AMOUNTS, **({"gpupool": named} if named else {})}

    pod, claim = cluster.pod(**asks), cluster.claim(**asks)

    assert (pod.errors, claim.errors, list(pod.warnings)) == ((), (), [])
    assert pod.changed is not None
    assert pod.changed["metadata"]["annotations"].get("tensor-fusion.ai/gpupool", "") == named
    assert "prod" not in str(claim.changed)
    assert ('== "default"' in str(claim.changed)) is bool(named)


@pytest.mark.parametrize(
    ("namespace", "asks", "amounts"),
    [
        ("team-a", {}, {"tflops": "10", "vram": "2Gi"}),
        ("team-a", {"vram_request": "4Gi"}, {"tflops": "10", "vram": "4Gi"}),
        ("team-a", {"dedicated_gpu": "true"}, None),
        ("team-b", {"vram_request": "4Gi"}, {"vram": "4Gi"}),
    ],
)
def test_amounts_that_a_pod_does_not_name_come_from_its_namespaces_quota(
    namespace: str, asks: dict[str, str], amounts: Json | None
) -> None:
    cluster = Cluster()
    single = {"defaultRequests": {"tflops": "10", "vram": "2Gi"}}
    cluster.quotas.listed = [quota_document(single=single)]
    document = pod_document(pod_annotations(dra_enabled="true", **asks))
    document["metadata"]["namespace"] = namespace

    verdict = cluster.admission.pod(review_of(document))
    filled = cluster.claim_of(verdict).changed

    assert filled is not None
    exactly = filled["spec"]["devices"]["requests"][0]["exactly"]
    assert exactly.get("capacity", {}).get("requests") == amounts
    assert not any("amounts are ignored" in text for text in verdict.warnings)


FILLED: Any = {"priority": 0, "preemptionPolicy": "PreemptLowerPriority"}
OWN: Any = {"priorityClassName": "own", "priority": 5, "preemptionPolicy": "Never"}


@pytest.mark.parametrize(
    ("qos", "filled", "expected"),
    [
        ("high", FILLED, {"priorityClassName": "tensor-fusion-high"}),
        ("high", {}, {"priorityClassName": "tensor-fusion-high"}),
        ("high", OWN, OWN),
        ("critical", FILLED, FILLED),  # no such class
        ("medium", FILLED, FILLED),
    ],
)
def test_pod_of_high_qos_that_names_no_priority_class_gets_tensor_fusions(
    qos: str, filled: Json, expected: Json
) -> None:
    asks = pod_annotations(dra_enabled="true", qos=qos, **AMOUNTS)

    verdict = Cluster().admission.pod(review_of(pod_document(asks, **filled)))

    assert verdict.changed is not None
    spec = verdict.changed["spec"]
    fields = ("priorityClassName", "priority", "preemptionPolicy")
    assert {name: spec[name] for name in fields if name in spec} == expected


def test_a_pod_with_amounts_that_nothing_enables_is_warned_of_and_left_alone() -> None:
    off = pod_document(pod_annotations(tflops_request="100", vram_request="16Gi"))
    theirs = pod_document(pod_annotations(tflops_request="100", vram_request="16Gi"))
    theirs["metadata"]["labels"] = {"tensor-fusion.ai/enabled": "true"}

    for pools in ([], [gpupool_document("b", default=True)]):
        verdict = Cluster(*pools).admission.pod(review_of(off))

        assert (verdict.changed, errors(verdict)) == (None, [])
        (warning,) = verdict.warnings
        assert warning == (
            "tensor-fusion.ai/tflops-request requests a GPU, but nothing enables DRA for the pod; "
            'set the annotation tensor-fusion.ai/dra-enabled: "true"'
        )
    assert Cluster().admission.pod(review_of(theirs)) == PASSED
    # The pool decides: nothing to warn of.
    decided = Cluster(gpupool_document("b", default=True, draConfig={"enable": False}))
    assert decided.admission.pod(review_of(off)) == PASSED


def test_amounts_are_enough_where_the_setting_says_so_and_nothing_decides() -> None:
    off = gpupool_document("b", default=True, draConfig={"enable": False})

    for pools, is_on in (([], True), ([B_DEFAULT], True), ([off], False)):
        cluster = Cluster(*pools)
        cluster.admission.default_enabled = True

        assert bool(cluster.pod(dra_enabled="", **AMOUNTS).changed) is False
        named = review_of(pod_document(pod_annotations(**AMOUNTS)))
        assert bool(cluster.admission.pod(named).changed) is is_on
        model = review_of(pod_document(pod_annotations(gpu_model="A100")))
        assert not cluster.admission.pod(model).changed


def test_what_the_cluster_lacks_at_present_is_warned_of_at_the_pod_and_told_of_its_claim() -> None:
    cluster = Cluster(slices=[slice_of_models(A100)])
    told: list[tuple[str, Sequence[str]]] = []
    cluster.admission.on_warnings = lambda pod, warnings: told.append((pod.name, warnings))
    cluster.admission.cards_lately = lambda: Counter(pod_request.cards(cluster.slices.slices))
    cluster.admission.templates_lately = lambda: {"team-b"}

    admitted = cluster.pod(dra_enabled="true", gpu_model="H100", **AMOUNTS)
    model, template = (
        "tensor-fusion.ai/gpu-model: found H100, but the cards have A100 (1) at present",
        "namespace team-a has no ResourceClaimTemplate tensor-fusion-gpu-template, so the pod "
        "waits for its claim",
    )

    assert admitted.warnings == [template, model]
    assert told == []
    assert cluster.claim_of(admitted).changed
    assert told == [("train", [template, model])]
    assert cluster.slices.reads == 0


def test_a_dry_run_tells_nobody_and_neither_does_a_pod_without_a_warning() -> None:
    cluster = Cluster(slices=[slice_of_models(A100)])
    told: list[str] = []
    cluster.admission.on_warnings = lambda pod, _warnings: told.append(pod.name)
    cluster.admission.cards_lately = lambda: Counter(pod_request.cards(cluster.slices.slices))
    cluster.claim_of(cluster.pod(dra_enabled="true", **AMOUNTS))
    wrong = cluster.pod(dra_enabled="true", gpu_model="H100", **AMOUNTS)
    assert wrong.changed is not None
    cluster.pods.stored["uid-train"] = dict(wrong.changed)

    cluster.admission.claim(replace(review_of(template_claim()), dry_run=True))

    assert told == []


def test_pods_without_dra_cost_no_read_of_the_slices() -> None:
    cluster = Cluster(gpupool_document("prod", default=True), slices=published("prod"))

    cluster.pod(**AMOUNTS)
    assert cluster.slices.reads == 0
    cluster.pod(dra_enabled="true", **AMOUNTS)
    assert cluster.slices.reads == 1


@pytest.mark.parametrize(
    ("source", "unavailable"),
    [
        ("pools", [True, True]),
        ("slices", [True, True]),
        ("pods", [False, True]),
        ("priorities", [True, False]),
        ("quotas", [True, False]),
    ],
)
def test_pod_and_claim_wait_for_what_cannot_be_read_at_present(
    source: str, unavailable: list[bool]
) -> None:
    cluster = Cluster(slices=[slice_of_models(A100)])
    getattr(cluster, source).error = RetryableError("no answer")
    asks = {"dra_enabled": "true", "compute_percent_request": "25", "qos": "high"}

    verdicts = [cluster.pod(**asks), cluster.claim(**asks)]

    assert [verdict.code == 503 for verdict in verdicts] == unavailable
    assert [errors(verdict) == ["no answer"] for verdict in verdicts] == unavailable


@pytest.mark.parametrize(
    ("annotation", "text", "error"),
    [
        ("dra-cel-expression", "device.nosuch == 'x'", "1:7: undefined field 'nosuch'"),
        ("dra-cel-expression", "true &&\n'a'.matches('(')", "2:13: invalid regular expression"),
        (
            "dra-cel-expression",
            'device.attributes["model"] == 5',
            "1:56: found no matching overload for '_==_'",
        ),
        ("dra-cel-expression", "device.driver", "must evaluate to bool or the unknown type"),
        ("dra-cel-expression", "true //" + "x" * 10_240, "1:1: found 10247 bytes"),
        ("dra-cel-expression", "[" * 100, "1:61: found nesting more than 60 levels deep"),
        ("dra-cel-filter", LISTS, "1:198: found more than 20000 steps to evaluate"),
        ("compute-percent-request", "25", "found T4 of 65 TFLOPS, A100 of 312 TFLOPS, expected"),
    ],
)
def test_what_no_claim_can_have_is_refused_at_the_pod(
    annotation: str, text: str, error: str
) -> None:
    cluster = Cluster(slices=[slice_of_models(A100, T4)])

    (found,) = errors(cluster.pod(dra_enabled="true", vram_request="8Gi", **{annotation: text}))

    assert found.startswith(f"metadata.annotations[tensor-fusion.ai/{annotation}]: {error}")


def test_hard_isolation_is_accepted_in_a_pool_that_sets_it() -> None:
    rules = [{"mode": "hard", "selector": {"matchLabels": {"type": "p5"}}}]
    cluster = Cluster(
        gpupool_document("a", nodeManagerConfig={"isolationModeRules": rules}),
        gpupool_document("b"),
    )
    asks = {"dra_enabled": "true", "isolation": "hard", **AMOUNTS}

    assert not cluster.pod(gpupool="a", **asks).errors
    assert cluster.pod(gpupool="b", **asks).errors


@pytest.mark.parametrize(
    ("annotations", "refused"),
    [({"dra_enabled": "true"}, ["found true"]), ({"dra_enabled": "false"}, []), ({}, [])],
)
def test_pod_with_tensor_fusions_label_passes_unless_dra_is_on(
    annotations: dict[str, str], refused: list[str]
) -> None:
    document = pod_document(pod_annotations(**AMOUNTS, **annotations))
    document["metadata"]["labels"] = {"tensor-fusion.ai/enabled": "true"}

    verdict = Cluster().admission.pod(review_of(document))

    assert verdict.changed is None
    assert [text.partition(",")[0] for text in errors(verdict)] == [
        f"metadata.labels[tensor-fusion.ai/enabled]: {text}" for text in refused
    ]


@pytest.mark.parametrize("operation", ["UPDATE", "DELETE", "CONNECT"])
def test_only_new_pods_and_claims_are_mutated(operation: str) -> None:
    cluster = Cluster()
    cluster.pods.stored["uid-train"] = pod_document(pod_annotations(**AMOUNTS))
    document = pod_document(pod_annotations(dra_enabled="true", **AMOUNTS))

    assert cluster.admission.pod(review_of(document, operation=operation)) is PASSED
    assert cluster.admission.claim(review_of(template_claim(), operation=operation)) is PASSED


@pytest.mark.parametrize(
    ("pools", "virtual", "expected"),
    [
        ([], False, "vram"),
        ([], True, "virtual_vram"),
        ([gpupool_document("a")], True, "vram"),
        ([gpupool_document("a", capacityConfig={"oversubscription": {}})], False, "virtual_vram"),
    ],
)
def test_claim_requests_virtual_amounts_if_the_pool_divides_them(
    pools: list[Json], *, virtual: bool, expected: str
) -> None:
    verdict = Cluster(*pools, virtual=virtual).claim(gpupool="a", **AMOUNTS)

    assert requests(verdict)[expected] == "16Gi"
    assert len(requests(verdict)) == 2


def test_claim_without_the_label_or_of_a_pod_without_annotations_is_unchanged() -> None:
    document = template_claim()
    document["metadata"]["labels"] = {"tensor-fusion.ai/resource-claim-template": "false"}

    assert Cluster().admission.claim(review_of(document)) is PASSED
    assert Cluster().claim() is PASSED


def of_class(name: str = "gpu-quarter", *, labelled: bool = False, count: int = 1) -> Json:
    """Return a claim of a class that names no amounts, as it is made from a template."""
    document = template_claim()
    if not labelled:
        del document["metadata"]["labels"]
    document["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": "gpu"}
    exactly = document["spec"]["devices"]["requests"][0]["exactly"]
    exactly |= {"deviceClassName": name, "count": count}
    return document


def test_claim_of_a_class_gets_the_amounts_that_the_class_names() -> None:
    cluster = Cluster()

    assert requests(cluster.admission.claim(review_of(of_class()))) == {
        "tflops": "78",
        "vram": "20Gi",
    }
    assert cluster.admission.claim(review_of(of_class(), operation="UPDATE")) is PASSED


def test_claim_of_a_class_that_a_pod_fills_gets_what_the_pod_leaves_open() -> None:
    cluster = Cluster()
    for annotations, expected in (
        ({"vram_request": "1Gi"}, {"tflops": "78", "vram": "1Gi"}),
        ({}, {"tflops": "78", "vram": "20Gi"}),
    ):
        cluster.pods.stored["uid-train"] = pod_document(pod_annotations(**annotations))
        verdict = cluster.admission.claim(review_of(of_class(labelled=True)))
        assert requests(verdict) == expected


@pytest.mark.parametrize(
    ("device_class", "code", "text"),
    [
        (None, 503, "found no DeviceClass gpu-quarter with valid parameters"),
        (
            share_class("gpu-quarter", requests={"vram": "many"}),
            503,
            "found no DeviceClass gpu-quarter with valid parameters",
        ),
        (
            share_class("gpu-quarter", requests={"vram": "1Gi"}, overridable=False),
            422,
            "spec.devices.requests: request gpu-request: found vram: 2Gi, expected 1Gi",
        ),
    ],
)
def test_claim_that_its_class_cannot_fill_is_refused(
    device_class: Json | None, code: int, text: str
) -> None:
    cluster = Cluster()
    cluster.classes.listed = [device_class] if device_class else []
    document = of_class()
    exactly = document["spec"]["devices"]["requests"][0]["exactly"]
    exactly["capacity"] = {"requests": {"vram": "2Gi"}}

    verdict = cluster.admission.claim(review_of(document))

    assert verdict.code == code
    assert errors(verdict)[0].removeprefix(": ").startswith(text)


@pytest.mark.parametrize("uses", [{"name": "gpu"}, {"name": "gpu", "request": "gpu-request"}, None])
def test_claim_for_several_cards_is_split_unless_a_container_names_its_request(
    uses: Json | None,
) -> None:
    cluster = Cluster()
    cluster.splits = True
    document = of_class(count=2)
    if uses is None:
        del document["metadata"]["ownerReferences"]
    else:
        pod = pod_document({})
        pod["spec"]["containers"][0]["resources"] = {"claims": [uses]}
        cluster.pods.stored["uid-train"] = pod

    verdict = cluster.admission.claim(review_of(document))

    if uses and "request" in uses:
        (error,) = errors(verdict)
        assert error.startswith("pod spec.containers[0].resources.claims[0].request: found gpu-")
    else:
        assert verdict.changed is not None
        found = verdict.changed["spec"]["devices"]["requests"]
        assert [each["name"] for each in found] == ["gpu-request", "gpu-request-2"]


@pytest.mark.parametrize("named", [{"vram": "much"}, {"vram": 5}, {"tflops": ["x"]}])
def test_amount_that_no_api_server_sends_is_refused(named: Any) -> None:
    cluster = Cluster()
    cluster.classes.listed = [
        share_class("gpu-quarter", requests={"vram": "1Gi"}, overridable=False)
    ]
    document = of_class()
    document["spec"]["devices"]["requests"][0]["exactly"] |= {
        "count": "many",
        "capacity": {"requests": named},
    }

    assert errors(cluster.admission.claim(review_of(document)))


def test_claim_waits_for_classes_that_are_not_known_yet() -> None:
    cluster = Cluster()
    cluster.classes.error = RetryableError("not listed yet")

    assert cluster.admission.claim(review_of(of_class())).code == 503


def test_claim_of_a_missing_pod_is_refused() -> None:
    verdict = Cluster().admission.claim(review_of(template_claim()))

    assert errors(verdict) == [
        "metadata.ownerReferences: found no pod team-a/train of UID uid-train, "
        "expected the pod that the claim is for"
    ]


@pytest.mark.parametrize(
    ("pool", "annotations", "error"),
    [
        (gpupool_document("a"), {"vram_request": "x"}, "pod team-a/train: metadata.annotations["),
        (
            gpupool_document("a"),
            {"gpupool": "b", **AMOUNTS},
            "pod team-a/train: found 'b', expected",
        ),
        (
            gpupool_document("a", qosConfig={"defaultQoS": "best"}),
            {"gpupool": "a", **AMOUNTS},
            "pod team-a/train: GPUPool a: spec.qosConfig.defaultQoS",
        ),
    ],
)
def test_claim_that_cannot_be_filled_is_refused_with_the_reason(
    pool: Json, annotations: dict[str, str], error: str
) -> None:
    (found,) = errors(Cluster(pool).claim(**annotations))

    assert found.startswith(error)


def test_parameters_are_checked_on_create_and_on_change() -> None:
    opaque = {"driver": "tensor-fusion.ai.dra-driver", "parameters": {"kind": "GpuShare"}}
    document = template_claim()
    document["spec"]["devices"]["config"] = [{"opaque": opaque}]
    admission = Cluster().admission

    created = admission.parameters(review_of(document))
    changed = admission.parameters(review_of(document, operation="UPDATE", old=template_claim()))
    kept = admission.parameters(review_of(document, operation="UPDATE", old=document))

    assert len(created.errors) == len(changed.errors) == 1
    assert kept == PASSED


@pytest.mark.parametrize("enforces_hard", [False, True])
def test_hard_isolation_is_accepted_if_the_enforcer_has_a_limiter_for_it(
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
    of_claim = cluster.admission.parameters(review_of(template_claim(devices={"config": config})))

    assert [bool(verdict.errors) for verdict in (of_pod, of_claim)] == [not enforces_hard] * 2


@pytest.mark.parametrize("virtual", [False, True])
def test_compute_percent_becomes_tflops_of_the_pools_gpus(*, virtual: bool) -> None:
    slices = [slice_of_models(A100, pool="a"), slice_of_models(T4, pool="b")]
    cluster = Cluster(slices=slices, virtual=virtual)
    percents = {"compute_percent_request": "25", "compute_percent_limit": "50"}

    of_pod = cluster.pod(dra_enabled="true", gpupool="a", vram_request="8Gi", **percents)
    of_claim = cluster.claim(dra_enabled="true", gpupool="a", vram_request="8Gi", **percents)

    assert of_pod.changed is not None
    annotations = of_pod.changed["metadata"]["annotations"]
    assert annotations["tensor-fusion.ai/tflops-request"] == "78"
    assert annotations["tensor-fusion.ai/tflops-limit"] == "156"
    prefix = "virtual_" if virtual else ""
    assert requests(of_claim) == {f"{prefix}tflops": "78", f"{prefix}vram": "8Gi"}


def test_claim_of_an_admitted_pod_needs_no_slices() -> None:
    cluster = Cluster(slices=[slice_of_models(A100)])
    of_pod = cluster.pod(dra_enabled="true", gpupool="default", compute_percent_request="25")
    assert of_pod.changed is not None
    cluster.slices.slices = [slice_of_models(A100, T4)]

    again = cluster.admission.pod(review_of(dict(of_pod.changed)))
    of_claim = cluster.claim_of(of_pod)

    assert again.changed == of_pod.changed
    assert requests(of_claim) == {"tflops": "78"}
    assert cluster.slices.reads == 1


BY_CONTAINER = {
    "app": {"tflops-request": "100", "vram-request": "16Gi", "vram-limit": "20Gi"},
    "log": {"tflops-request": "5", "vram-request": "2Gi"},
    "setup": "app",
}


def pod_of_containers(shares: object, **annotations: str) -> Json:
    document = pod_document(
        pod_annotations(dra_enabled="true", container_shares=json.dumps(shares), **annotations)
    )
    document["spec"]["containers"] = [{"name": name} for name in ("app", "log", "other")]
    document["spec"]["initContainers"] = [{"name": "setup"}]
    return document


def test_each_container_gets_a_request_of_its_own_in_the_pods_one_claim() -> None:
    cluster = Cluster()

    admitted = cluster.admission.pod(review_of(pod_of_containers(BY_CONTAINER, qos="high")))

    assert admitted.changed is not None
    spec = admitted.changed["spec"]
    claim = "tensor-fusion-gpu-claim"
    assert [each["name"] for each in spec["resourceClaims"]] == [claim]
    assert [
        each.get("resources", {}).get("claims")
        for each in (*spec["initContainers"], *spec["containers"])
    ] == [
        [{"name": claim, "request": "app"}],
        [{"name": claim, "request": "app"}],
        [{"name": claim, "request": "log"}],
        None,
    ]
    annotations = admitted.changed["metadata"]["annotations"]
    assert annotations["tensor-fusion.ai/inject-container"] == "setup,app,log"
    assert "tensor-fusion.ai/vram-request" not in annotations
    assert [text.partition(":")[0] for text in admitted.warnings] == [
        "tensor-fusion.ai/container-shares"
    ]
    again = cluster.admission.pod(review_of(dict(admitted.changed)))
    assert again.changed == admitted.changed

    filled = cluster.claim_of(admitted)

    assert filled.changed is not None
    devices = filled.changed["spec"]["devices"]
    assert {
        each["name"]: each["exactly"]["capacity"]["requests"] for each in devices["requests"]
    } == {"app": {"tflops": "100", "vram": "16Gi"}, "log": {"tflops": "5", "vram": "2Gi"}}
    (config,) = devices["config"]
    assert config["requests"] == ["app"]
    assert config["opaque"]["parameters"]["limits"] == {"vram": "20Gi"}
    assert {
        key: text
        for key, text in filled.changed["metadata"]["annotations"].items()
        if key.startswith("tensor-fusion.ai/")
    } == {"tensor-fusion.ai/qos": "high", "tensor-fusion.ai/tflops-limit": "0"}
    for each in devices["requests"]:
        assert "hami-core" in each["exactly"]["selectors"][-1]["cel"]["expression"]


def test_equal_shares_of_containers_run_with_every_enforcer() -> None:
    cluster, share = Cluster(), {"vram-request": "2Gi", "gpu-model": "A100,H100"}
    document = pod_of_containers({"app": share, "log": {**share}}, tflops_request="5")
    made, unique = template_claim(), "tensor-fusion.ai.dra-driver/uuid"
    made["spec"]["devices"] |= {
        "constraints": [
            {"requests": ["gpu-request"], "distinctAttribute": unique},
            {"requests": ["gpu-request", "nic"], "matchAttribute": "a/b"},
        ],
        "config": [{"requests": ["gpu-request"], "opaque": {"driver": "a"}}],
    }
    other = {"name": "nic", "exactly": {"deviceClassName": "nic"}}
    made["spec"]["devices"]["requests"].append(other)
    cluster.classes.listed = [{"metadata": {"name": "nic"}, "spec": {}}]
    cluster.pods.stored["uid-train"] = document

    filled = cluster.admission.claim(review_of(made))

    assert filled.changed is not None
    devices = filled.changed["spec"]["devices"]
    app, log, nic = devices["requests"]
    assert [len(each["firstAvailable"]) for each in (app, log)] == [2, 2]
    assert "hami-core" not in json.dumps(devices)
    assert nic == other
    assert [each["requests"] for each in devices["constraints"]] == [["app", "log", "nic"]], (
        "two containers may share a card"
    )
    assert devices["config"][0]["requests"] == ["app", "log"]


@pytest.mark.parametrize(
    ("shares", "annotations", "expected"),
    [
        ("x", {}, "container-shares]: expected an object of 1 to 32 containers"),
        ({}, {}, "container-shares]: expected an object of 1 to 32 containers"),
        ({"app": "log"}, {}, "app: found 'log', expected an object"),
        ({"app": {"qos": "high"}}, {}, "app.qos: found this field, expected one of tflops-request"),
        ({"app": {"vram-request": 5}}, {}, "app[vram-request]: found 5, expected a string"),
        ({"app": {"vram-request": "x"}}, {}, "container-shares].app: "),
        ({"app": {}}, {}, "container-shares].app: found no amount"),
        ({"app": BY_CONTAINER["log"]}, {"gpu_count": "2"}, "found it beside several GPUs"),
        ({"nobody": BY_CONTAINER["log"]}, {}, "found 'nobody', expected one of setup, app"),
        (
            {"app": {"vram-request": "2Gi", "vram-limit": "1Gi", "tflops-request": "1"}},
            {},
            "found 1Gi, expected at least the request of 2Gi",
        ),
    ],
)
def test_shares_that_no_container_can_have_are_refused(
    shares: object, annotations: dict[str, str], expected: str
) -> None:
    verdict = Cluster().admission.pod(review_of(pod_of_containers(shares, **annotations)))

    assert expected in "; ".join(errors(verdict))
