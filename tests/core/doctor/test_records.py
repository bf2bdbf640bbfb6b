"""Findings about the ledger and the CDI specs."""

from typing import Any

import pytest

from tensorfusion_dra.core.doctor import records
from tensorfusion_dra.core.doctor.finding import Level
from tensorfusion_dra.core.doctor.records import LedgerFacts, SpecFile

LEDGER = "/var/lib/kubelet/plugins/tensor-fusion.ai.dra-driver/ledger.sqlite3"
OURS = "/var/run/cdi/tensor-fusion.ai-vgpu_uid-a.json"
TOOLKIT = "/var/run/cdi/nvidia.yaml"
CLAIMS = {"uid-a": "default/a"}


@pytest.mark.parametrize(
    ("facts", "level"),
    [
        ({"version": 1, "claims": CLAIMS, "size_bytes": 40960}, Level.OK),
        ({"version": 1, "claims": CLAIMS, "size_bytes": 2**30}, Level.NOTE),
        ({"exists": False}, Level.NOTE),
        ({"trouble": "Permission denied"}, Level.COULD_NOT_LOOK),
        ({"damage": "database disk image is malformed"}, Level.PROBLEM),
        ({"version": 2, "claims": {}}, Level.PROBLEM),
    ],
)
def test_ledger_must_be_readable_and_of_a_known_version(
    facts: dict[str, Any], level: Level
) -> None:
    (finding,) = records.ledger(LedgerFacts(path=LEDGER, **facts), version=1)

    assert finding.level is level


def found_spec(path: str = OURS, **facts: Any) -> SpecFile:
    return SpecFile(path=path, **facts)


def levels(*files: SpecFile, claims: dict[str, str] | None) -> list[Level]:
    return [finding.level for finding in records.specs(files, claims)]


def test_one_spec_for_each_record_is_fine() -> None:
    ours = found_spec(kind="tensor-fusion.ai/vgpu", devices=("tensor-fusion.ai/vgpu=uid-a-gpu",))
    toolkit = found_spec(TOOLKIT, kind="nvidia.com/gpu", devices=("nvidia.com/gpu=0",))

    (finding,) = records.specs([ours, toolkit], CLAIMS)

    assert (finding.level, finding.found) == (Level.OK, "1 of this driver, 1 of others")


def test_spec_without_a_record_and_record_without_a_spec_are_warnings() -> None:
    assert levels(found_spec(), claims={}) == [Level.WARNING]
    (missing,) = records.specs([], CLAIMS)

    assert missing.level is Level.WARNING
    assert "default/a" in missing.found


def test_specs_are_not_compared_with_an_unreadable_ledger() -> None:
    assert levels(found_spec(), claims=None) == [Level.OK]


def test_broken_spec_is_a_problem_if_it_is_this_drivers_else_a_warning() -> None:
    broken, foreign = found_spec(trouble="no devices"), found_spec(TOOLKIT, trouble="no devices")

    assert levels(broken, claims=CLAIMS) == [Level.PROBLEM]
    assert levels(found_spec(), foreign, claims=CLAIMS) == [Level.WARNING]


def test_this_drivers_kind_in_a_foreign_file_is_a_warning() -> None:
    foreign = found_spec("/var/run/cdi/old.json", kind="tensor-fusion.ai/vgpu")

    assert levels(found_spec(), foreign, claims=CLAIMS) == [Level.WARNING]


def test_device_in_two_files_of_a_folder_is_a_problem() -> None:
    one, two = (
        found_spec(f"/var/run/cdi/{name}.json", kind="v/c", devices=("v/c=a",)) for name in "ab"
    )
    elsewhere = found_spec("/etc/cdi/a.json", kind="v/c", devices=("v/c=a",))

    assert levels(one, two, claims={}) == [Level.PROBLEM]
    assert levels(one, elsewhere, claims={}) == [Level.OK]


def test_spec_with_missing_host_paths_is_a_warning() -> None:
    stale = found_spec(TOOLKIT, missing_paths=("/usr/lib/libcuda.so.550",))

    (finding,) = records.specs([stale], {})

    assert finding.level is Level.WARNING
    assert "libcuda.so.550" in finding.found
    assert "nvidia-ctk" in finding.cure
