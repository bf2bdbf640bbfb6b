"""Names that come from outside never lead anywhere on disk, whatever they are."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorfusion_dra.cluster.api import segment
from tensorfusion_dra.core.claims import claim as claims
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.driver.outcomes import Failure
from tests.support.prepared_node import Setup, put, share
from tests.support.stored_claims import stored_claim
from tests.support.tally import examples

HOSTILE = st.one_of(
    st.text(max_size=300),
    st.sampled_from(["..", ".", "/", "../../etc", "a/../b", "a\0b", "\n", "%2e%2e", "a" * 5000]),
    st.text(alphabet="./\\\0a%-\u202e\ud800", min_size=1, max_size=40),
)


def files(folder: Path) -> set[str]:
    """Everything under the folder, but for the ledger's own files."""
    found = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    return {path for path in found if "ledger" not in path}


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    return Setup(tmp_path_factory.mktemp("node") / "deep" / "folder")


@given(namespace=HOSTILE, name=HOSTILE, uid=HOSTILE)
@settings(max_examples=examples(300))
def test_no_reference_makes_or_removes_a_file(
    setup: Setup, namespace: str, name: str, uid: str
) -> None:
    root = setup.folder.parent.parent
    victim = root / "victim.json"
    victim.write_text("precious")
    before = files(root)
    ref = ClaimRef(namespace=namespace, name=name, uid=uid)

    prepared = setup.prepare(ref)
    unprepared = setup.unprepare(ref)

    assert isinstance(prepared[uid], Failure)
    assert unprepared == {uid: None}
    assert files(root) == before


@given(pod=HOSTILE)
@settings(max_examples=examples(200))
def test_no_pod_name_in_a_claims_status_leads_out_of_the_folder(setup: Setup, pod: str) -> None:
    stored = stored_claim("reserved", share())
    stored["status"]["reservedFor"][0]["name"] = pod
    ref = setup.claims.put(stored)
    setup.host_files.folders.clear()

    setup.prepare(ref)
    setup.unprepare(ref)

    for path in setup.host_files.folders:
        assert ".." not in path.split("/")


@pytest.mark.parametrize("pod", ["..", "../../etc", "a/b", "a\0b", ""])
def test_a_pod_name_that_is_none_fails_the_claim(setup: Setup, pod: str) -> None:
    stored = stored_claim("reserved", share())
    stored["status"]["reservedFor"][0]["name"] = pod
    ref = setup.claims.put(stored)

    outcome = setup.prepare(ref)[ref.uid]

    assert isinstance(outcome, Failure)
    assert "reservedFor" in outcome.text


@pytest.mark.parametrize("share_id", ["../x", "a b", "", "a=b", 5, ["x"]])
def test_a_share_id_that_is_none_fails_the_claim(setup: Setup, share_id: Any) -> None:
    ref = put(setup, "shared", {**share(), "shareID": share_id})

    outcome = setup.prepare(ref)[ref.uid]

    assert isinstance(outcome, Failure)
    assert "shareID" in outcome.text


@pytest.mark.parametrize("request_name", ["../x", "a b", "", "A", "a=b"])
def test_a_request_name_that_is_none_fails_the_claim(setup: Setup, request_name: str) -> None:
    ref = put(setup, "requested", share(request=request_name))

    outcome = setup.prepare(ref)[ref.uid]

    assert isinstance(outcome, Failure)
    assert "request" in outcome.text


def test_a_claim_is_unprepared_by_its_uid_whatever_its_name_is_said_to_be(setup: Setup) -> None:
    ref = put(setup, "known", share())
    setup.prepare(ref)
    assert setup.spec_of(ref)

    outcome = setup.unprepare(replace(ref, namespace="../..", name="\0"))

    assert outcome == {ref.uid: None}
    assert setup.spec_of(ref) is None


def damaged(stored: Any) -> st.SearchStrategy[Any]:
    """The document with one of its values replaced by something else."""
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
CLAIM = stored_claim("damaged", share(request="gpu"))
CLAIM["status"]["allocation"]["devices"]["config"] = [CONFIG]
CLAIM["metadata"]["annotations"] = {"tensor-fusion.ai/qos": "low"}
REF = ClaimRef(namespace="default", name="damaged", uid=CLAIM["metadata"]["uid"])


@given(document=damaged(CLAIM))
@settings(max_examples=examples(400))
def test_a_damaged_claim_is_an_error_of_this_claim_or_none(document: Any) -> None:
    said = ""
    try:
        claims.allocated(REF, document)
    except ClaimError as error:
        said = str(error)

    assert len(said) < 1000


@given(document=damaged(CLAIM))
@settings(max_examples=examples(200))
def test_a_damaged_claim_costs_no_other_claim_of_the_call(setup: Setup, document: Any) -> None:
    good = put(setup, "good", share())
    setup.claims.stored["default/damaged"] = document

    outcomes = setup.prepare(REF, good)
    setup.unprepare(REF, good)

    assert set(outcomes) == {REF.uid, good.uid}
    assert not isinstance(outcomes[good.uid], Failure)


def test_a_reference_cannot_turn_a_path_of_the_api() -> None:
    assert segment("../../x") == "..%2F..%2Fx"
    assert segment("a/../b?c#d") == "a%2F..%2Fb%3Fc%23d"
