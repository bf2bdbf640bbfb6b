"""Parts of the node that are built from the settings."""

from pathlib import Path

import pytest

from tensorfusion_dra.app.shared import node_parts
from tensorfusion_dra.app.shared.node_settings import Settings


def test_device_nodes_of_a_driver_container_have_their_paths_on_the_host(
    tmp_path: Path,
) -> None:
    (tmp_path / "dev").mkdir()
    for name in ("nvidiactl", "nvidia0"):
        (tmp_path / "dev" / name).symlink_to("/dev/null")
    settings = Settings(
        node_name="node-01",
        driver_root=str(tmp_path),
        driver_root_on_host="/run/nvidia/driver",
    )

    nodes = node_parts.device_nodes(settings)

    assert nodes.of_card(0) == ("/run/nvidia/driver/dev/nvidia0",)


def test_device_nodes_come_from_the_configured_folder(tmp_path: Path) -> None:
    (tmp_path / "nvidia0").symlink_to("/dev/null")
    settings = Settings(node_name="node-01", dev_dir=str(tmp_path))

    nodes = node_parts.device_nodes(settings)

    assert nodes.of_card(0) == (f"{tmp_path}/nvidia0",)


@pytest.mark.parametrize(
    ("enforcer", "enforces_hard"), [("tensor-fusion", False), ("hami-core", True), ("mps", True)]
)
def test_node_offers_state_whether_the_enforcer_supports_hard_isolation(
    tmp_path: Path, enforcer: str, *, enforces_hard: bool
) -> None:
    (tmp_path / "boot_id").write_text("boot-1\n")
    settings = Settings(
        node_name="node-01", enforcer=enforcer, boot_id_file=str(tmp_path / "boot_id")
    )

    node_facts = node_parts.node_facts(settings)

    assert (node_facts.enforcer, node_facts.enforces_hard) == (enforcer, enforces_hard)
