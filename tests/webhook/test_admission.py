"""Admission of pods, of the claims that are made for them, and the quotas of namespaces."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tensorfusion_dra.app.doctor.objects import trial_pod
from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission.dialects import Dialect
from tensorfusion_dra.core.claims import resize
from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.core.kubernetes.review import PASSED, UNAVAILABLE, Decision
from tensorfusion_dra.enforcers import registered
from tensorfusion_dra.webhook import admission
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
from tests.support.builders.pods import container_document, pod_annotations, pod_document
from tests.support.builders.quotas import quota_document
from tests.support.builders.slices import slice_of_models
from tests.support.builders.stored_claims import template_claim
from tests.support.hostile_selectors import LISTS
from tests.support.profiled import calls

AMOUNTS: Any = {"tflops_request": "100", "vram_request": "16Gi"}
ON: Any = {"draConfig": {"enable": True}}
QUARTER = share_class("gpu-quarter", requests={"tflops": "78", "vram": "20Gi"})
A100, T4 = ("A100", "312"), ("T4", "65")
REQUESTS = [names.ANNOTATION_TFLOPS_REQUEST, names.ANNOTATION_VRAM_REQUEST]
LIMITS = [names.ANNOTATION_TFLOPS_LIMIT, names.ANNOTATION_VRAM_LIMIT]


class Cluster:
    """The cluster as the webhook sees it, with the webhook's rules."""

    def __init__(
        self, *pools: Json, slices: Sequence[Json] = (), has_crd: bool = True, **rules: Any
    ) -> None:
        enabling = {"metadata": {"name": "on"}, "spec": {"dra": {"enable": True}}}
        self.pools, self.templates = ObjectsInMemory(*pools), ObjectsInMemory(enabling)
        if not has_crd:
            self.pools.error = self.templates.error = InputError("no such resource")
        self.pods, self.slices = PodsInMemory(), SlicesInMemory(*slices)
        self.quotas, self.classes = ObjectsInMemory(), ObjectsInMemory(QUARTER)
        self.priorities = PrioritiesInMemory("tensor-fusion-high", "tensor-fusion-medium")
        self.admission = AdmissionRules(
            pools=self.pools,
            templates=self.templates,
            pods=self.pods,
            slices=self.slices,
            quotas=self.quotas,
            has_priority_class=self.priorities.exists,
            classes=self.classes,
            scheduler="default-scheduler",
            **{"virtual": False, "keeps_cards_apart": lambda _: True, **rules},
        )

    def pod(self, **annotations: str) -> Decision:
        return self.admit(pod_document(pod_annotations(**annotations)))

    def admit(self, document: Json, **changes: Any) -> Decision:
        return self.admission.pod(review_of(document, **changes))

    def claim(self, document: Json | None = None, /, **annotations: str) -> Decision:
        """Return the decision on a claim for a pod with these annotations."""
        self.pods.stored["uid-train"] = pod_document(pod_annotations(**annotations))
        return self.admission.claim(review_of(document or template_claim()))

    def claim_of(self, admitted: Decision) -> Decision:
        """Store an admitted pod; return the decision on the claim that is made for it."""
        self.pods.stored["uid-train"] = changed(admitted)
        return self.admission.claim(review_of(template_claim()))


def errors(decision: Decision) -> list[str]:
    return [str(error) for error in decision.errors]


def changed(decision: Decision) -> Json:
    """Return the object as the webhook has changed it."""
    assert decision.changed is not None
    return dict(decision.changed)


def claimed(decision: Decision) -> Json:
    """Return the devices of a claim that the webhook has filled."""
    found: Json = changed(decision)["spec"]["devices"]
    return found


def requests(decision: Decision) -> Json:
    return dict(claimed(decision)["requests"][0]["exactly"]["capacity"]["requests"])


@pytest.mark.parametrize("pools", [[], [gpupool_document("a", default=True)]])
def test_doctors_trial_pod_gets_a_claim_whatever_its_pool(pools: list[Json]) -> None:
    assert changed(Cluster(*pools).admit(dict(trial_pod("default"))))["spec"]["resourceClaims"]


def published(*pools: str) -> list[Json]:
    return [{"spec": {"pool": {"name": f"{pool}/node-{i}"}}} for i, pool in enumerate(pools)]


def scheduling_template(name: str, **dra: Any) -> Json:
    return {"metadata": {"name": name}, "spec": {"dra": dra}}


ON_TEMPLATE = scheduling_template("on", enable=True)
OFF_TEMPLATE = scheduling_template("off", enable=False)
THEIRS = scheduling_template("t", resourceClaimTemplateName="theirs")
DEFAULT_TEMPLATE = "tensor-fusion-gpu-template"


@pytest.mark.parametrize(
    ("spec", "templates", "enabled", "template"),
    [
        ({}, [], None, DEFAULT_TEMPLATE),
        ({"schedulingConfigTemplate": "on"}, [ON_TEMPLATE], True, DEFAULT_TEMPLATE),
        ({"schedulingConfigTemplate": "on"}, [OFF_TEMPLATE], None, DEFAULT_TEMPLATE),
        ({"schedulingConfigTemplate": "off"}, [OFF_TEMPLATE], False, DEFAULT_TEMPLATE),
        ({"schedulingConfigTemplate": "t"}, [THEIRS], None, "theirs"),
        # The pool's own setting precedes that of its template.
        ({"draConfig": {"enable": True}}, [], True, DEFAULT_TEMPLATE),
        (
            {"schedulingConfigTemplate": "on", "draConfig": {"enable": False}},
            [ON_TEMPLATE],
            False,
            DEFAULT_TEMPLATE,
        ),
        (
            {"schedulingConfigTemplate": "off", "draConfig": {"enable": True}},
            [OFF_TEMPLATE],
            True,
            DEFAULT_TEMPLATE,
        ),
        (
            {"schedulingConfigTemplate": "on", "draConfig": {"resourceClaimTemplateName": "x"}},
            [ON_TEMPLATE],
            True,
            "x",
        ),
        (
            {"schedulingConfigTemplate": "t", "draConfig": {"resourceClaimTemplateName": "own"}},
            [THEIRS],
            None,
            "own",
        ),
    ],
)
def test_pool_or_its_template_says_whether_and_by_which_template_pods_get_claims(
    spec: Json, templates: list[Json], enabled: bool | None, template: str
) -> None:
    found = admission.choose_pool([gpupool_document("prod", **spec)], templates, "prod")

    assert (found.enabled, found.template) == (enabled, template)


