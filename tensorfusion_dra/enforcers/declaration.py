"""What an enforcer declares: all that others know of it without importing it.

A declaration imports neither libraries nor an enforcer's code, so the webhook and `--help` read it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tensorfusion_dra.core.claims.enforcer import EnforcerFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """One of the driver's own enforcers.

    Attributes:
        name: Its name in the setting `enforcer`, and in the records of claims.
        path: Its class below this package, as mps.enforcer:Mps.
        facts: What is true of it on every node.
        in_auto: False if the value `auto` leaves it out.
        is_simulated: True for the one whose specs claims get with simulated GPUs.
        bypasses: Variables by which a container could evade its limits. The webhook refuses pods
            that set them, whatever enforcer their nodes have.
        alternative: Advice for a node that lacks another enforcer; "" for none.
        settings: Its settings, made by core.settings.setting(), by the name of the field.
        pod: What the node plugin's pod has for it, which `make manifests` hands to the chart. All
            keys may be left out; templates/_enforcers.tpl says what they mean.
    """

    name: str
    path: str
    facts: EnforcerFacts
    in_auto: bool = True
    is_simulated: bool = False
    bypasses: tuple[str, ...] = ()
    alternative: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    pod: Mapping[str, Any] = field(default_factory=dict)
