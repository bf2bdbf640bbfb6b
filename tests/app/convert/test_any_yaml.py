"""Property test: any YAML text can be converted, and a second conversion changes nothing."""

from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorfusion_dra.app.convert.convert import convert
from tests.support.tally import examples

SCALARS = st.sampled_from(
    (
        *(None, True, 1, "", "gpu", "resource.k8s.io/v1beta1", "40Gi", "node-01", "many"),
        *('device.attributes["model"] == "A100" &&\ntrue\n', "device.attributes['qos']", "1 +"),
        *("a\nb\n", "#"),
    )
)
KEYS = st.sampled_from(
    (
        *("name", "exactly", "firstAvailable", "selector", "selectors", "cel", "expression"),
        *("count", "deviceClassName", "allocationMode", "capacity", "requests", "metadata"),
        *("labels", "tensor-fusion.ai/resource-claim-template", "items", "vram"),
        "tensor-fusion.ai/dra-cel-expression",
    )
)
ANYTHING = st.recursive(
    SCALARS,
    lambda part: st.lists(part, max_size=3) | st.dictionaries(KEYS, part, max_size=4),
    max_leaves=12,
)
REQUEST = st.dictionaries(KEYS, ANYTHING, max_size=6)


def any_claim(requests: Any) -> dict[str, Any]:
    return {"kind": "ResourceClaim", "spec": {"devices": {"requests": requests}}}


def any_template(requests: Any, labels: Any) -> dict[str, Any]:
    spec = {"spec": {"devices": {"requests": requests}}}
    return {"kind": "ResourceClaimTemplate", "metadata": {"labels": labels}, "spec": spec}


OBJECTS = st.one_of(
    st.builds(any_claim, st.lists(REQUEST, max_size=2) | ANYTHING),
    st.builds(any_template, st.lists(REQUEST, max_size=2), REQUEST),
    ANYTHING.map(lambda spec: {"kind": "DeviceClass", "spec": spec}),
    ANYTHING,
)
VERSIONS = st.sampled_from(["v1", "v1beta1", "v1beta2"])
LISTED = st.lists(st.tuples(OBJECTS, VERSIONS), min_size=1, max_size=2)


def written(listed: list[tuple[Any, str]], *, flow: bool | None, indent: int) -> str:
    documents = [
        {"apiVersion": f"resource.k8s.io/{version}", **item} if isinstance(item, dict) else item
        for item, version in listed
    ]
    return yaml.safe_dump_all(
        documents, default_flow_style=flow, indent=indent, sort_keys=False, width=60
    )


@settings(max_examples=examples(300))
@given(LISTED, st.sampled_from([True, False, None]), st.sampled_from([2, 4]))
def test_any_yaml_is_converted_and_a_second_conversion_changes_nothing(
    listed: list[tuple[Any, str]], flow: bool | None, indent: int
) -> None:
    text = written(listed, flow=flow, indent=indent)

    converted = convert(text)
    again = convert(converted.text)

    assert len(list(yaml.safe_load_all(converted.text))) == len(listed)
    assert again.text == converted.text
    assert again.reasons == ()
    assert {problem.text for problem in again.problems} == {p.text for p in converted.problems}
    assert bool(converted.reasons) == (converted.text != text)
