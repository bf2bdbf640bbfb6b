"""What the node plugin gives to the loop of HAMi-core that lends."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tensorfusion_dra.app.node_plugin.process import NodePlugin
from tensorfusion_dra.app.shared import node_parts
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.core.claims.enforcer import NodeAccess
from tensorfusion_dra.core.claims.ports import Loop
from tensorfusion_dra.enforcers.hami_core.enforcer import HamiCore
from tensorfusion_dra.runtime.supervisor import Supervisor
from tests.support.stores import file_of


def settings(folder: Path, **changes: Any) -> Settings:
    (folder / "libvgpu.so.1").touch()
    return Settings(
        node_name="node-01",
        kubelet_root=str(folder),
        cdi_dir=str(folder),
        tensor_fusion_root=str(folder / "tf"),
        simulated_gpus="1xT4",
        enforcer="hami-core",
        hami_core_library=str(folder / "libvgpu.so.1"),
        **changes,
    )


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[NodeAccess]:
    """Return what HAMi-core's loops get."""
    found: list[NodeAccess] = []
    loops = HamiCore.loops

    def watched(self: HamiCore, node: NodeAccess) -> Mapping[str, Loop]:
        found.append(node)
        return loops(self, node)

    monkeypatch.setattr(HamiCore, "loops", watched)
    return found


def test_loop_is_told_of_damaged_records_and_of_the_stop(
    tmp_path: Path, given: list[NodeAccess]
) -> None:
    options = settings(tmp_path)
    damaged = file_of(Path(options.data_folder), "uid-a")
    damaged.parent.mkdir(parents=True)
    damaged.write_bytes(b"{")
    with Supervisor() as supervisor:
        NodePlugin(options, supervisor)
        (access,) = given

        assert access.damaged() == {"uid-a": None}
        assert not access.wait_for_stop(0)
        supervisor.stopping.set()
        assert access.wait_for_stop(0)


@pytest.mark.parametrize(("observe_use", "expected"), [(True, None), (False, frozenset())])
def test_work_is_unknown_until_use_is_observed_and_empty_if_it_never_is(
    tmp_path: Path, given: list[NodeAccess], *, observe_use: bool, expected: frozenset[str] | None
) -> None:
    with Supervisor() as supervisor:
        NodePlugin(settings(tmp_path, observe_use=observe_use), supervisor)

    assert given[0].working() == expected


@pytest.mark.parametrize(
    ("default", "overcommit", "percent"),
    [("card", False, 100), ("card", True, 0), ("request", False, 0), ("request", True, 0)],
)
def test_share_that_names_no_compute_limit_wants_its_request_where_limits_are_overcommitted(
    tmp_path: Path, default: str, percent: int, *, overcommit: bool
) -> None:
    options = settings(tmp_path, default_compute_limit=default, overcommit_limits=overcommit)

    assert node_parts.lending_rules(options, {}).unasked_percent == percent
