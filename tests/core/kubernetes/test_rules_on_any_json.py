"""The rules for slices return errors, and never raise, for any JSON."""

from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st

from tensorfusion_dra.core.kubernetes import slice_rules
from tests.support.tally import examples

Json = dict[str, Any]

JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)


def fields(names: str, values: st.SearchStrategy[object]) -> st.SearchStrategy[Json]:
    """Return objects with some of these fields, each with one of the values or any JSON."""
    return st.dictionaries(st.sampled_from(names.split()), values | JSON)


REQUIREMENTS: Final = st.lists(fields("key operator values", st.sampled_from(["In", "Gt"])))
SELECTORS: Final = fields(
    "nodeSelectorTerms", st.lists(fields("matchExpressions matchFields", REQUIREMENTS))
)
POLICIES: Final = fields(
    "default validValues validRange",
    st.sampled_from(["1", "2"])
    | st.lists(st.sampled_from(["1", "x"]))
    | fields("min max step", st.sampled_from(["0", "1", "500m"])),
)
CAPACITIES: Final = st.dictionaries(
    st.sampled_from(["vram", "a b"]), fields("value requestPolicy", POLICIES)
)
TAINTS: Final = st.lists(fields("key value effect", JSON))
DEVICES: Final = fields(
    "name attributes capacity taints consumesCounters allowMultipleAllocations bindsToNode"
    " bindingConditions bindingFailureConditions nodeName nodeSelector allNodes",
    st.booleans() | CAPACITIES | SELECTORS | TAINTS,
)
SPECS: Final = fields(
    "driver pool nodeName nodeSelector allNodes perDeviceNodeSelection devices sharedCounters",
    st.booleans() | st.lists(DEVICES) | SELECTORS,
)


@settings(max_examples=examples(50))
@given(DEVICES)
def test_device_rules_never_raise(found: Json) -> None:
    assert all(": " in text for text in slice_rules.device_violations(found))


@settings(max_examples=examples(50))
@given(SPECS)
def test_slice_rules_never_raise(found: Json) -> None:
    assert all(": " in text for text in slice_rules.slice_violations(found))
