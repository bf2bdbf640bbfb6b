"""Second pass: request policies and pool names, so that a slice's devices can be shared."""

from typing import Final

from yaml.nodes import MappingNode, ScalarNode

from tensorfusion_dra.app.convert import kinds, source
from tensorfusion_dra.app.convert.changes import Changes
from tensorfusion_dra.app.convert.source import Entry, Written
from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices import capacity
from tensorfusion_dra.core.kubernetes import name_rules, quantity
from tensorfusion_dra.core.kubernetes.quantity import MIB, NANO, Quantity, QuantityError

_TRUE: Final = frozenset({"true", "True", "TRUE"})
_IN_STEPS: Final = frozenset({names.CAPACITY_VRAM, names.CAPACITY_VIRTUAL_VRAM})


def find(item: MappingNode, changes: Changes) -> None:
    """Collect the changes in one object of resource.k8s.io."""
    _pool(item, changes)
    for device in kinds.devices(item):
        if source.text(device, "allowMultipleAllocations") in _TRUE:
            listed = source.entries(source.value(device, "capacity"))
            is_virtual = any(entry.key.value in capacity.VIRTUAL for entry in listed)
            for entry in listed:
                _policy(entry, changes, is_virtual=is_virtual)


def _pool(item: MappingNode, changes: Changes) -> None:
    """Append the node's name to the pool's name.

    The scheduler takes slices of several nodes with the same pool name for one pool.
    """
    if source.text(item, "kind") != kinds.SLICE:
        return
    name = source.value(item, "spec", "pool", "name")
    node = source.text(item, "spec", "nodeName")
    if not isinstance(name, ScalarNode) or not node or node in name.value.split("/"):
        return
    own = f"{name.value}/{node}"
    if any(name_rules.pool("", own)):
        return  # an invalid name of a pool or node, which the API server reports
    changes.reason(name, f"a pool without the node's name is one pool of several nodes: {own}")
    changes.replace(name, own)


def _policy(entry: Entry, changes: Changes, *, is_virtual: bool) -> None:
    """Add a request policy to a capacity.

    Without one, a claim that does not name the capacity takes all of it, so nothing is shared.
    """
    amount = source.entry(entry.value, "value")
    has_policy = source.entry(entry.value, "requestPolicy") is not None
    if amount is None or has_policy or not isinstance(entry.value, MappingNode):
        return
    try:
        total = quantity.parse(amount.value.value)
    except QuantityError as error:
        changes.problem(amount.value, f"{entry.key.value}: {error}")
        return
    changes.reason(entry.key, "without a requestPolicy the first claim takes all of it")
    name = str(entry.key.value)
    # Beside virtual capacities the physical ones default to 0, so that only a claim that names
    # them consumes them.
    is_physical = is_virtual and name not in capacity.VIRTUAL
    limits: dict[str, Written] = {"min": '"0"'}
    if name in _IN_STEPS and not is_physical and total.nano % (MIB * NANO) == 0:
        limits = {"min": "1Mi", "step": "1Mi"}
    default = Quantity.whole(0) if is_physical else total
    written: dict[str, Written] = {"default": f'"{default}"', "validRange": limits}
    changes.insert(entry.value, "requestPolicy", written, after=amount)
