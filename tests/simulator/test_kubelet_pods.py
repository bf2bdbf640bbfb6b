"""A pod's claims are prepared before its containers and given up after them."""

from tensorfusion_dra.simulator.rest import CLAIMS, EVENTS, PODS
from tests.simulator import objects
from tests.simulator.kubelets import NodeUnderTest
from tests.simulator.objects import NODE
from tests.simulator.tiny_plugin import TinyPlugin
from tests.simulator.waiting import always, eventually


def event(node: NodeUnderTest, reason: str) -> str:
    """The latest message of the pods' Events of this reason; "" if there is none."""
    found = (entry for entry in node.client.list(EVENTS).items if entry["reason"] == reason)
    messages = [str(entry["message"]) for entry in found]
    return messages[-1] if messages else ""


def test_a_pod_runs_with_what_its_claim_was_prepared_with(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    claim = node.claim()

    node.pod(claim=claim)

    eventually(lambda: node.phase() == "Running")
    uid = claim["metadata"]["uid"]
    assert plugin.calls == [("v1 Prepare", (uid,))]
    assert node.env() == {"CLAIM": uid}
    (container,) = node.kubelet.containers("default", "pod").values()
    assert container.cdi_ids == (f"example.com/gpu={uid}",)
    status = node.client.get(PODS, "pod", "default")["status"]
    conditions = {entry["type"]: entry["status"] for entry in status["conditions"]}
    assert conditions["Ready"] == conditions["PodScheduled"] == "True"


def test_a_claim_is_prepared_even_if_no_container_uses_it(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    node.pod(claim=node.claim(), uses=False)

    eventually(lambda: node.phase() == "Running")
    assert plugin.methods == ["Prepare"]
    assert node.env() == {}


def test_a_deleted_pod_goes_after_its_claims_were_given_up(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    node.pod(claim=node.claim())
    eventually(lambda: node.phase() == "Running")
    plugin.unprepare_error = "busy"

    node.delete()

    eventually(lambda: plugin.methods.count("Unprepare") > 1)
    assert node.env() == {}
    assert node.phase() == "Running"
    (failure, *_) = node.happened("pod_not_unprepared")
    assert failure.facts["error"] == (
        "unprepare dynamic resources: NodeUnprepareResources failed for ResourceClaim claim: busy"
    )
    plugin.unprepare_error = ""
    eventually(lambda: node.phase() == "")


def test_two_pods_with_one_claim_prepare_it_once_and_give_it_up_once(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    claim = node.claim()
    node.pod("a", claim=claim)
    eventually(lambda: node.phase("a") == "Running")
    node.pod("b", claim=claim)
    eventually(lambda: node.phase("b") == "Running")

    node.delete("a")
    eventually(lambda: node.phase("a") == "")
    assert plugin.methods == ["Prepare"]
    assert node.env("b") == {"CLAIM": claim["metadata"]["uid"]}
    node.delete("b")

    eventually(lambda: node.phase("b") == "")
    assert plugin.methods == ["Prepare", "Unprepare"]


def test_claims_of_one_pod_are_prepared_in_one_call(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    claims = [node.claim(name) for name in ("one", "two")]
    pod = objects.pod(claim_name="one")
    pod["spec"]["resourceClaims"].append({"name": "other", "resourceClaimName": "two"})
    made = node.client.create(PODS, pod)
    for claim in claims:
        node.reserve(claim, made)

    node.client.bind(made, NODE)

    eventually(lambda: node.phase() == "Running")
    ((_, uids),) = plugin.calls
    assert set(uids) == {claim["metadata"]["uid"] for claim in claims}


def test_a_failed_preparation_is_told_and_tried_again(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    plugin.prepare_error = "no room"
    node.pod(claim=node.claim())
    message = eventually(lambda: event(node, "FailedPrepareDynamicResources"))
    assert message == (
        "Failed to prepare dynamic resources: prepare dynamic resources:"
        " NodePrepareResources failed for ResourceClaim claim: no room"
    )
    eventually(lambda: plugin.methods.count("Prepare") > 1)
    assert node.phase() == "Pending"

    plugin.prepare_error = ""

    eventually(lambda: node.phase() == "Running")


def test_what_was_never_prepared_is_given_up_all_the_same(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    plugin.prepare_error = "no room"
    node.pod(claim=node.claim())
    eventually(lambda: event(node, "FailedPrepareDynamicResources"))

    node.delete()

    eventually(lambda: node.phase() == "")
    assert plugin.methods[-1] == "Unprepare"


def test_an_answer_that_leaves_a_claim_out_is_refused(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    claim = node.claim()
    plugin.hidden = {claim["metadata"]["uid"]}

    node.pod(claim=claim)

    message = eventually(lambda: event(node, "FailedPrepareDynamicResources"))
    assert message.endswith("NodePrepareResources skipped 1 ResourceClaims")


def test_an_answer_for_a_claim_that_was_not_asked_for_is_refused(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    plugin.extra = {"other"}

    node.pod(claim=node.claim())

    message = eventually(lambda: event(node, "FailedPrepareDynamicResources"))
    assert message.endswith("NodePrepareResources returned result for unknown claim UID other")


def test_without_its_driver_a_pod_waits_and_can_be_deleted(node: NodeUnderTest) -> None:
    node.start()
    node.pod(claim=node.claim())
    message = eventually(lambda: event(node, "FailedPrepareDynamicResources"))
    assert message.endswith("DRA driver gpu.example.com is not registered")

    node.delete()

    eventually(lambda: node.phase() == "")


def test_without_a_reservation_a_claim_is_not_prepared(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    claim = node.claim()
    pod = node.client.create(PODS, objects.pod(claim_name="claim"))

    node.client.bind(pod, NODE)

    message = eventually(lambda: event(node, "FailedPrepareDynamicResources"))
    assert message.endswith(
        f"pod pod ({pod['metadata']['uid']}) is not allowed to use ResourceClaim claim"
        f" ({claim['metadata']['uid']})"
    )
    assert plugin.calls == []


def test_a_claim_that_replaced_another_waits_for_its_end(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    old = node.claim()
    node.pod("old", claim=old)
    eventually(lambda: node.phase("old") == "Running")
    plugin.unprepare_error = "busy"
    node.delete("old", force=True)
    node.client.delete(CLAIMS, "claim", "default")

    node.pod("new", claim=node.claim())

    message = eventually(lambda: event(node, "FailedPrepareDynamicResources"))
    assert message.endswith(
        f"old ResourceClaim with same name claim and different UID {old['metadata']['uid']} still"
        " exists (previous pod force-deleted?!)"
    )
    plugin.unprepare_error = ""
    eventually(lambda: node.phase("new") == "Running")


def test_a_pod_deleted_by_force_is_given_up(node: NodeUnderTest, plugin: TinyPlugin) -> None:
    node.pod(claim=node.claim())
    eventually(lambda: node.phase() == "Running")

    node.delete(force=True)

    eventually(lambda: plugin.methods == ["Prepare", "Unprepare"])


def test_a_pod_that_ends_by_itself_gives_its_claims_up_first(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    node.pod(claim=node.claim())
    eventually(lambda: node.phase() == "Running")
    plugin.unprepare_error = "busy"

    node.kubelet.finish("default", "pod")

    eventually(lambda: "Unprepare" in plugin.methods)
    assert node.phase() == "Running"
    plugin.unprepare_error = ""
    eventually(lambda: node.phase() == "Succeeded")
    always(lambda: node.phase() == "Succeeded", seconds=0.1)


def test_a_container_that_cannot_be_made_is_tried_again_without_another_preparation(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    plugin.cdi_dir = node.folder / "elsewhere"
    plugin.cdi_dir.mkdir()
    claim = node.claim()

    node.pod(claim=claim)

    uid = claim["metadata"]["uid"]
    message = eventually(lambda: event(node, "Failed"))
    assert f"unresolvable CDI devices example.com/gpu={uid}" in message
    (status,) = eventually(
        lambda: node.client.get(PODS, "pod", "default")["status"].get("containerStatuses")
    )
    assert status["state"]["waiting"]["reason"] == "CreateContainerError"
    for path in plugin.cdi_dir.iterdir():
        path.rename(node.folder / "cdi" / path.name)
    eventually(lambda: node.phase() == "Running")
    assert plugin.methods == ["Prepare"]


def test_a_slow_call_for_one_pod_holds_up_no_other_and_no_stop(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    slow, quick = node.claim("slow"), node.claim("quick")
    plugin.slow = {slow["metadata"]["uid"]}
    node.pod("a", claim=slow)
    eventually(lambda: plugin.methods == ["Prepare"])

    node.pod("b", claim=quick)

    eventually(lambda: node.phase("b") == "Running")
    assert node.phase("a") == "Pending"
    node.stop()
    assert plugin.is_slow
