"""When ledger and CDI folder belong together."""

from typing import Any

import pytest

from tensorfusion_dra.core.doctor import records
from tensorfusion_dra.core.doctor.finding import Level
from tensorfusion_dra.core.doctor.records import LedgerFacts, SpecFile

LEDGER = "/var/lib/kubelet/plugins/tensor-fusion.ai.dra-driver/ledger.sqlite3"
OURS = "/var/run/cdi/tensor-fusion.ai-vgpu_uid-a.json"
TOOLKIT = "/var/run/cdi/nvidia.yaml"
HELD = {"uid-a": "default/a"}


@pytest.mark.parametrize(
    ("facts", "level"),
    [
        ({"version": 1, "claims": HELD, "size_bytes": 40960}, Level.OK),
        ({"version": 1, "claims": HELD, "size_bytes": 2**30}, Level.NOTE),
        ({"exists": False}, Level.NOTE),
        ({"trouble": "Permission denied"}, Level.COULD_NOT_LOOK),
        ({"damage": "database disk image is malformed"}, Level.PROBLEM),
        ({"version": 2, "claims": {}}, Level.PROBLEM),
    ],
)
def test_a_ledger_has_to_be_readable_and_of_a_version_that_is_known(
    facts: dict[str, Any], level: Level
) -> None:
    (finding,) = records.ledger(LedgerFacts(path=LEDGER, **facts), version=1)

    assert finding.level is level


def spec(path: str = OURS, **facts: Any) -> SpecFile:
    return SpecFile(path=path, **facts)


def levels(*files: SpecFile, held: dict[str, str] | None) -> list[Level]:
    return [finding.level for finding in records.specs(files, held)]


def test_a_spec_for_every_record_and_none_beside_is_fine() -> None:
    ours = spec(kind="tensor-fusion.ai/vgpu", devices=("tensor-fusion.ai/vgpu=uid-a-gpu",))
    toolkit = spec(TOOLKIT, kind="nvidia.com/gpu", devices=("nvidia.com/gpu=0",))

    (finding,) = records.specs([ours, toolkit], HELD)

    assert (finding.level, finding.found) == (Level.OK, "1 of this driver, 1 of others")


def test_a_spec_without_a_record_and_a_record_without_a_spec_are_told() -> None:
    assert levels(spec(), held={}) == [Level.WARNING]
    (missing,) = records.specs([], HELD)

    assert missing.level is Level.WARNING
    assert "default/a" in missing.found


def test_with_a_ledger_that_cannot_be_read_nothing_is_said_of_records() -> None:
    assert levels(spec(), held=None) == [Level.OK]


def test_a_broken_spec_of_ours_is_worse_than_one_of_others() -> None:
    broken, foreign = spec(trouble="no devices"), spec(TOOLKIT, trouble="no devices")

    assert levels(broken, held=HELD) == [Level.PROBLEM]
    assert levels(spec(), foreign, held=HELD) == [Level.WARNING]


def test_our_kind_in_a_foreign_file_is_told() -> None:
    foreign = spec("/var/run/cdi/old.json", kind="tensor-fusion.ai/vgpu")

    assert levels(spec(), foreign, held=HELD) == [Level.WARNING]


def test_one_device_in_two_files_of_a_folder_is_lost_to_runtimes() -> None:
    one, two = (spec(f"/var/run/cdi/{name}.json", kind="v/c", devices=("v/c=a",)) for name in "ab")
    elsewhere = spec("/etc/cdi/a.json", kind="v/c", devices=("v/c=a",))

    assert levels(one, two, held={}) == [Level.PROBLEM]
    assert levels(one, elsewhere, held={}) == [Level.OK]


def test_paths_that_are_gone_are_told_with_the_file_that_names_them() -> None:
    stale = spec(TOOLKIT, missing_paths=("/usr/lib/libcuda.so.550",))

    (finding,) = records.specs([stale], {})

    assert finding.level is Level.WARNING
    assert "libcuda.so.550" in finding.found
    assert "nvidia-ctk" in finding.cure
