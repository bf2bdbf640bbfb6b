"""Builds of upstream's programs, from a checkout of its repository."""

import shutil
import subprocess
from pathlib import Path
from typing import Final

UUID: Final = "GPU-00000000-0000-4000-8000-00000000000"
"""Of the example accelerator's GPUs, without the last digit."""


def built_hypervisor(source: Path, folder: Path) -> Path:
    """Build the hypervisor."""
    binary = folder / "hypervisor"
    subprocess.run(["go", "build", "-o", str(binary), "./cmd/hypervisor"], cwd=source, check=True)
    return binary


def built_library(source: Path, folder: Path) -> Path:
    """Build the example accelerator: UUIDs of PROFILE, NVIDIA as its vendor, cards half busy.

    The hypervisor gives a pod on an idle card ever more tokens, whatever its limit.
    """
    provider = folder / "provider"
    shutil.copytree(source / "provider", provider, dirs_exist_ok=True)
    code = provider / "example" / "accelerator.c"
    text = code.read_text()
    for old, new in (
        ("example-device-%d", f"{UUID}%d"),
        ('"STUB");', '"NVIDIA");'),
        ("dm->utilizationPercent = gpuActivity.gfx_activity;", "dm->utilizationPercent = 50;"),
    ):
        assert old in text, f"{code}: expected {old}"
        text = text.replace(old, new, 1)
    code.write_text(text)
    subprocess.run(["make", "-s", "example"], cwd=provider, check=True, stderr=subprocess.DEVNULL)
    return provider / "build" / "libaccelerator_example.so"
