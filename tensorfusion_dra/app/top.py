"""The verb `top`: show the cluster's GPUs, what is free, and who has the rest."""

import argparse
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tensorfusion_dra.app.shared import kubectl, logging, streams
from tensorfusion_dra.cluster.cluster_lists import ClusterLists
from tensorfusion_dra.cluster.watch import QUOTAS
from tensorfusion_dra.core import names, printable
from tensorfusion_dra.core.admission import quota
from tensorfusion_dra.core.devices.capacity import VIRTUAL_OF
from tensorfusion_dra.core.devices.gpu import is_partition
from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.core.kubernetes.quantity import Quantity
from tensorfusion_dra.scheduling import devices
from tensorfusion_dra.scheduling.devices import Holder, PublishedDevice

_COLUMNS: Final = (names.CAPACITY_TFLOPS, names.CAPACITY_VRAM)
_MODEL: Final = (names.ATTR_MODEL, names.ATTR_PARTITION)
_MIN_SECONDS: Final = 1.0
_MAX_SECONDS: Final = 86_400.0
_CLEAR: Final = "\x1b[H\x1b[2J"
_SHOWN_DIGITS: Final = 12
"""Of the ID of a container that no pod has: it has ended, or its card is simulated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Amount:
    """One capacity of a card, of which tenants have taken a part."""

    total: Quantity
    taken: Quantity

    @property
    def free(self) -> Quantity:
        """The rest; 0 if more is taken than the card has now."""
        return max(self.total - self.taken, Quantity(0, self.total.family))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Card:
    """A card with its tenants.

    Attributes:
        node: "" for a device that is not of one node, or not published any more.
        is_published: False if no slice lists the device any more, although claims hold it.
        amounts: By the published name of the capacity.
    """

    node: str
    device: PublishedDevice
    is_published: bool
    amounts: Mapping[str, _Amount]
    holders: tuple[Holder, ...]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `top`."""
    streams.add_exit_codes(parser, "printed", "never: it shows, and judges nothing")
    streams.add_form(parser)
    parser.add_argument(
        "--containers", action="store_true", help="the memory that each container uses as well"
    )
    parser.add_argument(
        "--namespaces", action="store_true", help="what namespaces have of their quotas instead"
    )
    parser.add_argument("-w", "--watch", action="store_true", help="print again until interrupted")
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="time between prints of --watch. Default: 5."
    )
    kubectl.add_flags(
        parser,
        namespace="only shares of this namespace, and cards on which it has some",
        of_all=True,
    )


def run(flags: argparse.Namespace) -> int:
    """Print the cards and return 0.

    Raises:
        InputError: A flag cannot be used, or the slices are malformed.
        RetryableError: The API server did not answer, or a permission is missing.
    """
    if not _MIN_SECONDS <= flags.seconds <= _MAX_SECONDS:
        raise InputError(
            f"seconds: found {flags.seconds:g}, expected {_MIN_SECONDS:g} to {_MAX_SECONDS:g}"
        )
    logging.configure(level="critical", form="console")
    lists = ClusterLists(kubectl.api(flags.kubeconfig, flags.context))

    is_wide = flags.form == streams.WIDE

    def page() -> str:
        if flags.namespaces:
            namespaces = _namespaces(lists, flags.namespace)
            rows = [
                [
                    each["namespace"],
                    each["claims"],
                    name,
                    *(streams.with_points(text or "-") for text in amount.values()),
                ]
                for each in namespaces
                for name, amount in each["amounts"].items()
            ]
            heads = ["NAMESPACE", "CLAIMS", "AMOUNT", "USED", "QUOTA", "LEFT"]
            return streams.formatted(
                flags.form,
                {"namespaces": namespaces},
                streams.table([heads, *rows], indent="", is_wide=is_wide),
            )
        found = _cards(lists)
        containers = _containers(lists, flags.namespace) if flags.containers else None
        namespace = flags.namespace or ""
        cards = [card for card in found if not namespace or _shares(card, namespace)]
        lines = _lines(cards, found, namespace, is_wide=is_wide, containers=containers)
        return streams.formatted(
            flags.form, _document(cards, found, namespace), map(printable.one_line, lines)
        )

    if not flags.watch:
        sys.stdout.write(page())
        return 0
    pause = threading.Event()
    try:
        watch(page, wait=lambda: not pause.wait(flags.seconds), is_screen=sys.stdout.isatty())
    except KeyboardInterrupt:
        sys.stdout.write("\n")
    return 0