def test_pool_is_chosen_by_name_or_else_the_default_one() -> None:
    pools = [gpupool_document("a"), gpupool_document("b", default=True)]

    assert admission.choose_pool(pools, (), "a").document is pools[0]
    assert admission.choose_pool(pools, (), "").document is pools[1]


@pytest.mark.parametrize(
    ("name", "on_nodes", "is_by_settings"),
    [
        # Nodes publish what their settings name.
        ("default", {"default"}, True),
        ("", {"default"}, True),
        # The GPUPool may get nodes.
        ("a", {"default"}, False),
        ("nowhere", {"default"}, False),
        # Some nodes follow their GPUPool, so pods without a name get the default one.
        ("default", {"default", "a"}, True),
        ("", {"default", "a"}, False),
        ("", {"a"}, False),
        ("", set(), False),
    ],
)
def test_pools_that_nodes_publish_count_beside_gpupools_of_other_names(
    name: str, on_nodes: set[str], is_by_settings: bool
) -> None:
    pools = [gpupool_document("a"), gpupool_document("b")]

    assert admission.is_by_settings(name, pools, on_nodes) is is_by_settings


@pytest.mark.parametrize(
    ("pools", "name", "error"),
    [
        ([gpupool_document("a")], "b", "found 'b', expected a GPUPool such as a"),
        ([gpupool_document("a")], "", "found no name and no default GPUPool"),
        (
            [gpupool_document("b", default=True), gpupool_document("a", default=True)],
            "",
            "found no name and the defaults a, b, expected one default GPUPool",
        ),
    ],
)
def test_ambiguous_or_unknown_pool_is_refused(pools: list[Json], name: str, error: str) -> None:
    assert admission.choose_pool(pools, (), name).unknown.startswith(error)


A, B_DEFAULT = gpupool_document("a"), gpupool_document("b", default=True)
A_ON, B_DEFAULT_ON = gpupool_document("a", **ON), gpupool_document("b", default=True, **ON)


@pytest.mark.parametrize(
    ("cluster", "annotations", "is_on"),
    [
        (Cluster(A_ON), {"gpupool": "a"}, True),
        (Cluster(A), {"gpupool": "a"}, False),
        (Cluster(A), {"gpupool": "a", "dra_enabled": "true"}, True),
        (Cluster(A_ON), {"gpupool": "a", "dra_enabled": "false"}, False),
        (Cluster(A_ON, B_DEFAULT), {}, False),
        (Cluster(A, B_DEFAULT_ON), {}, True),
        (Cluster(gpupool_document("a", schedulingConfigTemplate="on")), {"gpupool": "a"}, True),
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
    decision = cluster.pod(**{**AMOUNTS, **annotations})

    assert (decision.changed is not None) is is_on
    assert not decision.errors


def test_chosen_pool_is_written_into_the_pod() -> None:
    decision = Cluster(B_DEFAULT).pod(dra_enabled="true", **AMOUNTS)

    assert changed(decision)["metadata"]["annotations"]["tensor-fusion.ai/gpupool"] == "b"


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

    assert cluster.admit(document) is PASSED


def test_all_errors_of_a_pod_are_reported_at_once() -> None:
    cluster = Cluster(gpupool_document("a"))
    document = pod_document(
        pod_annotations(
            dra_enabled="true", gpupool="b", qos="best", vram_request="x", inject_container="y"
        )
    )
    document["spec"]["containers"][0]["env"] = [{"name": "TF_SHM_FILE"}]

    found = errors(cluster.admit(document))

    assert [text.partition(":")[0] for text in found] == [
        "metadata.annotations[tensor-fusion.ai/vram-request]",
        "metadata.annotations[tensor-fusion.ai/qos]",
        "metadata.annotations[tensor-fusion.ai/gpupool]",
        "metadata.annotations[tensor-fusion.ai/inject-container]",
    ]


@pytest.mark.parametrize("switch", ["DISABLE_GPU_LIMITER", "TF_SHM_FILE", "CUDA_DISABLE_CONTROL"])
def test_pod_that_could_turn_the_limiter_of_some_enforcer_off_is_refused(switch: str) -> None:
    container = container_document(env=[{"name": switch, "value": "1"}])
    annotations = pod_annotations(dra_enabled="true", **AMOUNTS)

    found = errors(Cluster().admit(pod_document(annotations, container)))

    assert found == [
        f"spec.containers[0].env[0].name: found {switch}, expected no switch that turns the "
        "limiter off"
    ]


def test_translated_pod_gets_the_claim_that_its_words_ask_for() -> None:
    cluster = Cluster(slices=[slice_of_models(A100, T4)])
    words = {"limits": {"nvidia.com/gpumem-percentage": "25"}}
    document = pod_document(
        {"nvidia.com/use-gputype": "a100", "nvidia.com/numa-bind": "true"},
        container_document(resources=words),
    )

    translated = cluster.admission.dialect(Dialect.HAMI, review_of(document))
    filled = cluster.claim_of(cluster.admit(changed(translated)))

    assert requests(filled) == {"tflops": "78", "vram": "20Gi"}
    (request,) = claimed(filled)["requests"]
    assert '.contains("A100")' in request["exactly"]["selectors"][-1]["cel"]["expression"]
    assert [text.partition(":")[0] for text in translated.warnings] == [
        *("nvidia.com/use-gputype", "nvidia.com/numa-bind", "nvidia.com/gpumem-percentage", "hami")
    ]
    assert cluster.admission.dialect(Dialect.HAMI, review_of(changed(translated))) is PASSED


OF_HAMI = (
    "spec.containers[0].resources.limits[nvidia.com/gpumem]: found a word of hami beside "
    "annotations or resources of tensor-fusion.ai, expected only one of the two: the webhook "
    "translates it in pods without these, with hami in webhook.dialects of the chart and the label "
    "tensor-fusion.ai/dialect-hami=true on the namespace"
)


@pytest.mark.parametrize(
    ("limits", "annotations", "expected"),
    [
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "many"}, {}, [OF_HAMI]),
        ({"nvidia.com/gpu": "1"}, {}, []),
        ({"nvidia.com/gpumem": "3000"}, {"vram_request": "3000Mi"}, []),
    ],
)
def test_pod_without_amounts_that_has_another_systems_words_is_told_of_them(
    limits: Json, annotations: dict[str, str], *, expected: list[str]
) -> None:
    container = container_document(resources={"limits": limits})
    asked = pod_annotations(dra_enabled="true", **annotations)

    decision = Cluster().admit(pod_document(asked, container))

    found = errors(decision)
    assert [each for each in found if "found no amount" not in each] == expected
    assert any("found no amount" in each for each in found) == (not annotations)


