"""Claims, templates and classes: the rules of their specs and of a claim's status."""

import pytest

from dra_simulator.api.gates import DEFAULT_GATES
from tests.dra_simulator.api.client import (
    APPLY,
    CLAIMS,
    CLASSES,
    TEMPLATES,
    Client,
    Json,
    Reply,
    served,
    with_metadata,
)
from tests.support.builders.documents import (
    SHARE,
    allocation_document,
    claim_document,
    class_document,
    condition,
    device_status,
    request_document,
    result_document,
    template_document,
)

SUB = {"name": "big", "deviceClassName": "tensor-fusion.ai"}
OPAQUE = {"driver": "tensor-fusion.ai.dra-driver", "parameters": {"kind": "Limits"}}
R = "spec.devices.requests[0]"


def selectors(count: int, expression: str = "true") -> list[Json]:
    return [{"cel": {"expression": expression}}] * count


@pytest.mark.parametrize(
    ("path", "document"),
    [
        *(
            (CLAIMS, claim_document(**devices))
            for devices in (
                {"requests": [request_document(f"r{index}") for index in range(32)]},
                {"requests": [request_document(allocationMode="All")]},
                {"requests": [request_document(count=7, selectors=selectors(32))]},
                {"requests": [request_document(selectors=selectors(1, "true" + " " * 10_236))]},
                {"requests": [{"name": "gpu", "firstAvailable": [SUB]}]},
                {
                    "requests": [
                        request_document(capacity={"requests": {"v": "-5", "no such": "1"}})
                    ]
                },
                {"constraints": [{"matchAttribute": "example.com/numa", "requests": ["gpu"]}]},
                {"constraints": [{"distinctAttribute": "example.com/numa"}]},
                {"config": [{"requests": ["gpu"], "opaque": OPAQUE}] * 32},
                {"requests": [request_document(tolerations=[{"operator": "Exists"}] * 17)]},
            )
        ),
        (CLASSES, class_document(extendedResourceName="tensor-fusion.ai/gpu_1.0")),
    ],
)
def test_a_claim_or_class_within_the_limits_is_accepted(
    api: Client, path: str, document: Json
) -> None:
    assert api.post(f"{path}?fieldValidation=Strict", document).code == 201