def watch(page: Callable[[], str], *, wait: Callable[[], bool], is_screen: bool) -> None:
    """Print again and again, also after errors of the API server, until wait returns False."""
    going_on = True
    while going_on:
        try:
            text = page()
        except RetryableError as error:
            text = f"tensorfusion-dra: {error}\n"
        sys.stdout.write((_CLEAR if is_screen else "") + text)
        sys.stdout.flush()
        going_on = wait()


def _cards(lists: ClusterLists) -> list[_Card]:
    """Return the cluster's cards, sorted by node and name; those that are gone are last.

    Raises:
        InputError: A slice or claim is malformed.
        RetryableError: The API server did not answer, or a permission is missing.
    """
    slices = lists.slices(fieldSelector=f"spec.driver={names.DRIVER}")
    rules = lists.taint_rules()
    claims = lists.claims()
    try:
        parsed = [devices.slice_of(each) for each in devices.with_rules(rules, slices)]
        used, held = devices.usage_of(claims), devices.holders(claims)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(
            f"the cluster's slices: found {type(error).__name__} {error}, expected slices and "
            "claims as the API server shows them"
        ) from error
    node_of = {device.id: item.node_name for item in parsed for device in item.devices}
    published = {device.id: device for device in devices.newest(parsed)}
    gone = sorted(each for each in held if each.driver == names.DRIVER and each not in published)
    return [
        _Card(
            node=node_of.get(identity, "") if identity in published else "",
            device=device,
            is_published=identity in published,
            amounts={
                name: _Amount(
                    total=entry.value,
                    taken=entry.value
                    if used.is_exclusive(identity)
                    else used.taken(identity).get(name, Quantity(0)),
                )
                for name, entry in device.capacity.items()
            },
            holders=tuple(held.get(identity, ())),
        )
        for identity in [*sorted(published, key=lambda each: (node_of[each], each)), *gone]
        for device in [published.get(identity) or PublishedDevice(id=identity)]
    ]


def _namespaces(lists: ClusterLists, namespace: str | None) -> list[Mapping[str, Any]]:
    """Return what the claims of each namespace are charged, and what its quotas leave."""
    claims: dict[str, list[quota.Amounts]] = {}
    totals: dict[str, quota.Amounts] = {}
    for each in lists.claims():
        if amounts := quota.counted(each):
            claims.setdefault(each["metadata"]["namespace"], []).append(amounts)
    for each in lists.readable_items(QUOTAS, "GPUResourceQuotas") or ():
        smallest = totals.setdefault(each["metadata"]["namespace"], {})
        for name, amount in quota.totals(each).items():
            smallest[name] = min(amount, smallest.get(name, amount))
    found: list[Mapping[str, Any]] = []
    for name in sorted({namespace} if namespace else claims.keys() | totals.keys()):
        used, most = quota.sums(claims.get(name, ())), totals.get(name, {})
        rows = {}
        for row in dict.fromkeys([*(f"requests.{name}" for name in _COLUMNS), *most]):
            taken, total = used.get(row, Quantity(0)), most.get(row)
            rows[row] = {
                "used": str(taken),
                "quota": str(total) if total else None,
                "left": str(_Amount(total=total, taken=taken).free) if total else None,
            }
        found.append({"namespace": name, "claims": len(claims.get(name, ())), "amounts": rows})
    return found


def _containers(lists: ClusterLists, namespace: str | None) -> Mapping[str, tuple[str, str]]:
    """Return pod and name of each container, by the runtime's ID."""
    path = f"/api/v1/namespaces/{namespace}/pods" if namespace else "/api/v1/pods"
    found = {}
    for pod in lists.readable_items(path, "pods") or ():
        status, metadata = pod.get("status") or {}, pod["metadata"]
        name = f"{metadata['namespace']}/{metadata['name']}"
        for kind in ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"):
            for each in status.get(kind) or ():
                found[str(each.get("containerID")).rpartition("/")[2]] = (name, each["name"])
    return found


