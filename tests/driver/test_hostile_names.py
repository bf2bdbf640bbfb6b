"""Names from outside, such as UIDs and pod names, which may hold anything."""

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorfusion_dra.cluster.api import segment
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.driver.operations import Failure
from tests.support.builders.stored_claims import stored_claim
from tests.support.prepared_node import Setup, put_claim, share_result
from tests.support.tally import examples

HOSTILE = st.one_of(
    st.text(max_size=300),
    st.sampled_from(["..", ".", "/", "../../etc", "a/../b", "a\0b", "\n", "%2e%2e", "a" * 5000]),
    st.text(alphabet="./\\\0a%-\u202e\ud800", min_size=1, max_size=40),
)


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    return Setup(tmp_path_factory.mktemp("node") / "deep" / "folder")


@given(namespace=HOSTILE, name=HOSTILE, uid=HOSTILE)
@settings(max_examples=examples(300))
def test_no_reference_creates_or_removes_a_file(
    setup: Setup, namespace: str, name: str, uid: str
) -> None:
    root = setup.folder.parent.parent
    (root / "victim.json").write_text("precious")
    before = {*root.rglob("*")}
    ref = ClaimRef(namespace=namespace, name=name, uid=uid)

    assert isinstance(setup.prepare(ref)[uid], Failure)
    assert setup.unprepare(ref) == {uid: None}
    assert {*root.rglob("*")} == before


@given(pod=HOSTILE)
@settings(max_examples=examples(200))
def test_no_pod_name_leads_out_of_the_folder(setup: Setup, pod: str) -> None:
    ref = put_claim(setup, "reserved", share_result(), pods=[pod])
    setup.host_files.folders.clear()

    setup.prepare(ref)
    setup.unprepare(ref)

    assert not any(".." in path.split("/") for path in setup.host_files.folders)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("shareID", share_id) for share_id in ("../x", "a b", "", "a=b", 5, ["x"])),
        *(("request", name) for name in ("../x", "a b", "", "A", "a=b")),
    ],
)
def test_invalid_name_fails_the_claim(setup: Setup, field: str, value: Any) -> None:
    assert field in setup.refused(put_claim(setup, "named", {**share_result(), field: value}))


@pytest.mark.parametrize("pod", ["..", "../../etc", "a/b", "a\0b", ""])
def test_invalid_name_of_a_pod_fails_the_claim(setup: Setup, pod: str) -> None:
    assert "reservedFor" in setup.refused(put_claim(setup, "named", share_result(), pods=[pod]))


def test_claim_is_unprepared_by_its_uid_even_with_another_name(setup: Setup) -> None:
    ref = put_claim(setup, "known", share_result())
    setup.prepare(ref)
    assert setup.spec_of(ref)

    assert setup.unprepare(replace(ref, namespace="../..", name="\0")) == {ref.uid: None}
    assert setup.spec_of(ref) is None


def damaged_documents(stored: Any) -> st.SearchStrategy[Any]:
    """Generate copies of a document with one value replaced by junk."""
    paths = list(_paths(stored, ()))
    junk = st.sampled_from([None, [], {}, "x", 5, [None], {"a": None}, True])
    return st.builds(
        lambda path, value: _replaced(stored, path, value), st.sampled_from(paths), junk
    )


def _paths(item: Any, path: tuple[Any, ...]) -> Any:
    yield path
    keys = item if isinstance(item, dict) else range(len(item) if isinstance(item, list) else 0)
    for key in keys:
        yield from _paths(item[key], (*path, key))


def _replaced(item: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    item = copy.copy(item)
    item[path[0]] = _replaced(item[path[0]], path[1:], value)
    return item


CONFIG = {
    "source": "FromClaim",
    "requests": ["gpu"],
    "opaque": {
        "driver": "tensor-fusion.ai.dra-driver",
        "parameters": {
            "apiVersion": "tensor-fusion.ai/v1alpha1",
            "kind": "GpuShare",
            "limits": {"tflops": "200", "vram": "32Gi"},
        },
    },
}
CLAIM = stored_claim("damaged", share_result(request="gpu"))
CLAIM["status"]["allocation"]["devices"]["config"] = [CONFIG]
CLAIM["metadata"]["annotations"] = {"tensor-fusion.ai/qos": "low"}


@given(document=damaged_documents(CLAIM))
@settings(max_examples=examples(200))
def test_damaged_claim_does_not_fail_other_claims_of_the_call(setup: Setup, document: Any) -> None:
    good, bad = put_claim(setup, "good", share_result()), setup.claims.put(CLAIM)
    setup.claims.stored[str(bad)] = document

    outcomes = setup.prepare(bad, good)
    setup.unprepare(bad, good)

    assert set(outcomes) == {bad.uid, good.uid}
    assert not isinstance(outcomes[good.uid], Failure)
    damaged = outcomes[bad.uid]
    assert not isinstance(damaged, Failure) or len(damaged.text) < 1000


def test_names_are_escaped_in_api_paths() -> None:
    assert segment("a/../b?c#d") == "a%2F..%2Fb%3Fc%23d"
