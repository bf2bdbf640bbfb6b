"""Rules of allocation that differ between releases of Kubernetes.

Each constant is the minor version from which on a rule holds. A rule that names a feature gate does
not hold where an administrator has turned the gate off, which no client can see.
"""

from typing import Final

OLDEST: Final = 34
NEWEST: Final = 38
"""The oldest and the newest release whose rules are known here."""

DEVICES_ONCE: Final = 36
"""One request gets a device once. Before, it could get several shares of it
(kubernetes/kubernetes#140438)."""
DISTINCT_FROM_ALL: Final = 37
"""A distinctAttribute compares with all devices of the claim. Before, it remembered only the latest
device of each request."""
ALL_NEED_ROOM: Final = 37
"""All devices of a request for all have to have enough capacity left, except those that never have
enough. Before, those without enough left were left out."""
MILLI: Final = 37
"""Amounts are rounded up in thousandths (gate DRAFractionalCapacityRange), before in ones; one that
64 bits cannot represent is an error."""
NO_NEGATIVE_AMOUNT: Final = 37
"""A consumed amount that is negative is an error; one below a capacity's minimum is rounded up."""
NO_NEGATIVE_REQUEST: Final = 38
"""A requested amount that is negative is an error."""
NO_NEGATIVE_CLAIM: Final = 38
"""A negative consumedCapacity of any claim stops all allocations until the claim is gone."""
LISTS: Final = 37
"""Selectors can read lists of values (gate DRAListTypeAttributes until 1.36). A claim's constraints
accept a list of one device only."""
ODD_ATTRIBUTES: Final = 38
"""A value that no selector can read, such as a version of 20 digits, is as if it were missing, and
a list of values in a constraint is an error. Before, every selector failed on the device."""
EXCLUSIVE: Final = 38
"""A device that is not shared any more is not allocated while a claim still has a share of it."""
SAME_BUILD: Final = 38
"""Versions that differ in build metadata only are equal for a claim's constraints."""
ALL_ON_NODE: Final = 38
"""A request for all devices fails on the nodes of an incomplete or invalid pool. Before, it stopped
the scheduling of its pod on every node."""
QUALIFIED: Final = 38
"""A request may name a capacity with the driver's domain, and an error is one with both names. Of
two published names that mean one, that with the domain wins."""
DERIVED: Final = 37
"""A request with derived attributes is an error (gate DRADerivedAttributes, off). Before, the API
server dropped them."""