def _lines(
    cards: Sequence[_Card],
    all_cards: Sequence[_Card],
    namespace: str,
    *,
    is_wide: bool,
    containers: Mapping[str, tuple[str, str]] | None,
) -> Iterator[str]:
    """Yield the lines of the cards.

    Args:
        namespace: Only shares of this namespace; "" for all.
        containers: Pods and names of containers by their IDs; None to leave them out.
    """
    yield _summary(all_cards)
    if not cards:
        if not all_cards:
            yield "no node publishes GPUs: tensorfusion-dra doctor says what is missing"
        else:
            yield f"no shares in namespace {namespace}"
        return
    yield ""
    short = streams.short_names(card.device.id.device for card in all_cards)
    heads = ["NODE", "GPU", "MODEL", "TFLOPS FREE", "VRAM FREE", "SHARES", "HEALTH"]
    rows = [
        [
            card.node or "-",
            short[card.device.id.device],
            " ".join(_attribute(card, each) for each in _MODEL).strip() or "-",
            *(_divided(card, name) for name in _COLUMNS),
            len(card.holders),
            _health(card),
            *((card.device.id.pool, _attribute(card, names.ATTR_UUID) or "-") if is_wide else ()),
        ]
        for card in cards
    ]
    yield from streams.table(
        [[*heads, *(("POOL", "UUID") if is_wide else ())], *rows], indent="", is_wide=is_wide
    )
    shares = [(card, holder) for card in cards for holder in _shares(card, namespace)]
    if not shares:
        return
    yield ""
    heads = ["POD", "NODE", "GPU", "TFLOPS", "VRAM", "USED"]
    rows = [
        [
            holder.text + (" (observes)" if holder.is_admin else ""),
            card.node or "-",
            short[card.device.id.device],
            *(_consumed(card, holder, name) for name in _COLUMNS),
            _used(card, holder),
            *((holder.claim, holder.request) if is_wide else ()),
        ]
        for card, holder in shares
    ]
    yield from streams.table(
        [[*heads, *(("CLAIM", "REQUEST") if is_wide else ())], *rows], indent="", is_wide=is_wide
    )
    yield from (
        f"{holder.text}: limits {holder.change['reason']}: {holder.change['message']}"
        for _, holder in shares
        if holder.change
    )
    if containers is not None:
        used = sorted(
            (
                *containers.get(identity, (holder.text, identity[:_SHOWN_DIGITS])),
                *(card.node, short[card.device.id.device], amount),
            )
            for card, holder in shares
            for identity, amount in (holder.used.get("containers") or {}).items()
        )
        yield ""
        rows = [[*place, streams.shown_bytes(amount)] for *place, amount in used]
        yield from streams.table(
            [["POD", "CONTAINER", "NODE", "GPU", "VRAM USED"], *rows], indent="", is_wide=is_wide
        )


def _shares(card: _Card, namespace: str) -> list[Holder]:
    """Return the shares of a namespace on a card; all of them for ""."""
    return [each for each in card.holders if not namespace or each.namespace == namespace]


def _summary(cards: Sequence[_Card]) -> str:
    published = [card for card in cards if card.is_published]
    nodes = len({card.node for card in published if card.node})
    shares = sum(len(card.holders) for card in cards)
    sums = _totals(published)
    free = [
        f"{name} {streams.shown(amount.free, name)} of {streams.shown(amount.total, name)} free"
        for name, amount in sums.items()
        if VIRTUAL_OF.get(name) not in sums
    ]
    gone = len(cards) - len(published)
    partitions = [card for card in published if is_partition(card.device.id.device)]
    published = [card for card in published if card not in partitions]
    tainted = sum(card.device.is_tainted for card in published)
    counted = (_plural(nodes, "node"), _plural(len(published), "GPU"), _plural(shares, "share"))
    parts = [", ".join(counted), *free]
    parts += [f"{_plural(tainted, 'GPU')} tainted, not counted as free"] if tainted else []
    unused = sum(not card.holders and _health(card) == "ok" for card in partitions)
    parts += [f"{_plural(len(partitions), 'partition')}, {unused} unused"] if partitions else []
    parts += [f"{_plural(gone, 'GPU')} gone, but held by claims"] if gone else []
    return "; ".join(parts)


