"""Findings about the host files that an enforcer needs."""

import pytest

from tensorfusion_dra.core.doctor import enforcement
from tensorfusion_dra.core.doctor.enforcement import ELF, HostFile
from tensorfusion_dra.core.doctor.finding import Level

LIMITER = "/run/tensor-fusion/libcuda_limiter.so"
LIBRARY = HostFile(path=LIMITER, beginning=ELF + b"\2")


@pytest.mark.parametrize(
    ("file", "level"),
    [
        (LIBRARY, Level.OK),
        (HostFile(path=LIMITER, exists=False), Level.PROBLEM),
        (HostFile(path=LIMITER, beginning=b"#!/bin/sh"), Level.PROBLEM),
        (HostFile(path=LIMITER, beginning=b""), Level.PROBLEM),
        (HostFile(path=LIMITER, beginning=ELF, mode=0o700), Level.WARNING),
        (HostFile(path=LIMITER, trouble="Permission denied"), Level.COULD_NOT_LOOK),
        (HostFile(path="/usr/local/vgpu/libvgpu.so.1", beginning=ELF), Level.OK),
        (HostFile(path="/run/nvidia/mps/pipe/control"), Level.OK),
    ],
)
def test_limiter_must_be_a_library_that_every_user_can_load(file: HostFile, level: Level) -> None:
    (finding,) = enforcement.findings("tensor-fusion", [file])

    assert finding.level is level
    assert file.path in finding.subject


@pytest.mark.parametrize(
    ("enforcer", "text"),
    [
        ("tensor-fusion", "--tensor-fusion-root"),
        ("hami-core", "--hami-core-library"),
        ("mps", "nvidia-cuda-mps-control -d"),
    ],
)
def test_cure_depends_on_the_enforcer(enforcer: str, text: str) -> None:
    (finding,) = enforcement.findings(enforcer, [HostFile(path="/x", exists=False)])

    assert text in finding.cure


def test_enforcer_without_files_is_fine() -> None:
    (finding,) = enforcement.findings("tensor-fusion", [])

    assert finding.level is Level.OK
