"""The pool of a pod, and what it sets for its pods."""

from typing import Any

import pytest

from tensorfusion_dra.webhook import admission
from tests.support.admission import Json
from tests.support.builders.gpupools import gpupool_document


def scheduling_template(name: str, **dra: Any) -> Json:
    return {"metadata": {"name": name}, "spec": {"dra": dra}}


@pytest.mark.parametrize(
    ("spec", "templates", "enabled"),
    [
        ({}, [], None),
        ({"schedulingConfigTemplate": "on"}, [scheduling_template("on", enable=True)], True),
        ({"schedulingConfigTemplate": "on"}, [scheduling_template("other", enable=True)], None),
        ({"schedulingConfigTemplate": "off"}, [scheduling_template("off", enable=False)], False),
        ({"draConfig": {"enable": True}}, [], True),
        (
            {"schedulingConfigTemplate": "on", "draConfig": {"enable": False}},
            [scheduling_template("on", enable=True)],
            False,
        ),
        (
            {"schedulingConfigTemplate": "off", "draConfig": {"enable": True}},
            [scheduling_template("off", enable=False)],
            True,
        ),
        (
            {"schedulingConfigTemplate": "on", "draConfig": {"resourceClaimTemplateName": "x"}},
            [scheduling_template("on", enable=True)],
            True,
        ),
    ],
)
def test_pools_own_setting_overrides_its_template(
    spec: Json, templates: list[Json], *, enabled: bool | None
) -> None:
    assert (
        admission.choose_pool([gpupool_document("prod", **spec)], templates, "prod").enabled
        is enabled
    )


@pytest.mark.parametrize(
    ("spec", "templates", "name"),
    [
        ({}, [], "tensor-fusion-gpu-template"),
        (
            {"schedulingConfigTemplate": "t"},
            [scheduling_template("t", resourceClaimTemplateName="theirs")],
            "theirs",
        ),
        (
            {
                "schedulingConfigTemplate": "t",
                "draConfig": {"resourceClaimTemplateName": "own"},
            },
            [scheduling_template("t", resourceClaimTemplateName="theirs")],
            "own",
        ),
    ],
)
def test_claim_template_is_the_pools_or_the_default_one(
    spec: Json, templates: list[Json], name: str
) -> None:
    assert (
        admission.choose_pool([gpupool_document("prod", **spec)], templates, "prod").template
        == name
    )


def test_pool_is_chosen_by_name_or_else_the_default_one() -> None:
    pools = [gpupool_document("a"), gpupool_document("b", default=True)]

    assert admission.choose_pool(pools, (), "a").document is pools[0]
    assert admission.choose_pool(pools, (), "").document is pools[1]


@pytest.mark.parametrize(
    ("name", "published", "is_by_settings"),
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
    name: str, published: set[str], is_by_settings: bool
) -> None:
    pools = [gpupool_document("a"), gpupool_document("b")]

    assert admission.is_by_settings(name, pools, published) is is_by_settings


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