def test_pod_whose_words_cannot_be_said_is_refused() -> None:
    two = {"limits": {"nvidia.com/gpu": "2"}}
    both = (container_document(name, resources=two) for name in "ab")
    document = pod_document({"gpu-fraction": "2"}, *both)

    assert errors(Cluster().admission.dialect(Dialect.KAI, review_of(document))) == [
        "metadata.annotations[gpu-fraction]: found '2', expected more than 0 and less than 1",
        "spec: found amounts for containers a, b, expected one GPU for each: a container with a "
        "share of its own names one request of at most 32",
    ]


def test_models_in_order_of_preference_become_alternatives_of_each_card() -> None:
    cluster = Cluster(slices=[slice_of_models(A100, T4)])
    several = {"gpu_model": "A100,T4", "gpu_count": "2", "compute_percent_request": "20"}

    devices = claimed(
        cluster.claim_of(cluster.pod(dra_enabled="true", vram_request="4Gi", **several))
    )

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
    several = {"gpu_model": "H100,T4", "compute_percent_request": "20"}

    admitted = changed(cluster.pod(dra_enabled="true", vram_request="4Gi", **several))

    assert "tensor-fusion.ai/tflops-request" not in admitted["metadata"]["annotations"]


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
    assert changed(pod)["metadata"]["annotations"].get("tensor-fusion.ai/gpupool", "") == named
    assert "prod" not in str(claim.changed)
    assert ('== "default"' in str(claim.changed)) is bool(named)


def test_one_node_that_publishes_the_default_gpupool_does_not_send_all_pods_there() -> None:
    pools = ["default", "default", "default", "prod"]
    slices = [
        {"spec": {"nodeName": f"n{number}", "pool": {"name": f"{pool}/n{number}"}}}
        for number, pool in enumerate(pools)
    ]
    cluster = Cluster(gpupool_document("prod", default=True), slices=slices)
    asks = {"dra_enabled": "true", **AMOUNTS}

    pod, claim = cluster.pod(**asks), cluster.claim(**asks)

    assert not changed(pod)["metadata"]["annotations"].get("tensor-fusion.ai/gpupool")
    assert "prod" not in str(claim.changed)


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

    decision = cluster.admit(document)

    exactly = claimed(cluster.claim_of(decision))["requests"][0]["exactly"]
    assert exactly.get("capacity", {}).get("requests") == amounts
    assert not any("amounts are ignored" in text for text in decision.warnings)


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

    spec = changed(Cluster().admit(pod_document(asks, **filled)))["spec"]

    fields = ("priorityClassName", "priority", "preemptionPolicy")
    assert {name: spec[name] for name in fields if name in spec} == expected


OFF = gpupool_document("b", default=True, draConfig={"enable": False})
NOT_ENABLED = (
    "tensor-fusion.ai/tflops-request requests a GPU, but nothing enables DRA for the pod; "
    'set the annotation tensor-fusion.ai/dra-enabled: "true"'
)


@pytest.mark.parametrize(
    ("pools", "labels", "warnings"),
    [
        ([], {}, [NOT_ENABLED]),
        ([B_DEFAULT], {}, [NOT_ENABLED]),
        ([OFF], {}, []),  # the pool decides: nothing to warn of
        ([], {"tensor-fusion.ai/enabled": "true"}, []),
    ],
)
def test_a_pod_with_amounts_that_nothing_enables_is_warned_of_and_left_alone(
    pools: list[Json], labels: Json, warnings: list[str]
) -> None:
    document = pod_document(pod_annotations(**AMOUNTS))
    document["metadata"]["labels"] = labels

    assert Cluster(*pools).admit(document) == Decision(warnings=tuple(warnings))


REPLICA_SET = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "train-5d8", "uid": "rs-1"}


@pytest.mark.parametrize(
    ("owners", "dry_run", "about"),
    [
        ([{**REPLICA_SET, "controller": True}], False, {"namespace": "team-a", **REPLICA_SET}),
        (
            [{**REPLICA_SET, "uid": "other"}, {**REPLICA_SET, "controller": True, "more": 1}],
            False,
            {"namespace": "team-a", **REPLICA_SET},
        ),
        (
            [{**REPLICA_SET, "controller": True, "uid": "u" * 10**6}],
            False,
            {"namespace": "team-a", **REPLICA_SET, "uid": "u" * 253},
        ),
        ([{**REPLICA_SET, "controller": True}], True, None),
        ([REPLICA_SET], False, None),
        ([{**REPLICA_SET, "controller": True, "uid": ""}], False, None),
        ([], False, None),
    ],
)
def test_the_controller_of_a_pod_that_nothing_enables_is_told(
    owners: list[Json], about: Json | None, *, dry_run: bool
) -> None:
    told: list[tuple[Json, Sequence[str]]] = []
    cluster = Cluster(on_warnings=lambda about, warnings: told.append(({**about}, warnings)))
    document = pod_document(pod_annotations(**AMOUNTS))
    document["metadata"]["ownerReferences"] = owners

    decision = cluster.admission.pod(replace(review_of(document), dry_run=dry_run))

    assert decision.warnings == (NOT_ENABLED,)
    assert told == ([(about, (NOT_ENABLED,))] if about else [])


@pytest.mark.parametrize(("pools", "is_on"), [([], True), ([B_DEFAULT], True), ([OFF], False)])
def test_amounts_are_enough_where_the_setting_says_so_and_nothing_decides(
    pools: list[Json], *, is_on: bool
) -> None:
    cluster = Cluster(*pools, default_enabled=True)

    assert bool(cluster.pod(**AMOUNTS).changed) is is_on
    assert not cluster.pod(dra_enabled="", **AMOUNTS).changed
    assert not cluster.pod(gpu_model="A100").changed


