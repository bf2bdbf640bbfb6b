"""What is known of this node's ResourceSlices, from lists, watch events and answers to own writes.

Events and lists may be older than the answer to a write that this process has made since. So of two
states of one object the one with the larger resourceVersion is the later one, as Kubernetes' own
clients compare them. An object that this process has deleted never comes back, because another one
of its name has another UID.

Example: another writer changes a slice (version 7). The publisher does not know yet, is refused,
lists the slices and replaces this one (version 9). Now the events of versions 7 and 9 arrive. Both
are known, so nothing is read or written because of them.
"""

from collections.abc import Iterable, Mapping, Sequence

from tensorfusion_dra.core.devices.slices import Slice


class KnownSlices:
    """The slices of one node as last seen. For one thread at a time."""

    def __init__(self) -> None:
        self._by_name: Mapping[str, Slice] | None = None
        self._deleted: set[str] = set()  # UIDs of own deletions that no list has confirmed

    def all(self) -> Sequence[Slice] | None:
        """Return the slices; None if they were never listed."""
        return None if self._by_name is None else list(self._by_name.values())

    def note_list(self, items: Sequence[Slice], version: str) -> bool:
        """Take in a list; return True if another writer has changed something since the last one.

        Args:
            version: The resourceVersion of the list. Own writes that are later stay.
        """
        listed = {_name(item): item for item in items if _uid(item) not in self._deleted}
        self._deleted.intersection_update(map(_uid, items))
        before, self._by_name = self._by_name, listed
        if before is None:
            return bool(listed)
        for name, known in before.items():
            found = _version(listed[name]) if name in listed else version
            if _is_later(_version(known), found):
                listed[name] = known
        return _states(before.values()) != _states(listed.values())

    def note_event(self, event: str, item: Slice) -> bool:
        """Take in an event of the watch; return True if it brings news."""
        slices = dict(self._by_name or {})
        known = slices.get(_name(item))
        if event == "DELETED":
            if known is None or _uid(known) != _uid(item):
                return False
            del slices[_name(item)]
        elif _uid(item) in self._deleted or not _is_news(item, known):
            return False
        else:
            slices[_name(item)] = item
        self._by_name = slices
        return True

    def note_stored(self, item: Slice) -> None:
        """Take in the answer to an own write."""
        if self._by_name is not None and _is_news(item, self._by_name.get(_name(item))):
            self._by_name = {**self._by_name, _name(item): item}

    def note_deleted(self, item: Slice) -> None:
        """Take in the answer to an own deletion."""
        self._deleted.add(_uid(item))
        if self._by_name is not None:
            slices = self._by_name.items()
            self._by_name = {name: known for name, known in slices if _uid(known) != _uid(item)}


def _is_news(item: Slice, known: Slice | None) -> bool:
    return known is None or _is_later(_version(item), _version(known))


def _is_later(version: str, than: str) -> bool:
    """Return True if a resourceVersion is later than another, or if they cannot be compared."""
    if not (version.isdecimal() and than.isdecimal()):
        return version != than
    return int(version) > int(than)


def _states(slices: Iterable[Slice]) -> set[tuple[str, str]]:
    return {(_uid(item), _version(item)) for item in slices}


def _name(item: Slice) -> str:
    return str(item["metadata"]["name"])


def _uid(item: Slice) -> str:
    return str(item["metadata"]["uid"])


def _version(item: Slice) -> str:
    return str(item["metadata"]["resourceVersion"])
