"""The cards in the CDI specs of NVIDIA's container toolkit."""

import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.discovery import yaml_file

log = structlog.get_logger()

KIND: Final = "nvidia.com/gpu"
"""Kind of nvidia-ctk's specs. The device plugin's kind is not used: its specs go when it goes."""

_SUFFIXES: Final = (".json", ".yaml")
"""Suffixes of the files that runtimes read."""

_Version = tuple[int, ...]


class ToolkitSpecs:
    """Index of the device names in all specs of the toolkit; safe for all threads.

    A file is read again when it changes. A lookup costs one stat() per file, so every preparation
    can afford it.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders: Final = tuple(folders)
        # The lock guards all below.
        self._lock: Final = threading.Lock()
        self._devices: dict[Path, tuple[_Version, frozenset[str]]] = {}
        self._unreadable: dict[Path, str] = {}

    def device(self, name: str) -> str | None:
        """Return the qualified CDI name of the device with exactly this name; None if missing."""
        with self._lock:
            self._refresh()
            known = any(name in devices for _, devices in self._devices.values())
        return f"{KIND}={name}" if known else None

    def _refresh(self) -> None:
        found = {path: version for folder in self._folders for path, version in self._files(folder)}
        for path in self._devices.keys() - found.keys():
            del self._devices[path]
        for path, version in found.items():
            if path not in self._devices or self._devices[path][0] != version:
                self._devices[path] = version, _devices(path)

    def _files(self, folder: Path) -> Iterator[tuple[Path, _Version]]:
        trouble = ""
        try:
            with os.scandir(folder) as entries:
                candidates = [entry for entry in entries if _is_spec(entry)]
            for entry in candidates:
                # DRA drivers remove specs of their claims at any time.
                with suppress(FileNotFoundError):
                    yield Path(entry.path), _version(entry.stat())
        except FileNotFoundError:
            pass
        except OSError as error:
            trouble = error.strerror or str(error)
        if trouble and self._unreadable.get(folder) != trouble:
            log.warning("toolkit_specs_unreadable", path=str(folder), error=trouble)
        self._unreadable[folder] = trouble


def _is_spec(entry: os.DirEntry[str]) -> bool:
    """Return True for specs of other programs; our own may be many, one per claim."""
    ours = entry.name.startswith(names.CDI_FILE_PREFIX)
    return entry.name.endswith(_SUFFIXES) and not ours and entry.is_file()


def _version(status: os.stat_result) -> _Version:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _devices(path: Path) -> frozenset[str]:
    try:
        document = _json(path) if path.suffix == ".json" else yaml_file.content(path)
        return _named(document)
    except InputError as error:
        log.warning("toolkit_spec_skipped", error=str(error))
    except (OSError, ValueError, RecursionError) as error:
        log.warning("toolkit_spec_skipped", error=f"{path}: {error}")
    return frozenset()


def _json(path: Path) -> object:
    if path.stat().st_size > yaml_file.MAX_BYTES:
        raise ValueError(f"found over {yaml_file.MAX_BYTES} bytes, expected a small JSON file")
    return json.loads(path.read_bytes())


def _named(document: object) -> frozenset[str]:
    """Return the names of a spec's devices; none if it is of another kind.

    Raises:
        ValueError: The document is not a CDI spec.
    """
    if not isinstance(document, Mapping):
        raise ValueError(f"found {yaml_file.shown(document)}, expected a CDI spec")  # noqa: TRY004
    if document.get("kind") != KIND:
        return frozenset()
    devices = document.get("devices")
    if not isinstance(devices, list):
        raise ValueError(f"devices: found {yaml_file.shown(devices)}, expected a list")  # noqa: TRY004
    named = (device.get("name") for device in devices if isinstance(device, Mapping))
    return frozenset(name for name in named if isinstance(name, str))
