"""Tables, which `kubectl get` requests: the columns and cells of a real 1.36 server."""

from pathlib import Path
from typing import Final

import pytest
import yaml

from dra_simulator.api.kinds import KINDS, Kind
from dra_simulator.apiserver import ApiServer
from tests.dra_simulator.api.client import CLASSES, TABLE, Client, Json
from tests.support.builders.documents import class_document

CRDS: Final = Path(__file__).parents[3] / "daemonset" / "chart" / "tensor-fusion-crds"

NAME: Final = ("Name", "string", "name", 0)
AGE: Final = ("Age", "string", "", 0)
EVENT: Final = [
    ("Last Seen", "string", "", 0),
    ("Type", "string", "", 0),
    ("Reason", "string", "", 0),
    ("Object", "string", "", 0),
    ("Subobject", "string", "", 1),
    ("Source", "string", "", 1),
    ("Message", "string", "", 0),
    ("First Seen", "string", "", 1),
    ("Count", "string", "", 1),
    ("Name", "string", "name", 1),
]
WEBHOOKS: Final = [NAME, ("Webhooks", "integer", "", 0), AGE]
REAL: Final = {
    "/namespaces": [NAME, ("Status", "string", "", 0), AGE],
    "/nodes": [
        NAME,
        ("Status", "string", "", 0),
        ("Roles", "string", "", 0),
        AGE,
        ("Version", "string", "", 0),
        ("Internal-IP", "string", "", 1),
        ("External-IP", "string", "", 1),
        ("OS-Image", "string", "", 1),
        ("Kernel-Version", "string", "", 1),
        ("Container-Runtime", "string", "", 1),
    ],
    "/pods": [
        NAME,
        ("Ready", "string", "", 0),
        ("Status", "string", "", 0),
        ("Restarts", "string", "", 0),
        AGE,
        ("IP", "string", "", 1),
        ("Node", "string", "", 1),
        ("Nominated Node", "string", "", 1),
        ("Readiness Gates", "string", "", 1),
    ],
    "/events": EVENT,
    "events.k8s.io/events": EVENT,
    "resource.k8s.io/deviceclasses": [NAME, AGE],
    "resource.k8s.io/resourceclaims": [NAME, ("State", "string", "", 0), AGE],
    "resource.k8s.io/resourceclaimtemplates": [NAME, AGE],
    "resource.k8s.io/resourceslices": [
        NAME,
        ("Node", "string", "", 0),
        ("Driver", "string", "", 0),
        ("Pool", "string", "", 0),
        AGE,
    ],
    "admissionregistration.k8s.io/mutatingwebhookconfigurations": WEBHOOKS,
    "admissionregistration.k8s.io/validatingwebhookconfigurations": WEBHOOKS,
}
"""Name, type, format and priority of each column, as a real server answers."""


def path_of(kind: Kind) -> str:
    return f"/apis/{kind.group}/v1/{kind.plural}" if kind.group else f"/api/v1/{kind.plural}"


def columns_of(table: Json) -> list[tuple[str, str, str, int]]:
    names = ("name", "type", "format", "priority")
    return [tuple(column[name] for name in names) for column in table["columnDefinitions"]]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.group}/{kind.plural}")
def test_every_kind_has_the_columns_of_a_real_server(kind: Kind) -> None:
    with ApiServer(tensor_fusion=True) as server:
        api = Client(server.url)
        table = api.get(path_of(kind), TABLE).json
        api.close()

    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    expected = custom_columns(kind) if kind.is_custom else REAL[f"{kind.group}/{kind.plural}"]
    assert columns_of(table) == expected
    assert all(column["description"] for column in table["columnDefinitions"])


def custom_columns(kind: Kind) -> list[tuple[str, str, str, int]]:
    """Return the columns that a real server derives from a definition's printer columns."""
    definition = yaml.safe_load((CRDS / f"{kind.plural}.yaml").read_text(encoding="utf-8"))
    (version,) = definition["spec"]["versions"]
    age = {"name": "Age", "type": "date"}
    found = version.get("additionalPrinterColumns", [age])
    return [NAME, *((column["name"], column["type"], "", 0) for column in found)]