@pytest.mark.parametrize(
    ("path", "document", "field", "reason"),
    [
        *(
            (CLAIMS, claim_document(**devices), f"spec.devices.{field}", reason)
            for devices, field, reason in (
                (
                    {"requests": [request_document(f"r{i}") for i in range(33)]},
                    "requests",
                    "TooMany",
                ),
                (
                    {"requests": [request_document(), request_document()]},
                    "requests[1]",
                    "Duplicate",
                ),
                ({"requests": [{"name": "gpu"}]}, "requests[0]", "Required"),
                (
                    {"requests": [{**request_document(), "firstAvailable": [SUB]}]},
                    "requests[0]",
                    "Invalid",
                ),
                ({"requests": [request_document("GPU")]}, "requests[0].name", "Invalid"),
                (
                    {"requests": [{"name": "a", "firstAvailable": [SUB] * 9}]},
                    "requests[0].firstAvailable",
                    "TooMany",
                ),
                (
                    {"requests": [{"name": "a", "firstAvailable": [SUB, SUB]}]},
                    "requests[0].firstAvailable[1]",
                    "Duplicate",
                ),
                ({"constraints": [{}]}, "constraints[0]", "Required"),
                ({"constraints": [None]}, "constraints[0]", "Required"),
                (
                    {"constraints": [{"matchAttribute": "numa"}]},
                    "constraints[0].matchAttribute",
                    "Invalid",
                ),
                (
                    {"constraints": [{"matchAttribute": "a.b/c", "requests": ["other"]}]},
                    "constraints[0].requests[0]",
                    "Invalid",
                ),
                ({"constraints": [{"matchAttribute": "a.b/c"}] * 33}, "constraints", "TooMany"),
                ({"config": [{}]}, "config[0].opaque", "Required"),
                ({"config": [{"opaque": OPAQUE}] * 33}, "config", "TooMany"),
                (
                    {"config": [{"opaque": {**OPAQUE, "parameters": [1]}}]},
                    "config[0].opaque.parameters",
                    "Invalid",
                ),
                (
                    {"config": [{"opaque": {**OPAQUE, "parameters": {"a": "x" * 10_240}}}]},
                    "config[0].opaque.parameters",
                    "TooLong",
                ),
                (
                    {"config": [{"opaque": {"driver": "d", "parameters": None}}]},
                    "config[0].opaque.parameters",
                    "Required",
                ),
            )
        ),
        *(
            (
                CLAIMS,
                claim_document(requests=[request_document(**exactly)]),
                f"{R}.exactly.{field}",
                reason,
            )
            for exactly, field, reason in (
                ({"deviceClassName": ""}, "deviceClassName", "Required"),
                ({"deviceClassName": "A"}, "deviceClassName", "Invalid"),
                ({"allocationMode": "Some"}, "allocationMode", "NotSupported"),
                ({"allocationMode": "All", "count": 1}, "count", "Invalid"),
                ({"count": -1}, "count", "Invalid"),
                ({"selectors": [{}]}, "selectors[0].cel", "Required"),
                ({"selectors": selectors(33)}, "selectors", "TooMany"),
                (
                    {"selectors": selectors(1, "x" * 10_241)},
                    "selectors[0].cel.expression",
                    "TooLong",
                ),
                ({"tolerations": [{"operator": "Is"}]}, "tolerations[0].operator", "NotSupported"),
                (
                    {"tolerations": [{"operator": "Exists", "value": "x"}]},
                    "tolerations[0].value",
                    "Invalid",
                ),
                (
                    {"tolerations": [{"operator": "Exists", "effect": "Never"}]},
                    "tolerations[0].effect",
                    "NotSupported",
                ),
            )
        ),
        *(
            (CLASSES, class_document(**spec), f"spec.{field}", reason)
            for spec, field, reason in (
                ({"selectors": selectors(33)}, "selectors", "TooMany"),
                ({"config": [{}]}, "config[0].opaque", "Required"),
                ({"config": [{"opaque": OPAQUE}] * 33}, "config", "TooMany"),
            )
        ),
        *(
            (
                CLASSES,
                class_document(extendedResourceName=name),
                "spec.extendedResourceName",
                "Invalid",
            )
            for name in (
                *("gpu", "kubernetes.io/gpu", "requests.example.com/gpu", "a/b/c", "example.com/"),
                *("example.com/" + "g" * 64, "example.com/gpu-", "Example.com/gpu"),
            )
        ),
    ],
)
def test_a_claim_or_class_that_breaks_a_rule_is_refused(
    api: Client, path: str, document: Json, field: str, reason: str
) -> None:
    assert api.post(path, document).causes == [(field, f"FieldValue{reason}")]


@pytest.mark.parametrize(
    ("amounts", "field"),
    [
        ({"vram": "-1"}, "[vram]"),
        ({"no such": "1"}, ""),
        ({"a/b/c": "1"}, ""),
        ({f"c{index}": "1" for index in range(33)}, ""),
    ],
)
def test_requested_and_consumed_amounts_are_checked_from_1_38_on(amounts: Json, field: str) -> None:
    asked = claim_document(requests=[request_document(capacity={"requests": amounts})])
    consumed = allocation_document(result_document(consumedCapacity=amounts))
    with served() as older, served(release=38) as newer:
        before = [older.post(CLAIMS, asked), write(older, allocation=consumed)]
        refused = newer.post(CLAIMS, asked)
        newer.post(CLAIMS, claim_document())
        status = newer.patch(STATUS, {"status": {"allocation": consumed}})

    assert [reply.code for reply in before] == [201, 200]
    assert [path for path, _ in refused.causes] == [f"{R}.exactly.capacity.requests{field}"]
    (path,) = [path for path, _ in status.causes]
    assert path.endswith(f"consumedCapacity{field}")


def test_the_specs_of_claims_and_templates_are_immutable(api: Client) -> None:
    api.post(CLAIMS, claim_document())
    api.post(TEMPLATES, template_document())
    other = {"spec": claim_document(requests=[request_document("other")])["spec"]}

    replies = [
        api.put(f"{CLAIMS}/claim-a", {**claim_document(), **other}),
        api.patch(f"{TEMPLATES}/template-a", {"spec": other}),
    ]

    assert [reply.causes for reply in replies] == [[("spec", "FieldValueInvalid")]] * 2
    assert api.patch(f"{CLAIMS}/claim-a", {"metadata": {"labels": {"a": "b"}}}).code == 200


