"""Findings about the ledger and the CDI specs."""

from typing import Any

import pytest

from tensorfusion_dra.core.doctor import records
from tensorfusion_dra.core.doctor.finding import Level
from tensorfusion_dra.core.doctor.records import LedgerFacts, SpecFile
from tests.support import findings
from tests.support.findings import Expected

LEDGER = "/var/lib/kubelet/plugins/tensor-fusion.ai.dra-driver/ledger.sqlite3"
CLAIMS = {"uid-a": "default/a"}


@pytest.mark.parametrize(
    ("facts", "level", "text"),
    [
        ({"version": 1, "claims": CLAIMS, "size_bytes": 40960}, Level.OK, "40 KiB, 1 claims"),
        ({"exists": False}, Level.NOTE, "no node plugin has run here"),
        ({"trouble": "Permission denied"}, Level.COULD_NOT_LOOK, "Permission denied"),
        ({"damage": "image is malformed"}, Level.PROBLEM, "image is malformed"),
        ({"version": 2, "claims": {}}, Level.PROBLEM, "a newer release wrote it"),
    ],
)
def test_ledger_must_be_readable_and_of_a_known_version(
    facts: dict[str, Any], level: Level, text: str
) -> None:
    findings.check(records.ledger(LedgerFacts(path=LEDGER, **facts), version=1), [(level, text)])


def spec(name: str, *, folder: str = "/var/run/cdi", **facts: Any) -> SpecFile:
    return SpecFile(path=f"{folder}/{name}", **facts)


OURS = spec("tensor-fusion.ai-vgpu_uid-a.json")
TOOLKIT = spec("nvidia.yaml")


@pytest.mark.parametrize(
    ("files", "claims", "expected"),
    [
        ([OURS, TOOLKIT], CLAIMS, [(Level.OK, "1 of this driver, 1 of others")]),
        ([OURS], {}, [(Level.WARNING, "of a claim that is not in the ledger")]),
        ([], CLAIMS, [(Level.WARNING, "none for 1 prepared claims: default/a")]),
        ([OURS], None, [(Level.OK, "")]),
        (
            [spec("tensor-fusion.ai-vgpu_uid-a.json", trouble="no devices")],
            CLAIMS,
            [(Level.PROBLEM, "no devices")],
        ),
        ([OURS, spec("a.yaml", trouble="no devices")], CLAIMS, [(Level.WARNING, "no devices")]),
        (
            [spec("nvidia.yaml", missing_paths=("/usr/lib/libcuda.so.550",))],
            {},
            [(Level.WARNING, "names 1 host paths that do not exist: /usr/lib/libcuda.so.550")],
        ),
    ],
)
def test_specs(
    files: list[SpecFile], claims: dict[str, str] | None, expected: list[Expected]
) -> None:
    findings.check(records.specs(files, claims), expected)