def test_what_the_cluster_lacks_at_present_is_warned_of_at_the_pod_and_told_of_its_claim() -> None:
    told: list[tuple[str, Sequence[str]]] = []
    templates = ObjectsInMemory({"metadata": {"namespace": "team-b"}})
    cluster = Cluster(
        on_warnings=lambda about, warnings: told.append(
            (f"{about['kind']} {about['name']}", warnings)
        ),
        warns_at_present=True,
        claim_templates=templates,
    )
    cluster.slices.slices = [slice_of_models(A100)]
    model, template = (
        "tensor-fusion.ai/gpu-model: found H100, but the cards have A100 (1) at present",
        "namespace team-a has no ResourceClaimTemplate tensor-fusion-gpu-template, so the pod "
        "waits for its claim",
    )

    admitted = cluster.pod(dra_enabled="true", gpu_model="H100", **AMOUNTS)

    assert admitted.warnings == [template, model]
    assert told == []
    assert cluster.claim_of(admitted).changed
    assert told == [("Pod train", [template, model])]
    cluster.admission.claim(replace(review_of(template_claim()), dry_run=True))
    templates.listed = [{"metadata": {"namespace": "team-a"}}]
    cluster.claim_of(cluster.pod(dra_enabled="true", **AMOUNTS))
    templates.listed, templates.error = [], RetryableError("not listed yet")
    cluster.claim_of(cluster.pod(dra_enabled="true", **AMOUNTS))
    assert len(told) == 1, "a dry run and a pod without a warning tell nobody"
    assert cluster.slices.reads == 0


@pytest.mark.parametrize(
    ("asks", "written"),
    [
        ({"tflops_request": "1.00055", "vram_request": "1.3333Gi"}, ["1001m", "1431619974"]),
        # A limit alone is the request as well.
        ({"tflops_limit": "1.00055", "vram_limit": "1.3333Gi"}, ["1001m", "1431619974"] * 2),
        ({"compute_percent_request": "12.5", "vram_request": "1"}, ["10322m", "1"]),
        (
            {
                "compute_percent_request": "12.5",
                "compute_percent_limit": "12.5",
                "vram_request": "1",
            },
            ["10322m", "1", "10323m", "0"],
        ),
        (
            {"compute_percent_request": "memory", "vram_percent_request": "33.3333"},
            ["28077m", "8191Mi"],
        ),
    ],
)
def test_pod_and_claim_have_whole_bytes_and_thousandths_of_a_tflops(
    asks: dict[str, str], written: list[str]
) -> None:
    cluster = Cluster(slices=[slice_of_models(("RTX4090", "82.58", "24Gi"))])

    admitted = cluster.pod(dra_enabled="true", **asks)
    filled = cluster.claim_of(admitted)

    of_pod, of_claim = (
        {**dict.fromkeys(LIMITS, "0"), **changed(each)["metadata"]["annotations"]}
        for each in (admitted, filled)
    )
    expected = [*written, "0", "0"][:4]
    amounts = [requests(filled)[name] for name in ("tflops", "vram")]
    assert [*amounts, *map(of_claim.get, LIMITS)] == expected
    assert [of_pod[name] for name in (*REQUESTS, *LIMITS)] == expected


@pytest.mark.parametrize(
    ("asks", "error"),
    [
        (
            {"vram_percent_request": "50", "vram_limit": "39Gi", "tflops_request": "1"},
            "vram-limit]: found 39Gi, expected at least its request 40Gi",
        ),
        (
            {
                "vram_request": "40Gi",
                "compute_percent_request": "memory",
                "compute_percent_limit": "49",
            },
            "compute-percent-limit]: found 152880m, expected at least its request 156",
        ),
        ({"vram_percent_request": "50", "vram_limit": "40Gi", "tflops_request": "1"}, ""),
        ({"vram_request": "1000000001", "vram_limit": "1G", "tflops_request": "1"}, ""),
    ],
)
def test_limit_below_a_request_is_refused_at_the_pod(asks: dict[str, str], error: str) -> None:
    cluster = Cluster(slices=[slice_of_models(A100)])

    found = errors(cluster.pod(dra_enabled="true", **asks))

    assert found == ([f"metadata.annotations[tensor-fusion.ai/{error}"] if error else [])


@pytest.mark.parametrize("asks", [{}, {"gpu_model": "A100,T4"}])
def test_limit_of_the_whole_card_is_that_of_the_largest_card_in_reach(asks: dict[str, str]) -> None:
    cluster = Cluster(slices=[slice_of_models(A100, T4)])

    admitted = cluster.pod(
        dra_enabled="true",
        vram_request="3Gi",
        compute_percent_request="memory",
        compute_percent_limit="100",
        **asks,
    )
    filled = changed(cluster.claim_of(admitted))

    assert filled["metadata"]["annotations"]["tensor-fusion.ai/tflops-limit"] == "312"
    (request,) = filled["spec"]["devices"]["requests"]
    amounts = {each["capacity"]["requests"]["tflops"] for each in request["firstAvailable"]}
    assert amounts == {"12480m", "2600m"}


PERCENT = {"vram_percent_request": "25", "compute_percent_request": "25"}
MANY_STEPS = f"{[*range(30)]}.all(x, {[*range(30)]}.all(y, x >= 0 && y >= 0))"
MANY_CARDS = [slice_of_models(*[A100] * 128, node=f"node-{number}") for number in range(10)]


@pytest.mark.parametrize(
    ("asks", "error"),
    [
        (
            {"compute_percent_limit": "25", "gpu_model": "A100,T4", "vram_request": "1Gi"},
            "compute-percent-limit]: found a limit in percent and A100, T4, expected one model",
        ),
        (
            {**PERCENT, "vram_percent_request": "0", "vram_request": "1Gi"},
            "compute-percent-request]: found T4 of 65 TFLOPS, A100 of 312 TFLOPS, expected one",
        ),
        (PERCENT, "vram-percent-request]: found T4 of 15Gi, A100 of 80Gi"),
        (
            {**PERCENT, "gpu_model": "H100"},
            "compute-percent-request]: found no published GPU H100 in any pool, expected one",
        ),
        (
            {"vram_percent_request": "25", "tflops_request": "1", "gpu_model": "H100"},
            "vram-percent-request]: found no published GPU H100 in any pool, expected one",
        ),
        (
            {"container_shares": '{"main": {"vram-percent-request": "25", "tflops-request": "1"}}'},
            "container-shares]: tensor-fusion.ai/vram-percent-request: found T4 of 15Gi, A100 of",
        ),
        (
            {**PERCENT, "gpu_model": "A100", "dra_cel_filter": MANY_STEPS},
            "dra-cel-filter]: found a selector of",
        ),
    ],
)
def test_refusal_names_the_annotation_that_cannot_be_had(asks: dict[str, str], error: str) -> None:
    cards = MANY_CARDS if "dra_cel_filter" in asks else [slice_of_models(A100, (*T4, "15Gi"))]
    cluster = Cluster(slices=cards)

    (found,) = errors(cluster.pod(dra_enabled="true", **asks))

    assert found.startswith(f"metadata.annotations[tensor-fusion.ai/{error}")


