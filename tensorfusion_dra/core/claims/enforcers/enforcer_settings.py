"""What an enforcer is built from: the node's settings, and folders of its own."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from tensorfusion_dra.core.claims.enforcers.enforcer import Enforcer


@dataclass(frozen=True, slots=True, kw_only=True)
class EnforcerSettings:
    """The node's settings as an enforcer sees them.

    Attributes:
        folder: Host folder of this enforcer alone, for files that all its claims share.
        claims_root: Host folder in which each claim can have a folder of its own, named by its UID.
            That folder is removed with the claim, with everything that containers wrote into it.
        values: Every setting of the node plugin as text, by the name of its flag.
    """

    folder: str
    claims_root: str
    values: Mapping[str, str] = field(default_factory=dict)


class EnforcerKind(Protocol):
    """Class of an enforcer, which an entry point names.

    Attributes:
        name: Name of the enforcer in the settings, and of its entry point.
        enforces_hard: As in Enforcer; the webhook needs it without the node's settings.
        expands_memory: As in Enforcer.
    """

    name: ClassVar[str]
    enforces_hard: ClassVar[bool]
    expands_memory: ClassVar[bool]

    @classmethod
    def from_settings(cls, settings: EnforcerSettings, /) -> Enforcer:
        """Return the enforcer of a node."""
        ...