def test_admin_access_needs_the_label_of_its_namespace(api: Client) -> None:
    admin = claim_document(requests=[request_document(adminAccess=True)])
    assert api.post(CLAIMS, admin).causes == [(f"{R}.adminAccess", "FieldValueForbidden")]

    label = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    api.patch("/api/v1/namespaces/default", label)

    assert api.post(CLAIMS, admin).code == 201


def test_a_template_sets_only_labels_and_annotations_of_its_claims(api: Client) -> None:
    taken = api.post(TEMPLATES, template_document(labels={"a": "b"}, annotations={"c": "d"}))
    refused = api.post(TEMPLATES, template_document("template-b", name="x", labels={"a": "b c"}))

    assert taken.json["spec"]["metadata"] == {"labels": {"a": "b"}, "annotations": {"c": "d"}}
    assert refused.causes == [
        ("spec.metadata.labels", "FieldValueInvalid"),
        ("spec.metadata.name", "FieldValueForbidden"),
    ]


def test_a_custom_checker_refuses_expressions_in_claims_templates_and_classes() -> None:
    def check(expression: str) -> str | None:
        return "compilation failed: no such thing" if "wrong" in expression else None

    wrong = selectors(1, "wrong")
    claimed = claim_document(requests=[request_document(selectors=wrong)])
    templated = {**template_document(), "spec": {"spec": claimed["spec"]}}
    with served(check_expression=check) as api:
        replies = [
            api.post(CLAIMS, claimed),
            api.post(TEMPLATES, templated),
            api.post(CLASSES, class_document(selectors=wrong)),
        ]
        assert api.post(CLASSES, class_document()).code == 201

    assert [reply.causes[0][0] for reply in replies] == [
        f"{R}.exactly.selectors[0].cel.expression",
        f"spec.{R}.exactly.selectors[0].cel.expression",
        "spec.selectors[0].cel.expression",
    ]
    assert "no such thing" in replies[0].message


def test_claim_fields_of_disabled_gates_are_dropped() -> None:
    closed = {"DRAConsumableCapacity", "DRADeviceTaints", "DRAPrioritizedList", "DRAAdminAccess"}
    request = request_document(
        capacity={"requests": {"vram": "1Gi"}},
        tolerations=[{"operator": "Exists"}],
        adminAccess=True,
    )
    constraint = {"matchAttribute": "a.b/c", "distinctAttribute": "a.b/d"}
    alternatives = claim_document("b", requests=[{"name": "gpu", "firstAvailable": [SUB]}])
    with served(gates=DEFAULT_GATES - closed) as api:
        made = api.post(CLAIMS, claim_document(requests=[request], constraints=[constraint])).json
        refused = api.post(CLAIMS, alternatives)

    assert made["spec"]["devices"] == {
        "requests": [request_document(allocationMode="ExactCount", count=1)],
        "constraints": [{"matchAttribute": "a.b/c"}],
    }
    assert refused.causes == [(R, "FieldValueRequired")]


STATUS = f"{CLAIMS}/claim-a/status"
CONFIG = {"source": "FromClass", "opaque": {"driver": "d", "parameters": {}}}
USER = {"resource": "pods", "name": "pod-a", "uid": "u"}


def write(api: Client, **status: object) -> Reply:
    """Write the status of a new claim with two requests, one of which has alternatives."""
    alternatives = [{"name": "big", "deviceClassName": "tensor-fusion.ai"}]
    requests = [request_document(), {"name": "any", "firstAvailable": alternatives}]
    api.post(CLAIMS, claim_document(requests=requests))
    return api.patch(STATUS, {"status": status})


def test_an_allocation_is_stored_with_canonical_amounts(api: Client) -> None:
    stored = write(api, allocation=allocation_document(), reservedFor=[USER]).json["status"]

    assert stored["allocation"]["devices"]["results"][0]["consumedCapacity"] == {"vram": "1Gi"}
    assert stored["reservedFor"] == [USER]


