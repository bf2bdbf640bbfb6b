"""What the caller of the doctor asks for beside the node plugin's settings."""

import argparse
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from tensorfusion_dra.core.errors import InputError

FORMS: Final = ("table", "json")


class Place(StrEnum):
    """What kind of machine this is."""

    NODE = "node"
    WORKSTATION = "workstation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the caller asks for beside the node plugin's settings.

    Attributes:
        place: None to find out.
        host_root: Where the host's root folder is seen.
        runtime_config: The runtime's configuration file; None searches for it.
        namespace: For the writes on trial.
        service_account: Namespace and name of whose rights are asked for; None to find out.
    """

    place: Place | None = None
    host_root: Path = Path("/")
    runtime_config: Path | None = None
    namespace: str = "default"
    service_account: tuple[str, str] | None = None


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The doctor's own flags, beside the node plugin's settings."""
    parser.add_argument(
        "-o", dest="form", choices=FORMS, default="table", help="how to show what was found"
    )
    parser.add_argument(
        "--on",
        choices=tuple(Place),
        help="node, or workstation, which has nothing of its own to look at; found out by default",
    )
    parser.add_argument(
        "--host-root", default="/", help="folder in which the host's root is seen. Default: /."
    )
    parser.add_argument(
        "--runtime-config", help="configuration file of containerd or CRI-O; searched by default"
    )
    parser.add_argument(
        "--namespace", default="default", help="namespace of the writes on trial. Default: default."
    )
    parser.add_argument(
        "--service-account",
        metavar="NAMESPACE/NAME",
        help="whose rights are looked at; the DaemonSet's by default",
    )


def from_flags(flags: argparse.Namespace) -> Options:
    """What the flags ask for.

    Raises:
        InputError: One of them cannot be used.
    """
    account = None
    if flags.service_account is not None:
        namespace, slash, name = flags.service_account.partition("/")
        if not (namespace and slash and name):
            raise InputError(
                f"service-account: found {flags.service_account!r}, expected NAMESPACE/NAME"
            )
        account = (namespace, name)
    if flags.runtime_config and not Path(flags.runtime_config).is_file():
        raise InputError(f"runtime-config: {flags.runtime_config}: expected a file")
    return Options(
        place=Place(flags.on) if flags.on else None,
        host_root=Path(flags.host_root),
        runtime_config=Path(flags.runtime_config) if flags.runtime_config else None,
        namespace=flags.namespace,
        service_account=account,
    )
