"""Rules of Kubernetes that differ between its releases.

Each constant is the minor version from which on a rule holds, and its docstring names the feature
gate that the rule rests on. The rule does not hold where an administrator has turned the gate off,
which no client can see. The table in docs/simulator.md has one row for each constant, in this
order.
"""

from typing import Final

OLDEST: Final = 35
NEWEST: Final = 38
"""The oldest and the newest release whose rules are known here."""
SIMULATED: Final = 37
"""The release of a simulated cluster, unless another one is chosen."""

DEVICES_ONCE: Final = 36
"""One request gets a device once. Before, it could get several shares of it
(kubernetes/kubernetes#140438)."""
REPRESENTABLE: Final = 37
"""An amount that 64 bits cannot represent is an error. Before, it wrapped around."""
NO_NEGATIVE_AMOUNT: Final = 37
"""A consumed amount that is negative is an error; one below a capacity's minimum is rounded up
(gate DRAConsumableCapacity)."""
DISTINCT_FROM_ALL: Final = 37
"""A distinctAttribute compares with all devices of the claim. Before, it remembered only the latest
device of each request (gate DRAConsumableCapacity)."""
ALL_NEED_ROOM: Final = 37
"""All devices of a request for all have to have enough capacity left, except those that never have
enough. Before, those without enough left were left out (gate DRAConsumableCapacity)."""
LISTS: Final = 37
"""Selectors can read lists of values, until 1.36 only with the gate DRAListTypeAttributes. A
claim's constraints accept a list of one device only."""
DERIVED: Final = 37
"""A request with derived attributes is an error (gate DRADerivedAttributes, off). Before, the API
server dropped them."""
NO_NEGATIVE_REQUEST: Final = 38
"""A requested amount that is negative is an error (gate DRAConsumableCapacity)."""
NO_NEGATIVE_CLAIM: Final = 38
"""A negative consumedCapacity of any claim stops all allocations until the claim is gone (gate
DRAConsumableCapacity)."""
MILLI: Final = 38
"""Amounts are rounded up in thousandths, before in ones, and a finer fraction is an error (gate
DRAFractionalCapacityRange, in 1.37 only with --min-compatibility-version=1.37)."""
EXCLUSIVE: Final = 38
"""A device that is not shared any more is not allocated while a claim still has a share of it (gate
DRAConsumableCapacity)."""
QUALIFIED: Final = 38
"""A request may name a capacity with the driver's domain, and an error is one with both names. Of
two published names that mean one, that with the domain wins (gate DRAConsumableCapacity)."""
SAME_BUILD: Final = 38
"""Versions that differ in build metadata only are equal for a claim's constraints."""
ALL_ON_NODE: Final = 38
"""A request for all devices fails on the nodes of an incomplete or invalid pool. Before, it stopped
the scheduling of its pod on every node."""
ODD_ATTRIBUTES: Final = 38
"""A value that no selector can read, such as a version of 20 digits, is as if it were missing, and
a list of values in a constraint is an error. Before, every selector failed on the device."""
INCLUDES: Final = 38
"""New selectors may call ``includes()``."""
STRICT_API: Final = 38
"""The API server refuses a number of over 18 digits in a version, several terms in a device's
nodeSelector, and in a request more than 32 amounts, negative ones and names that no device has."""

GATES: Final = {"DRAConsumableCapacity": NO_NEGATIVE_AMOUNT, "DRAFractionalCapacityRange": MILLI}
"""Feature gates that are on by default, and the first release with a rule that rests on one."""
