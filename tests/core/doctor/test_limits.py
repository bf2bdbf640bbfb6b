"""Findings about an enforcer: its files, its life, and the limits of the prepared claims."""

import pytest

from tensorfusion_dra.core.claims import verdicts
from tensorfusion_dra.core.claims.verdicts import Verdict
from tensorfusion_dra.core.doctor import limits
from tensorfusion_dra.core.doctor.finding import Level
from tensorfusion_dra.core.doctor.limits import HostFile
from tests.support.builders.prepared_claims import limit, prepared_claim, prepared_share

LIMITER = "/run/tensor-fusion/libcuda_limiter.so"
LIBRARY = HostFile(path=LIMITER)


@pytest.mark.parametrize(
    ("file", "level"),
    [
        (LIBRARY, Level.NOTE),
        (HostFile(path=LIMITER, exists=False), Level.PROBLEM),
        (HostFile(path=LIMITER, mode=0o700), Level.WARNING),
        (HostFile(path=LIMITER, trouble="Permission denied"), Level.COULD_NOT_LOOK),
        (HostFile(path="/usr/local/vgpu/libvgpu.so.1"), Level.NOTE),
        (HostFile(path="/run/nvidia/mps/pipe/control", answers=True), Level.OK),
        (HostFile(path="/run/nvidia/mps/pipe/control", refusal="ended process"), Level.PROBLEM),
    ],
)
def test_limiter_must_be_a_library_that_every_user_can_load(file: HostFile, level: Level) -> None:
    (finding,) = limits.findings("tensor-fusion", [file])

    assert finding.level is level
    assert file.path in finding.subject


def test_file_alone_is_never_ok() -> None:
    (finding,) = limits.findings("tensor-fusion", [LIBRARY])

    assert (finding.level, finding.found) == (
        Level.NOTE,
        "found; a file alone enforces nothing",
    )


def test_enforcer_without_files_is_only_noted() -> None:
    (finding,) = limits.findings("tensor-fusion", [])

    assert finding.level is Level.NOTE


@pytest.mark.parametrize(
    ("found", "is_required", "level"),
    [
        (verdicts.enforced("EnforcerAlive", "fresh heartbeat"), False, Level.OK),
        (verdicts.unknown("LibraryInstalled", "the library is there"), True, Level.NOTE),
        (verdicts.not_enforced("HypervisorMissing", "no sign"), False, Level.WARNING),
        (verdicts.not_enforced("HypervisorMissing", "no sign"), True, Level.PROBLEM),
    ],
)
def test_dead_enforcer_is_a_problem_if_it_is_required(
    found: Verdict, is_required: bool, level: Level
) -> None:
    finding = limits.alive("tensor-fusion", found, is_required=is_required)

    assert finding.level is level
    assert found.text in finding.found


def test_each_share_that_is_not_enforced_is_a_warning() -> None:
    claim = prepared_claim(*(prepared_share(card, limit(25, 20)) for card in range(3)))
    judged = [
        verdicts.enforced("LimiterActive", ""),
        verdicts.not_enforced("HeartbeatStale", "an hour old"),
        verdicts.unknown("NoProcessYet", "none"),
    ]

    stale, unknown, enforced = limits.claims([(claim, judged)])

    assert [stale.level, unknown.level, enforced.level] == [Level.WARNING, Level.NOTE, Level.OK]
    assert (stale.subject, stale.found) == (
        "limits of claim team-a/a on gpu-1",
        "NotEnforced (HeartbeatStale): an hour old",
    )
    assert enforced.found == "shares that are Enforced: 1"