def test_slices_are_read_for_percentages_of_what_a_selector_matches_alone() -> None:
    pool = gpupool_document("prod", default=True)
    cluster = Cluster(pool, slices=[slice_of_models(A100, pool="prod")])
    percent = {"dra_enabled": "true", "compute_percent_request": "25", "vram_request": "1Gi"}
    selector = {"dra_cel_filter": 'device.attributes["tensor-fusion.ai.dra-driver"].model != ""'}

    reads = []
    for asks in (AMOUNTS, percent, {**AMOUNTS, **selector, "dra_enabled": "true"}):
        cluster.pod(**asks)
        reads.append(cluster.slices.reads)
    cluster.pod(**percent, **selector)

    assert (reads, cluster.slices.reads) == ([0, 0, 0], 1)


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

    decisions = [cluster.pod(**asks), cluster.claim(**asks)]

    assert [decision.code == 503 for decision in decisions] == unavailable
    assert [errors(decision) == ["no answer"] for decision in decisions] == unavailable


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

    decision = Cluster().admit(document)

    assert decision.changed is None
    assert [text.partition(",")[0] for text in errors(decision)] == [
        f"metadata.labels[tensor-fusion.ai/enabled]: {text}" for text in refused
    ]


@pytest.mark.parametrize("operation", ["UPDATE", "DELETE", "CONNECT"])
def test_only_new_pods_and_claims_are_mutated(operation: str) -> None:
    cluster = Cluster()
    admitted = cluster.pod(dra_enabled="true", **AMOUNTS)
    assert cluster.claim_of(admitted).changed

    assert cluster.admit(changed(admitted), operation=operation) is PASSED
    for document in (template_claim(), of_class()):
        assert cluster.admission.claim(review_of(document, operation=operation)) is PASSED


OVERSUBSCRIBES = gpupool_document("a", capacityConfig={"oversubscription": {}})
IN_A, IN_A_VIRTUAL = (slice_of_models(A100, pool="a", virtual=each) for each in (False, True))
IN_B = slice_of_models(A100, pool="b")
T4_IN_A = slice_of_models(T4, pool="a", node="node-02")


@pytest.mark.parametrize(
    ("pools", "slices", "virtual", "expected"),
    [
        # The slices decide, whatever the setting and the pool say.
        ([], [IN_A_VIRTUAL], False, "virtual_vram"),
        ([], [IN_A], True, "vram"),
        ([gpupool_document("a")], [IN_A_VIRTUAL], False, "virtual_vram"),
        ([OVERSUBSCRIBES], [IN_A], False, "vram"),
        # Of the cards that the pod can get.
        ([], [IN_A_VIRTUAL, IN_B], False, "virtual_vram"),
        ([], [IN_A_VIRTUAL, T4_IN_A], False, "virtual_vram"),
        # Without any, the pool's word, or the setting's.
        ([], [IN_B], False, "vram"),
        ([], [IN_B], True, "virtual_vram"),
        ([gpupool_document("a")], [], True, "vram"),
        ([OVERSUBSCRIBES], [], False, "virtual_vram"),
    ],
)
def test_claim_requests_the_amounts_that_the_cards_in_its_reach_share(
    pools: list[Json], slices: list[Json], *, virtual: bool, expected: str
) -> None:
    cluster = Cluster(*pools, slices=slices, virtual=virtual)

    decision = cluster.claim(gpupool="a", gpu_model="A100", **AMOUNTS)

    assert requests(decision)[expected] == "16Gi"
    assert len(requests(decision)) == 2


BOTH_KINDS = (
    slice_of_models(A100, T4, node="old"),
    slice_of_models(A100, node="new", virtual=True),
)


@pytest.mark.parametrize(
    ("asks", "alternatives"),
    [
        ({}, [("", "virtual_"), ("", "")]),
        ({"gpu_count": "2"}, [("", "virtual_"), ("", "")]),
        ({"gpu_model": "T4"}, [("T4", "")]),
        ({"gpu_model": "A100,T4"}, [("A100", "virtual_"), ("A100", ""), ("T4", "")]),
        ({"dra_cel_expression": "true"}, [("", "virtual_"), ("", "")]),
        ({"dedicated_gpu": "true"}, [("", None)]),
    ],
)
def test_claim_has_an_alternative_for_each_kind_of_amounts_in_its_reach(
    asks: dict[str, str], alternatives: list[tuple[str, str | None]]
) -> None:
    devices = claimed(Cluster(slices=BOTH_KINDS).claim(**AMOUNTS, **asks))

    for request in devices["requests"]:
        found = request.get("firstAvailable") or [request["exactly"]]
        assert [each.get("capacity", {}).get("requests") for each in found] == [
            None if prefix is None else {f"{prefix}tflops": "100", f"{prefix}vram": "16Gi"}
            for _, prefix in alternatives
        ]
        for each, (model, _) in zip(found, alternatives, strict=True):
            assert model in str(each["selectors"])
    matched = [each for each in devices.get("constraints", ()) if "matchAttribute" in each]
    assert not matched, "two kinds of amounts are no reason for one model"


def test_each_container_has_an_alternative_for_each_kind_of_amounts() -> None:
    cluster = Cluster(slices=BOTH_KINDS)

    filled = cluster.claim_of(cluster.admit(pod_of_containers(BY_CONTAINER)))

    for request in claimed(filled)["requests"]:
        assert [[*each["capacity"]["requests"]] for each in request["firstAvailable"]] == [
            ["virtual_tflops", "virtual_vram"],
            ["tflops", "vram"],
        ]


