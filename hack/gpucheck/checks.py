"""Steps of an enforcer: what holds of its limits, measured by processes with a CDI spec's edits."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Final

from gpucheck.enforcers import HAMI_CORE, TENSOR_FUSION, Enforcer
from gpucheck.steps import CheckError, Deadline, Json, SkipError, Step
from gpucheck.tenant import Environment, Tenant
from gpucheck.workplace import Measured, Workplace

if TYPE_CHECKING:
    from collections.abc import Mapping

PERCENTS: Final = (25, 50, 75)

_GIB: Final = 2**30
_MIB: Final = 2**20
_MAX_LIMIT_BYTES: Final = 4 * _GIB
_PIECES: Final = 16
"""Parts of a memory limit that are allocated one by one."""
_LAUNCHES: Final = 500
_PASSES: Final = 2


class Checks:
    """Steps of one enforcer."""

    def __init__(self, enforcer: Enforcer, work: Workplace) -> None:
        self._enforcer: Final = enforcer
        self._work: Final = work

    def steps(self) -> list[Step]:
        """Return the steps in their order; the first one starts the node plugin."""
        name = self._enforcer.name
        # Each measurement, its warm-up and the start of its processes.
        each = self._work.seconds + self._work.warm_seconds + 8
        if name == TENSOR_FUSION:
            return [
                Step(name=f"{name}:prepare", seconds=45, run=self.prepare),
                Step(name=f"{name}:limits", seconds=1, run=_not_checkable),
            ]
        return [
            Step(name=f"{name}:prepare", seconds=45, run=self.prepare),
            Step(name=f"{name}:memory", seconds=60, run=self.memory),
            Step(name=f"{name}:compute", seconds=10 + 4 * each, run=self.compute),
            Step(name=f"{name}:tenants", seconds=10 + 2 * each, run=self.tenants),
            Step(name=f"{name}:neighbour", seconds=10 + 4 * each, run=self.neighbour),
            Step(name=f"{name}:cost", seconds=20 + 2 * _PASSES * each, run=self.cost),
        ]

    def prepare(self, deadline: Deadline, facts: Json) -> str:
        """Prepare a claim for a quarter of the card and read its spec back."""
        node = self._enforcer.open(deadline)
        facts["devices"] = node.devices()
        with node.prepared(percent=25, vram_bytes=self._limit_bytes()) as prepared:
            facts["spec"] = prepared.spec
            facts["prepare_ms"] = round(prepared.seconds * 1000, 1)
            made = prepared.edits
        facts["warnings"] = node.plugin().problems()
        if any("card_events" in each for each in facts["warnings"]):
            raise CheckError("; ".join(facts["warnings"]))
        return (
            f"{len(made.env)} variables, {len(made.mounts)} mounts and {len(made.device_nodes)} "
            f"device nodes, prepared in {facts['prepare_ms']:.0f} ms"
        )

    def memory(self, deadline: Deadline, facts: Json) -> str:
        """Allocate up to the limit and above it, in one process and in two of one container."""
        limit = self._limit_bytes()
        piece = limit // _PIECES
        above = {"bytes_of_each": limit + piece, "most_bytes": limit + piece, "keep": False}
        with self._limited(25) as place, Tenant("first process", place, deadline) as first:
            facts["one_piece_above"] = first.ask("memory", **above)
            facts["pieces"] = first.ask(
                "memory", bytes_of_each=piece, most_bytes=2 * limit, keep=False
            )
            held = first.ask("memory", bytes_of_each=piece, most_bytes=limit // 2, keep=True)
            with Tenant("second process", place, deadline) as second:
                other = second.ask("memory", bytes_of_each=piece, most_bytes=2 * limit, keep=False)
        granted = facts["pieces"]["granted_bytes"]
        both = held["granted_bytes"] + other["granted_bytes"]
        facts |= {"limit_bytes": limit, "two_processes_bytes": both}
        text = (
            f"limit {limit // _MIB} MiB: {granted // _MIB} MiB granted, then "
            f"{facts['pieces']['refusal'] or 'no refusal'}; two processes got {both // _MIB} MiB"
        )
        if facts["one_piece_above"]["granted_bytes"]:
            raise CheckError(f"{text}; {(limit + piece) // _MIB} MiB in one piece was granted")
        if not limit // 2 <= granted <= limit:
            raise CheckError(f"{text}; expected at most the limit, and at least half of it")
        if self._enforcer.name == HAMI_CORE and both > limit:
            raise CheckError(f"{text}; expected both together within the limit")
        return text

    def compute(self, deadline: Deadline, facts: Json) -> str:
        """Measure the share of compute at several limits."""
        base = self._work.unlimited(deadline)
        rows = facts["rates"] = [base.row("no limit", base)]
        for percent in PERCENTS:
            with self._limited(percent) as place:
                (found,) = self._work.measure({f"tenant with {percent} %": place}, deadline)
            rows.append(found.row("alone", base, limit_percent=percent))
        return judged(facts["rates"], self._work.tolerance_percent)

    def tenants(self, deadline: Deadline, facts: Json) -> str:
        """Measure two tenants with different limits at the same time."""
        base = self._work.unlimited(deadline)
        limits = {"tenant with 25 %": 25, "tenant with 50 %": 50}
        with ExitStack() as stack:
            places = {
                name: stack.enter_context(self._limited(percent))
                for name, percent in limits.items()
            }
            found = self._work.measure(places, deadline)
        facts["rates"] = [
            each.row("of two", base, limit_percent=percent)
            for percent, each in zip(limits.values(), found, strict=True)
        ]
        return judged(facts["rates"], self._work.tolerance_percent)

    def neighbour(self, deadline: Deadline, facts: Json) -> str:
        """Measure a tenant alone, beside another tenant, and beside a process without limits."""
        base = self._work.unlimited(deadline)
        with self._limited(50) as place, self._limited(50) as greedy:
            neighbours: Mapping[str, Environment | None] = {
                "alone": None,
                "beside a tenant": greedy,
                "beside an unlimited process": self._work.bare(),
            }
            rows = facts["rates"] = []
            for label, neighbour in neighbours.items():
                places = {"tenant": place, **({"neighbour": neighbour} if neighbour else {})}
                found = self._work.measure(places, deadline)
                rows.append(found[0].row(label, base, limit_percent=50))
                if neighbour is not None:
                    limit = 50 if neighbour is greedy else None
                    rows.append(found[1].row(f"{label}: that one", base, limit_percent=limit))
        return judged(facts["rates"], self._work.tolerance_percent)

    def cost(self, deadline: Deadline, facts: Json) -> str:
        """Compare a process without the enforcer with one that may use the whole card."""
        kernel = self._work.kernel(deadline)
        rates: dict[str, list[Measured]] = {"no limit": [], "limit 100 %": []}
        with self._limited(100) as place, ExitStack() as stack:
            processes = {
                "no limit": stack.enter_context(Tenant("no limit", self._work.bare(), deadline)),
                "limit 100 %": stack.enter_context(Tenant("limit 100 %", place, deadline)),
            }
            for _ in range(_PASSES):
                for name, process in processes.items():
                    rates[name] += self._work.together([process], kernel)
            latencies = {
                name: process.ask("latency", launches=_LAUNCHES)["microseconds"]
                for name, process in processes.items()
            }
        without, limited = (_joined(each) for each in rates.values())
        facts["rates"] = [
            without.row("no limit", without),
            limited.row("whole card", without, limit_percent=100),
        ]
        facts["launch_us"] = {
            name: {"p50": found[len(found) // 2], "p99": found[len(found) * 99 // 100]}
            for name, found in latencies.items()
        }
        p50 = [found["p50"] for found in facts["launch_us"].values()]
        return (
            f"rate {facts['rates'][1]['percent']:.0f} % of that without it; a launch takes "
            f"{p50[1]:.1f} us instead of {p50[0]:.1f} us (median)"
        )

    def _limited(self, percent: int) -> AbstractContextManager[Environment]:
        return self._work.limited(
            self._enforcer.node, percent=percent, vram_bytes=self._limit_bytes()
        )

    def _limit_bytes(self) -> int:
        part = self._enforcer.node.vram_bytes // 8
        return min(_MAX_LIMIT_BYTES, part) // (_PIECES * _MIB) * _PIECES * _MIB


def judged(rows: Sequence[Json], tolerance_percent: float) -> str:
    """Return the measured shares of compute as text.

    Args:
        tolerance_percent: Points by which a share may exceed its limit.

    Raises:
        CheckError: One of them is above its limit.
    """
    text = "; ".join(_shown(row) for row in rows)
    if any(_is_above(row, tolerance_percent) for row in rows):
        raise CheckError(f"{text}; expected at most the limit and {tolerance_percent:g} points")
    return text


def _not_checkable(_deadline: Deadline, _facts: Json) -> str:
    raise SkipError("its limiter takes its limits from its hypervisor, which is not here")


def _is_above(row: Json, tolerance: float) -> bool:
    return row["limit_percent"] is not None and row["percent"] > row["limit_percent"] + tolerance


def _shown(row: Json) -> str:
    limit = "" if row["limit_percent"] is None else f" (limit {row['limit_percent']} %)"
    return f"{row['label']}{limit} {row['percent']:.1f} %"


def _joined(measured: list[Measured]) -> Measured:
    return Measured(
        rate=sum(each.rate for each in measured) / len(measured),
        low=min(each.low for each in measured),
        high=max(each.high for each in measured),
    )
