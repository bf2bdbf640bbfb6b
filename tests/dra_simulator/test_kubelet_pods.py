"""Claims of pods: prepared before the containers start, unprepared after they stop."""

from dra_simulator.rest import CLAIMS, EVENTS, PODS
from tests.dra_simulator.kubelets import NodeUnderTest
from tests.dra_simulator.tiny_plugin import TinyPlugin
from tests.dra_simulator.waiting import always, eventually
from tests.support import objects
from tests.support.objects import NODE


def event(node: NodeUnderTest, reason: str) -> str:
    """Return the latest message of the pods' Events with this reason; "" if there is none."""
    found = (entry for entry in node.client.list(EVENTS).items if entry["reason"] == reason)
    messages = [str(entry["message"]) for entry in found]
    return messages[-1] if messages else ""


def test_pod_runs_with_the_cdi_devices_of_its_prepared_claim(
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


def test_claim_is_prepared_even_if_no_container_uses_it(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    node.pod(claim=node.claim(), uses=False)

    eventually(lambda: node.phase() == "Running")
    assert plugin.methods == ["Prepare"]
    assert node.env() == {}


def test_deleted_pod_stays_in_api_until_its_claims_are_unprepared(
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


def test_claim_of_two_pods_is_prepared_once_and_unprepared_once(
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


def test_failed_prepare_is_reported_as_event_and_retried(
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


def test_claim_that_was_never_prepared_is_unprepared_too(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    plugin.prepare_error = "no room"
    node.pod(claim=node.claim())
    eventually(lambda: event(node, "FailedPrepareDynamicResources"))

    node.delete()

    eventually(lambda: node.phase() == "")
    assert plugin.methods[-1] == "Unprepare"


def test_response_that_lacks_a_claim_is_an_error(node: NodeUnderTest, plugin: TinyPlugin) -> None:
    claim = node.claim()
    plugin.hidden = {claim["metadata"]["uid"]}

    node.pod(claim=claim)

    message = eventually(lambda: event(node, "FailedPrepareDynamicResources"))
    assert message.endswith("NodePrepareResources skipped 1 ResourceClaims")


def test_response_with_an_unrequested_claim_is_an_error(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    plugin.extra = {"other"}

    node.pod(claim=node.claim())

    message = eventually(lambda: event(node, "FailedPrepareDynamicResources"))
    assert message.endswith("NodePrepareResources returned result for unknown claim UID other")


def test_pod_of_unregistered_driver_waits_and_can_be_deleted(node: NodeUnderTest) -> None:
    node.start()
    node.pod(claim=node.claim())
    message = eventually(lambda: event(node, "FailedPrepareDynamicResources"))
    assert message.endswith("DRA driver gpu.example.com is not registered")

    node.delete()

    eventually(lambda: node.phase() == "")


def test_claim_that_is_not_reserved_for_the_pod_is_not_prepared(
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


def test_new_claim_of_same_name_waits_until_the_old_one_is_unprepared(
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


def test_claim_of_force_deleted_pod_is_unprepared(node: NodeUnderTest, plugin: TinyPlugin) -> None:
    node.pod(claim=node.claim())
    eventually(lambda: node.phase() == "Running")

    node.delete(force=True)

    eventually(lambda: plugin.methods == ["Prepare", "Unprepare"])


def test_claims_are_unprepared_before_the_status_shows_that_the_pod_has_ended(
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


def test_failed_container_is_retried_without_another_prepare_call(
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


def test_slow_call_for_one_pod_delays_neither_other_pods_nor_the_stop(
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