def test_claim_without_room_for_each_kind_of_amounts_is_refused_with_nodes_of_both() -> None:
    models = [f"M{number}" for number in range(5)]
    devices = [(model, "10") for model in models]
    both = (slice_of_models(*devices), slice_of_models(*devices, node="new", virtual=True))

    decision = Cluster(slices=both).claim(gpu_model=",".join(models), **AMOUNTS)

    (error,) = errors(decision)
    assert error.startswith(
        "pod team-a/train: found 10 alternatives: for each of M0, M1, M2, M3, M4 one of the nodes "
        "that oversubscribe, such as new, and one of the others, such as node-01; expected at most "
        "8"
    )


def test_claim_without_the_label_or_of_a_pod_without_annotations_is_unchanged() -> None:
    document = template_claim()
    document["metadata"]["labels"] = {"tensor-fusion.ai/resource-claim-template": "false"}

    assert Cluster().claim(document, **AMOUNTS) is PASSED
    assert Cluster().claim() is PASSED


def of_class(*, labelled: bool = False, count: Any = 1, **amounts: Any) -> Json:
    """Return a claim of a class with these amounts of its own, as it is made from a template."""
    document = template_claim()
    if not labelled:
        del document["metadata"]["labels"]
    document["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": "gpu"}
    document["spec"]["devices"]["requests"][0]["exactly"] |= {
        "deviceClassName": "gpu-quarter",
        "count": count,
        **({"capacity": {"requests": amounts}} if amounts else {}),
    }
    return document


@pytest.mark.parametrize(
    ("labelled", "annotations", "expected"),
    [
        (False, {}, {"tflops": "78", "vram": "20Gi"}),
        (True, {"vram_request": "1Gi"}, {"tflops": "78", "vram": "1Gi"}),
        (True, {}, {"tflops": "78", "vram": "20Gi"}),
    ],
)
def test_claim_of_a_class_gets_the_amounts_that_its_pod_leaves_open(
    annotations: dict[str, str], expected: Json, *, labelled: bool
) -> None:
    assert requests(Cluster().claim(of_class(labelled=labelled), **annotations)) == expected


NO_AMOUNTS: list[Json] = [{"vram": "much"}, {"vram": 5}, {"tflops": ["x"]}]
NO_CLASS = "found no DeviceClass gpu-quarter with valid parameters"
FIXED = share_class("gpu-quarter", requests={"vram": "1Gi"}, overridable=False)


@pytest.mark.parametrize(
    ("device_classes", "amounts", "code", "text"),
    [
        ([], {"vram": "2Gi"}, 503, NO_CLASS),
        ([share_class("gpu-quarter", requests={"vram": "many"})], {"vram": "2Gi"}, 503, NO_CLASS),
        (RetryableError("not listed yet"), {}, 503, "not listed yet"),
        (
            [FIXED],
            {"vram": "2Gi"},
            422,
            "spec.devices.requests: request gpu-request: found vram: 2Gi, expected 1Gi",
        ),
        # Amounts that no API server sends.
        *(
            ([FIXED], {"count": "many", **amounts}, 422, "spec.devices.requests")
            for amounts in NO_AMOUNTS
        ),
    ],
)
def test_claim_that_its_class_cannot_fill_is_refused(
    device_classes: list[Json] | RetryableError, amounts: Json, code: int, text: str
) -> None:
    cluster = Cluster()
    if isinstance(device_classes, RetryableError):
        cluster.classes.error = device_classes
    else:
        cluster.classes.listed = device_classes

    decision = cluster.claim(of_class(**amounts))

    assert decision.code == code
    assert errors(decision)[0].removeprefix(": ").startswith(text)


@pytest.mark.parametrize("uses", [{"name": "gpu"}, {"name": "gpu", "request": "gpu-request"}, None])
def test_claim_for_several_cards_is_split_unless_a_container_names_its_request(
    uses: Json | None,
) -> None:
    cluster = Cluster(keeps_cards_apart=lambda _: False)
    document = of_class(count=2)
    if uses is None:
        del document["metadata"]["ownerReferences"]
    user = container_document(resources={"claims": [uses]})
    cluster.pods.stored["uid-train"] = pod_document({}, user)

    decision = cluster.admission.claim(review_of(document))

    if uses and "request" in uses:
        (error,) = errors(decision)
        assert error.startswith("pod spec.containers[0].resources.claims[0].request: found gpu-")
    else:
        names = [each["name"] for each in claimed(decision)["requests"]]
        assert names == ["gpu-request", "gpu-request-2"]


def test_claim_of_a_missing_pod_is_refused() -> None:
    decision = Cluster().admission.claim(review_of(template_claim()))

    assert errors(decision) == [
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
    document = template_claim(devices={"config": [{"opaque": opaque}]})
    check, update = Cluster().admission.parameters, {"operation": "UPDATE"}

    for review in (review_of(document), review_of(document, old=template_claim(), **update)):
        assert len(check(review).errors) == 1
    assert check(review_of(document, old=document, **update)) == PASSED


def by_hand(
    kind: str, asked: Json, /, *, of_class: str = "tensor-fusion.ai", **limits: str
) -> Json:
    """Return a claim, or a template, with a request `gpu` and limits for it."""
    share = share_class("", limits=limits)["spec"]["config"] if limits else []
    exactly = {"deviceClassName": of_class, "capacity": {"requests": asked}}
    content = {"requests": [{"name": "gpu", "exactly": exactly}], "config": share}
    spec: Json = {"devices": content}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": "a", "namespace": "team-a"},
        "spec": {"spec": spec} if kind == "ResourceClaimTemplate" else spec,
    }


ADMIN = share_class("fixed", limits={"vram": "30Gi"}, overridable=False)
ROOMY = share_class("roomy", limits={"vram": "30Gi"})


