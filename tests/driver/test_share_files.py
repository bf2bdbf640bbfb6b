"""Files and variables that enforce the limits of a prepared claim."""

import json

from structlog.testing import capture_logs

from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.driver.recover import recover
from tests.support.builders.stored_claims import stored_claim
from tests.support.prepared_node import (
    Setup,
    error_of,
    put_claim,
    share_result,
    simulated_inventory,
    use_real_cards,
)


def test_pods_of_one_claim_share_the_folder_and_name_of_the_first_pod(setup: Setup) -> None:
    use_real_cards(setup)
    claim = stored_claim("a", share_result())
    claim["status"]["reservedFor"] = [
        {"resource": "pods", "name": name, "uid": f"uid-of-{name}"} for name in ("zebra", "ape")
    ]
    ref = setup.claims.put(claim)

    with capture_logs() as logs:
        setup.prepare(ref)
    first = setup.spec_of(ref)
    after = setup.restarted()
    recover(after.ledger, after.projection, boot_id=after.boot_id)
    after.ledger.close()

    folder = "/run/tensor-fusion/shm/default/zebra"
    edits = first["devices"][1]["containerEdits"]
    assert "POD_NAME=zebra" in edits["env"]
    assert folder in [mount["hostPath"] for mount in edits["mounts"]]
    assert setup.host_files.folders == after.host_files.folders == {folder}
    assert after.spec_of(ref) == first
    (line,) = [line for line in logs if line["event"] == "claim_prepared"]
    assert (line["pod"], line["pods"]) == ("default/zebra", 2)


def test_limits_document_is_read_only_and_removed_with_its_claim(setup: Setup) -> None:
    ref = put_claim(setup, "a", share_result())
    setup.prepare(ref)
    file = setup.limits_folder / f"{ref.uid}.json"

    mode = file.stat().st_mode & 0o777
    document = json.loads(file.read_text())
    setup.unprepare(ref)

    assert mode == 0o444
    assert document["claim"] == {"namespace": "default", "name": "a", "uid": ref.uid}
    assert document["pods"] == [{"name": "a", "uid": "uid-of-a"}]
    assert list(setup.limits_folder.iterdir()) == []


def test_soft_isolation_mounts_limiter_and_shared_memory_and_disables_bypasses(
    setup: Setup,
) -> None:
    use_real_cards(setup)
    ref = put_claim(setup, "a", share_result())
    setup.prepare(ref)

    (limits,) = [d for d in setup.spec_of(ref)["devices"] if d["name"].endswith(":limits")]
    env = dict(entry.split("=", 1) for entry in limits["containerEdits"]["env"])
    mounts = {m["containerPath"]: m for m in limits["containerEdits"]["mounts"]}

    assert env["TF_ISOLATION_MODE"] == "soft"
    assert env["DISABLE_GPU_LIMITER"] == ""
    assert (env["POD_NAMESPACE"], env["POD_NAME"]) == ("default", "a")
    assert mounts["/run/tensor-fusion/shm"]["hostPath"] == "/run/tensor-fusion/shm/default/a"
    assert "ro" in mounts["/tensor-fusion-limiter/libcuda_limiter.so"]["options"]
    preload = mounts["/etc/ld.so.preload"]["hostPath"]
    assert setup.host_files.texts[preload] == "/tensor-fusion-limiter/libcuda_limiter.so\n"
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in setup.spec_of(ref)["containerEdits"]["env"]


def test_driver_libraries_come_from_the_toolkit_or_mounts_or_the_claim_fails(
    setup: Setup,
) -> None:
    use_real_cards(setup)
    first = simulated_inventory().gpus[0]
    by_mounts = put_claim(setup, "mounts", share_result())
    setup.prepare(by_mounts)
    setup.driver_files.by_toolkit = {first.uuid}
    by_toolkit = put_claim(setup, "toolkit", share_result())
    outcome = setup.prepare(by_toolkit)[by_toolkit.uid]
    setup.driver_files.by_toolkit = set()
    setup.driver_files.missing = True
    neither = put_claim(setup, "neither", share_result(tflops="1", vram="1Gi"))

    failed = setup.prepare(neither)[neither.uid]

    assert setup.spec_of(by_mounts)["containerEdits"]["mounts"][0]["hostPath"] == (
        "/host/libcuda.so.1"
    )
    assert isinstance(outcome, PreparedClaim)
    assert outcome.shares[0].toolkit_device == f"nvidia.com/gpu={first.uuid}"
    assert "mounts" not in setup.spec_of(by_toolkit)["containerEdits"]
    assert "libcuda.so.1: not found" in error_of(failed)