@pytest.mark.parametrize(
    ("results", "users"),
    [
        ([result_document(device=f"gpu-{index}") for index in range(32)], 1),
        ([result_document(request="any/big")], 256),
        ([result_document(request="any", shareID=None, consumedCapacity=None)], 0),
        ([result_document(bindingConditions=["a"], bindingFailureConditions=["b"])], 0),
        ([result_document(consumedCapacity={"vram": "-1"})], 0),
    ],
)
def test_an_allocation_within_the_limits_is_accepted(
    api: Client, results: list[Json], users: int
) -> None:
    reserved = [{**USER, "uid": f"u{index}"} for index in range(users)]

    assert write(api, allocation=allocation_document(*results), reservedFor=reserved).code == 200


@pytest.mark.parametrize(
    ("status", "field", "reason"),
    [
        *(
            (status, field, reason)
            for status, field, reason in (
                (
                    {"allocation": allocation_document(*[result_document()] * 33)},
                    "allocation.devices.results",
                    "TooMany",
                ),
                (
                    {"allocation": allocation_document(config=[CONFIG] * 65)},
                    "allocation.devices.config",
                    "TooMany",
                ),
                (
                    {"allocation": allocation_document(config=[{**CONFIG, "source": "FromPod"}])},
                    "allocation.devices.config[0].source",
                    "NotSupported",
                ),
                (
                    {"allocation": {**allocation_document(), "nodeSelector": {}}},
                    "allocation.nodeSelector.nodeSelectorTerms",
                    "Required",
                ),
                ({"reservedFor": [USER]}, "reservedFor", "Forbidden"),
                (
                    {
                        "allocation": allocation_document(),
                        "reservedFor": [{**USER, "uid": f"u{index}"} for index in range(257)],
                    },
                    "reservedFor",
                    "TooMany",
                ),
                (
                    {"allocation": allocation_document(), "reservedFor": [USER, USER]},
                    "reservedFor[1]",
                    "Duplicate",
                ),
                (
                    {"allocation": allocation_document(), "reservedFor": [{**USER, "name": ""}]},
                    "reservedFor[0].name",
                    "Required",
                ),
                ({"devices": [device_status()]}, "devices[0]", "Invalid"),
            )
        ),
        *(
            (
                {"allocation": allocation_document(result_document(**fields))},
                f"allocation.devices.results[0].{field}",
                reason,
            )
            for fields, field, reason in (
                ({"request": "other"}, "request", "Invalid"),
                ({"request": "any/small"}, "request", "Invalid"),
                ({"driver": ""}, "driver", "Required"),
                ({"pool": "Pool"}, "pool", "Invalid"),
                ({"device": ""}, "device", "Invalid"),
                ({"shareID": "share"}, "shareID", "Invalid"),
                ({"shareID": SHARE.replace("1", "A")}, "shareID", "Invalid"),
                ({"adminAccess": True}, "adminAccess", "Forbidden"),
            )
        ),
        *(
            (
                {"allocation": allocation_document(), "devices": [device_status(**fields)]},
                f"devices[0]{field}",
                reason,
            )
            for fields, field, reason in (
                ({"device": "gpu-9"}, "", "Invalid"),
                ({"shareID": None}, "", "Invalid"),
                (
                    {"conditions": [condition(type=f"C{index}") for index in range(9)]},
                    ".conditions",
                    "TooMany",
                ),
                ({"conditions": [condition(), condition()]}, ".conditions[1].type", "Duplicate"),
                (
                    {"conditions": [condition(status="Yes")]},
                    ".conditions[0].status",
                    "NotSupported",
                ),
                ({"conditions": [condition(reason="")]}, ".conditions[0].reason", "Required"),
                ({"conditions": [condition(reason="not one")]}, ".conditions[0].reason", "Invalid"),
                (
                    {"conditions": [condition(reason="R" * 1025)]},
                    ".conditions[0].reason",
                    "TooLong",
                ),
                (
                    {"conditions": [condition(message="m" * 32769)]},
                    ".conditions[0].message",
                    "TooLong",
                ),
                (
                    {"conditions": [condition(lastTransitionTime=None)]},
                    ".conditions[0].lastTransitionTime",
                    "Required",
                ),
                (
                    {"conditions": [condition(observedGeneration=-1)]},
                    ".conditions[0].observedGeneration",
                    "Invalid",
                ),
                ({"data": [1]}, ".data", "Invalid"),
                ({"data": {"a": "x" * 10_240}}, ".data", "TooLong"),
                (
                    {"networkData": {"ips": [f"10.0.0.{index}/24" for index in range(17)]}},
                    ".networkData.ips",
                    "TooMany",
                ),
                (
                    {"networkData": {"interfaceName": "x" * 257}},
                    ".networkData.interfaceName",
                    "TooLong",
                ),
            )
        ),
    ],
)
def test_a_status_that_breaks_a_rule_is_refused(
    api: Client, status: Json, field: str, reason: str
) -> None:
    assert write(api, **status).causes == [(f"status.{field}", f"FieldValue{reason}")]