def _totals(found: Iterable[_Card]) -> dict[str, _Amount]:
    """Return the sums over all cards that may be allocated, by capacity; no partitions."""
    sums: dict[str, _Amount] = {}
    for card in found:
        for name, amount in card.amounts.items() if not card.device.is_tainted else ():
            none = Quantity(0, amount.total.family)
            before = sums.get(name, _Amount(total=none, taken=none))
            total = before.total + amount.total
            sums[name] = _Amount(total=total, taken=total - before.free - amount.free)
    return sums


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def _divided(card: _Card, name: str) -> str:
    """Return what is free of the capacity that tenants divide: the virtual one if there is one."""
    virtual = card.amounts.get(VIRTUAL_OF[name])
    amount = virtual or card.amounts.get(name)
    if amount is None:
        return "-"
    return f"{streams.shown(amount.free, name)} of {streams.shown(amount.total, name)}" + (
        " virtual" if virtual else ""
    )


def _consumed(card: _Card, holder: Holder, name: str) -> str:
    if holder.amounts is None:
        return "all" if not holder.is_admin else "-"
    virtual = holder.amounts.get(VIRTUAL_OF[name])
    physical = holder.amounts.get(name)
    if VIRTUAL_OF[name] in card.amounts and virtual is not None:
        return streams.shown(virtual, name)
    return streams.shown(physical, name) if physical is not None else "-"


def _used(card: _Card, holder: Holder) -> str:
    if not holder.used:
        return "-"
    text = streams.shown_bytes(holder.used["vramBytes"])
    if is_partition(card.device.id.device):  # NVML knows no utilization of one
        return text
    text += f", {holder.used['smPercent']}%"
    raised = holder.used.get("raisedSmPercent")
    return f"{text} (may use {raised}%)" if raised else text


def _health(card: _Card) -> str:
    if not card.is_published:
        return "gone"
    phase = _attribute(card, names.ATTR_PHASE)
    taints = (str(each) for each in card.device.taints if each.key != names.TAINT_PARTITION)
    return ", ".join(taints) or ("ok" if phase in ("", names.PHASE_RUNNING) else phase)


def _attribute(card: _Card, name: str) -> str:
    found = card.device.attribute(f"{names.DRIVER}/{name}")
    return "" if found is None else str(found.value)


def _document(
    cards: Sequence[_Card], all_cards: Sequence[_Card], namespace: str
) -> Mapping[str, Any]:
    free = _totals(card for card in all_cards if card.is_published)
    return {
        "free": {name: _amount(each) for name, each in free.items()},
        "cards": [
            {
                "node": card.node,
                "pool": card.device.id.pool,
                "device": card.device.id.device,
                "uuid": _attribute(card, names.ATTR_UUID),
                "model": _attribute(card, names.ATTR_MODEL),
                "published": card.is_published,
                "health": _health(card),
                "taints": [
                    {"key": taint.key, "value": taint.value, "effect": taint.effect}
                    for taint in card.device.taints
                ],
                "capacity": {name: _amount(each) for name, each in card.amounts.items()},
                "shares": [
                    {
                        "namespace": holder.namespace,
                        "pods": list(holder.consumers),
                        "claim": holder.claim,
                        "request": holder.request,
                        "exclusive": holder.amounts is None and (not holder.is_admin),
                        "adminAccess": holder.is_admin,
                        "amounts": {
                            name: str(each) for name, each in (holder.amounts or {}).items()
                        },
                        "used": holder.used or None,
                        "limitChanged": holder.change or None,
                    }
                    for holder in _shares(card, namespace)
                ],
            }
            for card in cards
        ],
    }


def _amount(amount: _Amount) -> Mapping[str, str]:
    return {"total": str(amount.total), "taken": str(amount.taken), "free": str(amount.free)}
