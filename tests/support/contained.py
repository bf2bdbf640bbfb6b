"""A program with the variables, mounts and preloaded libraries of a CDI spec, as a mere process.

Paths in the container become the host paths that are mounted there. A path that no mount leads to
stays as it is, so it is not found.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.support.waiting import PATIENCE_SECONDS

_PRELOAD: Final = "/etc/ld.so.preload"


@dataclass(frozen=True, kw_only=True)
class Contained:
    """What a container of a spec sees.

    Attributes:
        mounts: Host paths by paths in the container.
        libraries: Folder with the libcuda.so.1 that programs load.
        cards: The stand-ins' file of cards.
        image_env: Variables of the image, which those of the spec override.
    """

    env: Mapping[str, str]
    mounts: Mapping[str, str]
    libraries: Path
    cards: Path
    image_env: dict[str, str] = field(default_factory=dict)

    def run(self, program: Path, *words: str, **entrypoint: str) -> list[dict[str, Any]]:
        """Run a program until it ends; return the JSON objects that it printed.

        Args:
            entrypoint: Variables that the entrypoint sets.
        """
        done = subprocess.run(
            [str(program), *words],
            env=self._environment(entrypoint),
            capture_output=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert done.stderr == b""
        return [json.loads(line) for line in done.stdout.splitlines()]

    @contextmanager
    def waiting(self, program: Path, *words: str) -> Iterator[None]:
        """Run a program during the block, from the moment in which it waits."""
        pipe = subprocess.PIPE
        command = [str(program), *words, "wait"]
        with subprocess.Popen(
            command, env=self._environment({}), stdin=pipe, stdout=pipe
        ) as process:
            assert process.stdout is not None
            while json.loads(process.stdout.readline())["command"] != "wait":
                pass
            yield
            process.communicate(timeout=PATIENCE_SECONDS)

    def _environment(self, entrypoint: Mapping[str, str]) -> dict[str, str]:
        env = {**self.image_env, **self.env, **entrypoint}
        translated = {name: self._on_host(value) for name, value in env.items()}
        preloaded = [self._on_host(each) for each in env.get("LD_PRELOAD", "").split(":") if each]
        if _PRELOAD in self.mounts:
            listed = Path(self.mounts[_PRELOAD]).read_text().split()
            preloaded += [self._on_host(each) for each in listed]
        return {
            **translated,
            "PATH": os.defpath,
            "LD_PRELOAD": ":".join(preloaded),
            "LD_LIBRARY_PATH": str(self.libraries),
            "STAND_IN_GPUS": str(self.cards),
        }

    def _on_host(self, path: str) -> str:
        for inside, outside in self.mounts.items():
            if path == inside or path.startswith(f"{inside}/"):
                return outside + path.removeprefix(inside)
        return path


def mounts(edits: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the host paths of a spec's mounts by their paths in the container."""
    return {
        mount["containerPath"]: mount["hostPath"]
        for each in edits
        for mount in each.get("mounts", [])
    }