def test_an_allocation_can_be_removed_but_not_changed(api: Client) -> None:
    write(api, allocation=allocation_document(), devices=[device_status()])
    other = allocation_document(result_document(device="gpu-1"))
    stamped = {"allocationTimestamp": "2026-01-01T00:00:00Z"}

    changed, completed, same, gone, anew = (
        api.patch(STATUS, {"status": {"allocation": allocation}})
        for allocation in (other, stamped, allocation_document(), None, other)
    )

    assert changed.causes == completed.causes == [("status.allocation", "FieldValueInvalid")]
    assert same.code == gone.code == anew.code == 200
    assert gone.json["status"] == {}


@pytest.mark.parametrize(
    ("method", "query", "kind"),
    [("PUT", "", "application/json"), ("PATCH", "?fieldManager=m", APPLY)],
)
def test_a_write_to_the_status_changes_nothing_else(
    api: Client, method: str, query: str, kind: str
) -> None:
    write(api)
    body = with_metadata(claim_document(requests=[]), labels={"a": "b"})
    status = {"allocation": allocation_document()}

    stored = api.call(method, f"{STATUS}{query}", {**body, "status": status}, kind=kind).json

    assert stored["status"]["allocation"]["nodeSelector"] == status["allocation"]["nodeSelector"]
    assert "labels" not in stored["metadata"]
    assert len(stored["spec"]["devices"]["requests"]) == 2


def test_a_claim_in_deletion_gets_no_new_consumers(api: Client) -> None:
    write(api, allocation=allocation_document(), reservedFor=[USER])
    api.patch(f"{CLAIMS}/claim-a", {"metadata": {"finalizers": ["example.com/held"]}})
    api.delete(f"{CLAIMS}/claim-a")

    more = api.patch(STATUS, {"status": {"reservedFor": [USER, {**USER, "uid": "v"}]}})
    fewer = api.patch(STATUS, {"status": {"reservedFor": []}})

    assert more.causes == [("status.reservedFor", "FieldValueForbidden")]
    assert fewer.code == 200


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"conditions": [condition(type=f"C{index}") for index in range(8)]},
        {"data": {"a": [1, None]}},
        {"networkData": {"interfaceName": "e", "ips": ["10.0.0.1/24", "fd00::1/64"]}},
    ],
)
def test_the_status_of_an_allocated_device_is_accepted(api: Client, fields: Json) -> None:
    reply = write(api, allocation=allocation_document(), devices=[device_status(**fields)])

    assert reply.json["status"]["devices"] == [{"conditions": None, **device_status(**fields)}]


def test_status_fields_of_disabled_gates_are_dropped() -> None:
    closed = {"DRAConsumableCapacity", "DRAResourceClaimDeviceStatus"}
    with served(gates=DEFAULT_GATES - closed) as api:
        reply = write(api, allocation=allocation_document(), devices=[device_status()])

    (result,) = reply.json["status"].pop("allocation")["devices"]["results"]
    assert reply.json["status"] == {}
    assert not {"shareID", "consumedCapacity"} & set(result)


def test_a_class_keeps_unchanged_selectors_that_would_be_refused_now() -> None:
    answers: list[str | None] = [None]
    with served(check_expression=lambda _: answers.pop() if answers else "unknown") as api:
        api.post(CLASSES, class_document(selectors=selectors(1)))
        changed = class_document(selectors=selectors(1), config=[{"opaque": OPAQUE}])
        kept = api.put(f"{CLASSES}/tensor-fusion.ai", changed)

    assert kept.json["metadata"]["generation"] == 2
