"""Entry points of installed packages, read so that one package costs no other."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, distributions
from typing import Final

import structlog

log = structlog.get_logger()

_UNKNOWN: Final = "an unknown package"


@dataclass(frozen=True, slots=True)
class Installed:
    """An entry point of an installed package.

    Attributes:
        package: Name and version.
    """

    package: str
    entry: EntryPoint


def entry_points(groups: Collection[str]) -> Iterator[Installed]:
    """Yield the entry points in these groups, in the order of the path of modules.

    Of a package that is installed twice the first one counts, as for importlib's entry_points().
    That function fails as a whole if the description of one package cannot be read; here such a
    package is logged and left out.
    """
    seen: set[str] = set()
    for distribution in distributions():
        name, package = "", _UNKNOWN
        try:
            metadata = distribution.metadata
            if "Name" in metadata:  # since Python 3.12 it is deprecated to read a missing key
                name = metadata["Name"]
                package = f"{name} {metadata['Version']}"
            found = [each for each in distribution.entry_points if each.group in groups]
        except Exception as error:  # noqa: BLE001 - files of another package
            log.error("provider_skipped", package=package, error=repr(error))
            continue
        same = name.lower().replace("_", "-").replace(".", "-")
        if not same or same not in seen:
            yield from (Installed(package, each) for each in found)
        seen.add(same)