@pytest.mark.parametrize(
    ("asked", "of_class", "limits", "error"),
    [
        ({"vram": "16Gi"}, "tensor-fusion.ai", {"vram": "8Gi"}, "vram limit: found 8Gi, expected "),
        ({"tflops": "100"}, "tensor-fusion.ai", {"tflops": "99.9"}, "tflops limit: found 99900m, "),
        ({"virtual_vram": "16Gi"}, "tensor-fusion.ai", {"vram": "8Gi"}, "vram limit: found 8Gi"),
        ({"vram": "20Gi", "virtual_vram": "8Gi"}, "tensor-fusion.ai", {"vram": "9Gi"}, ""),
        ({"vram": "16Gi"}, "tensor-fusion.ai", {"vram": "16Gi", "tflops": "1"}, ""),
        ({"vram": "1G"}, "tensor-fusion.ai", {"vram": "1G"}, ""),
        (
            {"tensor-fusion.ai.dra-driver/vram": "16Gi"},
            "tensor-fusion.ai",
            {"vram": "8Gi"},
            "vram l",
        ),
        ({"vram": "954Mi"}, "tensor-fusion.ai", {"vram": "1G"}, ""),
        # The class's limits, which precede the claim's if they are not overridable.
        ({"vram": "31Gi"}, "roomy", {"tflops": "1"}, "vram limit: found 30Gi, expected at least"),
        ({"vram": "31Gi"}, "roomy", {"vram": "40Gi"}, ""),
        ({"vram": "20Gi"}, "fixed", {"vram": "8Gi"}, ""),
        ({"vram": "31Gi"}, "fixed", {"vram": "40Gi"}, "vram limit: found 30Gi, expected at least"),
    ],
)
def test_limit_of_a_claim_below_its_request_is_refused_as_by_the_node(
    asked: Json, of_class: str, limits: dict[str, str], error: str
) -> None:
    cluster = Cluster()
    cluster.classes.listed = [ADMIN, ROOMY]
    for kind, path in (("ResourceClaim", "spec"), ("ResourceClaimTemplate", "spec.spec")):
        document = by_hand(kind, asked, of_class=of_class, **limits)
        said = f"{path}.devices.requests: request gpu: {error}"

        found = errors(cluster.admission.parameters(review_of(document)))

        assert [text.startswith(said) for text in found] == ([True] if error else [])
        update = review_of(document, operation="UPDATE", old=document)
        assert cluster.admission.parameters(update) == PASSED, "what is stored can be changed"


def test_admin_access_has_no_limit_to_compare() -> None:
    document = by_hand("ResourceClaim", {"vram": "16Gi"}, vram="8Gi")
    document["spec"]["devices"]["requests"][0]["exactly"]["adminAccess"] = True

    assert Cluster().admission.parameters(review_of(document)) == PASSED


@pytest.mark.parametrize(
    ("vram", "error"),
    [
        ("30Gi", ""),
        (
            "31Gi",
            "spec.devices.requests: request gpu: vram limit: found 30Gi, expected at least its "
            "request 31Gi",
        ),
        ("much", "found 'much', expected a quantity such as 100, 71200m or 16Gi"),
    ],
)
def test_request_above_the_limit_of_its_class_is_refused(vram: str, error: str) -> None:
    cluster = Cluster()
    cluster.classes.listed = [ROOMY]

    decision = cluster.admission.claim(
        review_of(by_hand("ResourceClaim", {"vram": vram}, of_class="roomy"))
    )

    assert errors(decision) == ([error] if error else [])


@pytest.mark.parametrize("enforces_hard", [False, True])
def test_hard_isolation_is_accepted_if_the_enforcer_has_a_limiter_for_it(
    *, enforces_hard: bool
) -> None:
    cluster = Cluster(enforces_hard=enforces_hard)
    config = share_class("hard", isolation="hard")["spec"]["config"]

    of_pod = cluster.pod(dra_enabled="true", isolation="hard", **AMOUNTS)
    of_claim = cluster.admission.parameters(review_of(template_claim(devices={"config": config})))

    texts = [str(error) for decision in (of_pod, of_claim) for error in decision.errors]
    assert len(texts) == (0 if enforces_hard else 2)
    assert all(registered.HARD_NEEDS in each for each in texts)


def test_claim_of_an_admitted_pod_keeps_the_amounts_of_its_review() -> None:
    cluster = Cluster(slices=[slice_of_models(A100)])
    admitted = cluster.pod(dra_enabled="true", gpupool="default", compute_percent_request="25")
    cluster.slices.slices = [slice_of_models(A100, T4)]

    assert cluster.admit(changed(admitted)).changed == admitted.changed
    assert requests(cluster.claim_of(admitted)) == {"tflops": "78"}


BY_CONTAINER = {
    "app": {"tflops-request": "100", "vram-request": "16Gi", "vram-limit": "20Gi"},
    "log": {"tflops-request": "5", "vram-request": "2Gi"},
    "setup": "app",
}


def pod_of_containers(shares: object, **annotations: str) -> Json:
    return pod_document(
        pod_annotations(dra_enabled="true", container_shares=json.dumps(shares), **annotations),
        *map(container_document, ("app", "log", "other")),
        initContainers=[container_document("setup")],
    )


def test_each_container_gets_a_request_of_its_own_in_the_pods_one_claim() -> None:
    cluster = Cluster()

    decision = cluster.admit(pod_of_containers(BY_CONTAINER, qos="high"))

    admitted, name = changed(decision), "tensor-fusion-gpu-claim"
    spec, annotations = admitted["spec"], admitted["metadata"]["annotations"]
    assert [each["name"] for each in spec["resourceClaims"]] == [name]
    assert [
        each.get("resources", {}).get("claims")
        for each in (*spec["initContainers"], *spec["containers"])
    ] == [
        [{"name": name, "request": "app"}],
        [{"name": name, "request": "app"}],
        [{"name": name, "request": "log"}],
        None,
    ]
    assert annotations["tensor-fusion.ai/inject-container"] == "setup,app,log"
    assert "tensor-fusion.ai/vram-request" not in annotations
    (warning,) = decision.warnings
    assert warning.startswith("tensor-fusion.ai/container-shares:")
    assert cluster.admit(admitted).changed == admitted

    filled = cluster.claim_of(decision)

    devices = claimed(filled)
    assert {
        each["name"]: each["exactly"]["capacity"]["requests"] for each in devices["requests"]
    } == {"app": {"tflops": "100", "vram": "16Gi"}, "log": {"tflops": "5", "vram": "2Gi"}}
    (config,) = devices["config"]
    assert config["requests"] == ["app"]
    assert config["opaque"]["parameters"]["limits"] == {"vram": "20Gi"}
    assert {
        key: text
        for key, text in changed(filled)["metadata"]["annotations"].items()
        if key.startswith("tensor-fusion.ai/")
    } == pod_annotations(qos="high", tflops_limit="0")
    for each in devices["requests"]:
        expression = each["exactly"]["selectors"][-1]["cel"]["expression"]
        assert f"in {json.dumps(registered.names_with('equal_only'))})" in expression


