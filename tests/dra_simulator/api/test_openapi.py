"""OpenAPI v3 documents, which kubectl reads before it creates, applies and patches."""

from collections.abc import Iterator
from typing import Final

import pytest

from dra_simulator.api.kinds import KINDS, Kind
from tests.dra_simulator.api.client import Client, served

GVK: Final = "x-kubernetes-group-version-kind"


@pytest.fixture(scope="module")
def api() -> Iterator[Client]:
    with served(tensor_fusion=True) as client:
        yield client


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.group}/{kind.plural}")
def test_patches_of_every_kind_take_field_validation(api: Client, kind: Kind) -> None:
    index = api.get("/openapi/v3").json["paths"]
    place = index[f"apis/{kind.group}/v1" if kind.group else "api/v1"]["serverRelativeURL"]
    patches = [each["patch"] for each in api.get(place).json["paths"].values()]

    named = {"group": kind.group, "version": "v1", "kind": kind.kind}
    (patch,) = [patch for patch in patches if patch[GVK] == named]
    assert {"name": "fieldValidation", "in": "query", "schema": {"type": "string"}} in patch[
        "parameters"
    ]


def test_group_version_that_is_not_served_has_no_document(api: Client) -> None:
    assert api.get("/openapi/v3/apis/apps/v1").code == 404
