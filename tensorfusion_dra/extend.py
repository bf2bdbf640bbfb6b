"""Public API for driver developers: attributes, capacities, health sources and enforcers.

A package that is installed beside this one names its providers in entry point groups, one for each
kind:

    [project.entry-points."tensorfusion_dra.attributes"]
    rack = "my_package:rack_attributes"

The groups are ``tensorfusion_dra.attributes``, ``.capacities``, ``.health_sources`` and
``.enforcers``.

Theory of operation. An entry point names a callable, or a class that is instantiated without
arguments. It is imported and called in a thread of its own: once per reading of the node's cards,
first ``begin`` if it has that method, then once for each card.

- All calls of one reading together have BUDGET_SECONDS. After that the reading goes on without
  them. A provider that has not returned is not called again until it has.
- If a call fails or is late, the driver keeps using the provider's last good answer for the card.
  So an answer is withdrawn by returning an empty one, not by an exception.
- The driver builds each device, then adds the entries of providers, in the order of their names.
  The first one to give a name to a device wins.
- One that fails costs only its own answers. It is logged once, and shown by ``tensorfusion-dra
  inspect --providers``.

Enforcers are different: an entry point names a subclass of Enforcer, which is called while a claim
is prepared and while limits are watched. Two threads call it, one for its pure methods, one for the
others, and each call has BUDGET_SECONDS. A fault (another exception than ClaimError and
RetryableError, a late answer, one of another type) fails the claim at hand. What is in an answer
is not checked; testing.check_enforcer() examines it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, runtime_checkable

from tensorfusion_dra.core.claims.enforcer import (
    Advice,
    Edits,
    Enforcer,
    EnforcerFacts,
    EnforcerSettings,
    Folder,
    Needs,
    Records,
    Sign,
    SilentEnforcerError,
    TextFile,
    enforced,
    is_simulated,
)
from tensorfusion_dra.core.claims.index_limits import limits as limits_by_index
from tensorfusion_dra.core.claims.prepared import Limit, Mount, PreparedClaim, PreparedShare
from tensorfusion_dra.core.claims.verdicts import State, Verdict
from tensorfusion_dra.core.devices.capacity import Capacity, consumable
from tensorfusion_dra.core.devices.device import AttributeValue, Node, Reading, Version
from tensorfusion_dra.core.devices.gpu import Gpu, Isolation, TflopsSource
from tensorfusion_dra.core.devices.health import Problem
from tensorfusion_dra.core.errors import ClaimError, RetryableError
from tensorfusion_dra.core.kubernetes.quantity import Quantity

__all__ = [
    "BUDGET_SECONDS",
    "Advice",
    "AttributeProvider",
    "AttributeValue",
    "Begins",
    "Capacity",
    "CapacityProvider",
    "ClaimError",
    "Edits",
    "Enforcer",
    "EnforcerFacts",
    "EnforcerSettings",
    "Folder",
    "Gpu",
    "HealthSource",
    "Isolation",
    "Limit",
    "Listens",
    "Mount",
    "Needs",
    "Node",
    "PreparedClaim",
    "PreparedShare",
    "Problem",
    "Quantity",
    "Reading",
    "Records",
    "RetryableError",
    "Sign",
    "SilentEnforcerError",
    "State",
    "TextFile",
    "TflopsSource",
    "Verdict",
    "Version",
    "consumable",
    "enforced",
    "is_simulated",
    "limits_by_index",
]

BUDGET_SECONDS: Final = 2.0
"""Time of a provider for all cards of a reading, and of an enforcer for one call."""


class AttributeProvider(Protocol):
    """Provider of additional attributes for the device of one card."""

    def __call__(self, gpu: Gpu, node: Node, /) -> Mapping[str, AttributeValue]:
        """Return attributes by name, ``<your domain>/<identifier>``.

        It should return the same attributes for the same card, because every change is written to
        the API server. A value is a string of at most 64 bytes, a 64-bit int, a bool or a Version.
        A name of the driver's domain, or a value that the API would refuse, is left out.
        """
        ...


class CapacityProvider(Protocol):
    """Provider of additional capacities, which claims consume parts of."""

    def __call__(self, gpu: Gpu, node: Node, /) -> Mapping[str, Capacity]:
        """Return capacities by name, ``<your domain>/<identifier>``.

        Make them with consumable(). Kubernetes' scheduler adds up what claims consume of them, and
        the driver checks the sum again when it prepares a claim.
        """
        ...


class HealthSource(Protocol):
    """Source of problems of a card that the NVIDIA driver does not report."""

    def __call__(self, gpu: Gpu, /) -> Sequence[Problem]:
        """Return what is wrong with the card now; empty if nothing is.

        A problem makes the card unhealthy, with a taint of its reason. The card is healthy again
        after some readings and some time without any problem (setting health-quiet-seconds), as
        after problems that the NVIDIA driver reports.
        """
        ...


@runtime_checkable
class Begins(Protocol):
    """A provider that needs all cards at once, or that fetches once for all of them."""

    def begin(self, reading: Reading, /) -> None:
        """Prepare for the calls with each card of this reading; counts into the same budget."""
        ...


@runtime_checkable
class Listens(Protocol):
    """A provider that learns of changes by itself, between two readings."""

    def listen(self, wake: Callable[[], None], /) -> None:
        """Keep `wake`, and return at once.

        Called once. Calling `wake`, from any thread, has the cards read and the provider called
        soon: at once, but no more often than once a second.
        """
        ...