def test_equal_shares_of_containers_run_with_every_enforcer() -> None:
    cluster, share = Cluster(), {"vram-request": "2Gi", "gpu-model": "A100,H100"}
    made, unique = template_claim(), "tensor-fusion.ai.dra-driver/uuid"
    other = {"name": "nic", "exactly": {"deviceClassName": "nic"}}
    made["spec"]["devices"]["requests"].append(other)
    made["spec"]["devices"] |= {
        "constraints": [
            {"requests": ["gpu-request"], "distinctAttribute": unique},
            {"requests": ["gpu-request", "nic"], "matchAttribute": "a/b"},
        ],
        "config": [{"requests": ["gpu-request"], "opaque": {"driver": "a"}}],
    }
    cluster.classes.listed = [{"metadata": {"name": "nic"}, "spec": {}}]
    cluster.pods.stored["uid-train"] = pod_of_containers(
        {"app": share, "log": {**share}}, tflops_request="5"
    )

    devices = claimed(cluster.admission.claim(review_of(made)))

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
            "found 1Gi, expected at least its request 2Gi",
        ),
    ],
)
def test_shares_that_no_container_can_have_are_refused(
    shares: object, annotations: dict[str, str], expected: str
) -> None:
    decision = Cluster().admit(pod_of_containers(shares, **annotations))

    assert expected in "; ".join(errors(decision))


def test_annotations_pools_and_classes_are_read_once_for_a_review() -> None:
    cluster = Cluster(gpupool_document("a", default=True))
    cluster.classes.listed = (QUARTER, share_class("another", requests={"vram": "1Gi"}))
    of_class = template_claim()
    exactly = of_class["spec"]["devices"]["requests"][0]["exactly"]
    exactly["deviceClassName"] = "gpu-quarter"

    of_pod = calls(lambda: changed(cluster.pod(dra_enabled="true", **AMOUNTS)))
    of_claim = calls(lambda: claimed(cluster.claim(dra_enabled="true", **AMOUNTS)))
    of_classes = calls(lambda: claimed(cluster.claim(of_class)))

    parse, choose = "core.admission.pod_request.parse", "webhook.admission.choose_pool"
    parse_class = "core.admission.class_admission.of_class"
    assert (of_pod[parse], of_pod[choose]) == (1, 1)
    assert (of_claim[parse], of_claim[choose], of_claim[parse_class]) == (1, 1, 2)
    assert of_classes[parse_class] == 2


def allocated(node: str = "node-01", **annotations: str) -> Json:
    """Return a claim of 16Gi that has a card of a node, with annotations."""
    document = by_hand("ResourceClaim", {"vram": "16Gi"})
    document["metadata"]["annotations"] = pod_annotations(**annotations)
    result = {"driver": names.DRIVER, "pool": f"pool/{node}", "device": "gpu-0", "request": "gpu"}
    document["status"] = {"allocation": {"devices": {"results": [result]}}}
    return document


def reviewed(document: Json, old: Json) -> Decision:
    return Cluster().admission.claim(review_of(document, operation="UPDATE", old=old))


@pytest.mark.parametrize("node", ["node-01", "node." + 200 * "x"])
def test_a_claim_whose_limits_change_gets_the_label_of_its_node(node: str) -> None:
    old, new = allocated(node), allocated(node, vram_limit="40Gi")
    for labels in (None, {"mine": "1"}, {"mine": "1", names.LABEL_NODE: "forged"}):
        new["metadata"]["labels"] = labels

        decision = reviewed(new, old)

        assert decision.changed is not None
        found = decision.changed["metadata"]
        assert found["labels"] == {**(labels or {}), names.LABEL_NODE: resize.node_label(node)}
        assert len(found["labels"][names.LABEL_NODE]) <= 63
        assert found["annotations"] == new["metadata"]["annotations"]
        again = {**new, "metadata": found}
        assert reviewed(again, old) == PASSED


@pytest.mark.parametrize(
    ("annotations", "error"),
    [
        ({"vram_limit": "16Gi"}, ""),
        ({"vram_limit": "0"}, ""),
        ({}, ""),
        ({"vram_limit": "15Gi"}, "vram limit: found 15Gi, expected at least its request 16Gi"),
        ({"vram_limit": "much"}, "tensor-fusion.ai/vram-limit: found 'much'"),
        ({"vram_limit": "40Gi", "isolation": "none"}, "isolation: found 'none'"),
    ],
)
def test_a_change_that_the_node_would_not_follow_is_refused(
    annotations: dict[str, str], error: str
) -> None:
    found = errors(reviewed(allocated(**annotations), allocated(vram_limit="60Gi")))

    assert bool(found) is bool(error)
    assert all(error in each for each in found)


def test_a_changed_limit_is_compared_with_what_the_claim_has() -> None:
    old, new = allocated(), allocated(vram_limit="20Gi")
    for each in (old, new):
        (request,) = each["spec"]["devices"]["requests"]
        small = request.pop("exactly")
        large = {**small, "capacity": {"requests": {"vram": "40Gi"}}}
        request["firstAvailable"] = [{"name": "large", **large}, {"name": "small", **small}]
        each["status"]["allocation"]["devices"]["results"][0]["request"] = "gpu/small"

    assert reviewed(new, old).changed is not None
    (result,) = new["status"]["allocation"]["devices"]["results"]
    result["consumedCapacity"] = {"vram": "80Gi"}  # such as of a whole card
    (error,) = errors(reviewed(new, old))
    assert "small: vram limit: found 20Gi, expected at least its request 80Gi" in error


def test_a_claim_without_a_card_is_changed_without_a_label() -> None:
    document = by_hand("ResourceClaim", {"vram": "16Gi"})

    assert reviewed(document, document) == PASSED
    other = allocated()
    (result,) = other["status"]["allocation"]["devices"]["results"]
    result["driver"] = "nic.example.com"
    assert reviewed(other, other) == PASSED
    status = replace(review_of(allocated(), operation="UPDATE"), subresource="status")
    assert Cluster().admission.claim(status) == PASSED


def test_a_change_waits_for_classes_that_are_not_known() -> None:
    cluster = Cluster()
    cluster.classes.error = RetryableError("not listed yet")

    decision = cluster.admission.claim(review_of(allocated(), operation="UPDATE", old=allocated()))

    assert decision.code == UNAVAILABLE