@pytest.mark.parametrize("included", ["", "Metadata", "None", "Object"])
def test_a_row_includes_the_requested_part_of_its_object(api: Client, included: str) -> None:
    made = api.post(CLASSES, class_document()).json
    partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
    metadata = {**partial, "metadata": made["metadata"]}

    table = api.get(f"{CLASSES}?includeObject={included}", TABLE).json

    (found,) = table["rows"]
    expected = {"": metadata, "Metadata": metadata, "None": None, "Object": made}
    assert found["object"] == expected[included]
    assert table["metadata"]["resourceVersion"] >= made["metadata"]["resourceVersion"]


def test_a_request_for_an_unknown_part_of_an_object_is_refused(api: Client) -> None:
    refused = api.get(f"{CLASSES}?includeObject=Name", TABLE)

    assert (refused.code, refused.json["reason"]) == (400, "BadRequest")
    assert "Unable to convert to Table as requested: includeObject" in refused.message


def test_a_single_object_is_a_table_with_one_row(api: Client) -> None:
    made = api.post(CLASSES, class_document()).json

    table = api.get(f"{CLASSES}/tensor-fusion.ai", TABLE).json

    assert [found["cells"][0] for found in table["rows"]] == ["tensor-fusion.ai"]
    assert table["metadata"] == {"resourceVersion": made["metadata"]["resourceVersion"]}
    assert api.get(f"{CLASSES}/other", TABLE).json["kind"] == "Status"


def test_only_the_first_event_of_a_watch_has_the_columns(api: Client) -> None:
    api.post(CLASSES, class_document("a"))

    with api.watch(f"{CLASSES}?includeObject=None", TABLE) as watch:
        events: list[Json] = [next(iter(watch))]
        api.post(CLASSES, class_document("b"))
        events.append(next(iter(watch)))

    assert [event["type"] for event in events] == ["ADDED", "ADDED"]
    assert [event["object"]["rows"][0]["cells"][0] for event in events] == ["a", "b"]
    assert columns_of(events[0]["object"]) == [NAME, AGE]
    assert events[1]["object"]["columnDefinitions"] is None


def test_a_bookmark_of_a_watch_is_a_table_that_still_ends_the_initial_events(api: Client) -> None:
    api.post(CLASSES, class_document("a"))
    query = "sendInitialEvents=true&allowWatchBookmarks=true&includeObject=None"

    with api.watch(f"{CLASSES}?{query}", TABLE) as watch:
        events = [next(iter(watch)), next(iter(watch))]

    (bookmark,) = events[1]["object"]["rows"]
    assert events[1]["type"] == "BOOKMARK"
    annotations = bookmark["object"]["metadata"]["annotations"]
    assert annotations == {"k8s.io/initial-events-end": "true"}


@pytest.mark.parametrize(
    ("accept", "shape"),
    [
        ("", "DeviceClassList"),
        ("*/*", "DeviceClassList"),
        ("application/json;as=Table;v=v1beta1;g=meta.k8s.io", "Table"),
        ("application/json;q=0.5,application/json;as=Table;v=v1;g=meta.k8s.io", "Table"),
        ("application/json;as=Table;v=v2;g=meta.k8s.io,application/json", "DeviceClassList"),
        ("application/vnd.kubernetes.protobuf,application/json", "DeviceClassList"),
        (
            "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
            "PartialObjectMetadataList",
        ),
    ],
)
def test_an_answer_has_the_first_form_that_can_be_served(
    api: Client, accept: str, shape: str
) -> None:
    api.post(CLASSES, class_document())

    found = api.get(CLASSES, accept)

    assert (found.code, found.json["kind"]) == (200, shape)


@pytest.mark.parametrize(
    "accept",
    [
        "application/vnd.kubernetes.protobuf",
        "application/json;as=Table;v=v2;g=meta.k8s.io",
        "application/json;as=Chair;v=v1;g=meta.k8s.io",
        "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
    ],
)
def test_a_form_that_cannot_be_served_is_not_acceptable(api: Client, accept: str) -> None:
    refused = api.get(CLASSES, accept)

    assert (refused.code, refused.json["reason"]) == (406, "NotAcceptable")
