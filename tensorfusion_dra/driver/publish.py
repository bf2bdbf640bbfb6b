"""Publication of the node's devices: one loop that keeps the stored ResourceSlices up to date.

Each round compares the slices that follow from the catalog with the stored ones, and writes the
difference (core/devices/slices.py chooses the writes). If there is no difference, nothing is
written. The stored slices are known from a watch and from the answers to own writes, and the Node's
UID is kept. So most rounds send no request but their writes. A round begins when

- the catalog changed (wake()),
- another writer changed or deleted a slice (slices_changed()),
- the watch has begun again, perhaps at another server (server_returned()),
- a delay is over: after an error, or before a repair.

Three rules restrict the writes:

- **The publishing right.** During a rolling update two instances share the node, and the newest
  that is able to publish has the right (state/publishing_right.py). An instance without it skips
  its rounds. Once a second it checks whether it has the right again; then it compares all slices.
- **The pace of repairs.** If the wanted slices have not changed since they were last stored, a
  difference is the work of another writer, and writing it is a repair. The first repair is made at
  once, further ones with growing delays (Repairs).
- **Dropped fields.** An API server with a feature gate off drops the gate's fields from what it
  stores. These gates are remembered, and the missing fields then count as no difference. After a
  restart they are found out by a dry run instead of a write.

Example: the kubelet restarts and deletes the slices. The watch reports it, and the slices are
created again at once. Then a script changes a slice every few seconds. Its changes are repaired
too, at intervals that grow to a minute, and an Event on the Node names the script's field manager.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from threading import Event
from typing import Final

import structlog

from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices import slices
from tensorfusion_dra.core.devices.slices import Slice, SlicePlan, WriteReason
from tensorfusion_dra.core.errors import MissingPermissionError, RetryableError
from tensorfusion_dra.core.kubernetes.slice_normal_form import KUBERNETES_DROPS
from tensorfusion_dra.core.observed.node_view import PublishingView
from tensorfusion_dra.driver.catalog import DeviceCatalog
from tensorfusion_dra.driver.ports import Events, Nodes, Slices
from tensorfusion_dra.runtime.loops import Backoff, LogThrottle, Wakeup
from tensorfusion_dra.state.publishing_right import PublishingRight

_LONGEST_SECONDS: Final = 60.0
_QUIET_SECONDS: Final = 600.0


class Repairs:
    """The pace of repairs: how soon slices that another writer changed are written again.

    The first repair is made at once, because a kubelet that restarts deletes the slices of its
    drivers. Each further one waits twice as long as the one before, up to a minute. Otherwise two
    writers could undo each other's writes many times a second. After ten minutes without a repair,
    the next one is again made at once.

    seconds_left() is safe for all threads, the other methods are for one thread.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without any repair.

        Args:
            clock: In seconds; must not go back.
        """
        self._clock = clock
        self._backoff = Backoff(first_seconds=1, longest_seconds=_LONGEST_SECONDS)
        self._repaired_at = -_QUIET_SECONDS
        self._next_at = 0.0
        self.is_reported = False

    def seconds_left(self) -> float:
        """Return the time until the next repair may be made; 0 if it may be made now."""
        return max(0.0, self._next_at - self._clock())

    def record(self) -> bool:
        """Record a repair; return True if the repeated repairs should be reported.

        That is from the second repair in a row on, until the caller sets is_reported, which ends
        with the next quiet time.
        """
        now = self._clock()
        is_first = now - self._repaired_at >= _QUIET_SECONDS
        if is_first:
            self._backoff.succeeded()
            self.is_reported = False
        self._repaired_at = now
        self._next_at = now + self._backoff.failed()
        return not is_first and not self.is_reported


log = structlog.get_logger()

_RIGHT_SECONDS: Final = 1.0
"""Interval at which an instance without the publishing right checks whether it has it again."""
_NOT_PERMITTED_SECONDS: Final = 60.0
"""Least delay after a refusal by RBAC, which lasts until an administrator grants the permission."""


class Publisher:
    """Loop that publishes the node's devices; other threads only wake it and call view().

    Writes are counted by reason. Example: a card becomes unhealthy, and the first write fails. The
    next round writes the same slice for the reason `retry`, and the write is counted there.
    """

    def __init__(
        self,
        catalog: DeviceCatalog,
        slices_at_server: Slices,
        nodes: Nodes,
        events: Events,
        *,
        right: PublishingRight,
        repairs: Repairs | None = None,
    ) -> None:
        """Publish nothing yet.

        Args:
            catalog: The devices to publish.
            slices_at_server: This node's slices.
            nodes: Gives the UID of the Node, which owns the slices. It is read once, and again
                after a change of another writer: if the Node was recreated, Kubernetes' garbage
                collector deletes the slices of the old one.
            events: Of this loop's thread alone.
            right: The right to publish, which instances on this node pass on.
            repairs: The pace of repairs; None for the default.
        """
        self._view = PublishingView()  # replaced as a whole, so that reading needs no lock
        self._events = events
        self._repairs = repairs or Repairs()
        self._confirmed: Sequence[Slice] = ()  # wanted slices, as last found or made stored
        self._writing: WriteReason | None = None  # from the first write until they are stored
        self._catalog = catalog
        self._slices = slices_at_server
        self._nodes = nodes
        self._right = right
        self._wakeup = Wakeup()
        self._recheck_gates = Event()
        self._recheck_node = Event()
        self._recheck_node.set()
        self._node_uid = ""
        self._dropped: frozenset[str] = frozenset()  # feature gates that the server has off
        self._logged_dropped: frozenset[str] = frozenset()
        self._throttle = LogThrottle()

    def view(self) -> PublishingView:
        """Return the present state."""
        return self._view

    def wake(self) -> None:
        """Begin a round now, because the catalog may have changed."""
        self._wakeup.wake()

    def slices_changed(self) -> None:
        """Begin a round as soon as a repair may be made: another writer has changed a slice."""
        self._recheck_node.set()
        # If a repair has to wait, run() begins a round by itself when the wait is over.
        if not self._repairs.seconds_left():
            self._wakeup.wake()

    def server_returned(self) -> None:
        """Begin a round, and find out again which fields the API server drops.

        It may be another server now, or the same one with other feature gates.
        """
        self._recheck_gates.set()
        self._wakeup.wake()

    def stop(self) -> None:
        """End run(). The slices stay; the kubelet deletes them if no instance comes back."""
        self._wakeup.stop()

    def run(self) -> None:
        """Publish until stopped, as long as this instance has the publishing right."""
        backoff = Backoff(first_seconds=0.2, longest_seconds=30)
        while self._wakeup.next_round():
            delay: float | None = None
            has_right = self._right.held()
            if has_right != self._view.has_right:
                self._view = replace(self._view, has_right=has_right)
                log.info("publishing_resumed" if has_right else "publishing_left_to_newer_instance")
            try:
                # Without the right the round is skipped. Nothing is missed, because a round
                # compares everything once the right is back.
                if has_right:
                    self.publish()
            except RetryableError as error:
                self._recheck_node.set()
                since = self._view.error_since or datetime.now(UTC)
                self._view = replace(self._view, error=str(error), error_since=since)
                event, delay = "publish_retried", backoff.failed(at_least=error.after_seconds)
                if isinstance(error, MissingPermissionError):
                    event, delay = "publish_forbidden", max(delay, _NOT_PERMITTED_SECONDS)
                if self._throttle.is_new(str(error)):
                    log.warning(event, seconds=round(delay, 1), error=str(error))
                if error.after_seconds:
                    self._wakeup.pause(delay)  # the server requested it, so no wake() may end it
                    continue
            else:
                backoff.succeeded()
                self._view = replace(self._view, error="", error_since=None)
                self._throttle.over()
                delay = self._repairs.seconds_left() or None
            self._wait(delay)
        self._right.release()

    def publish(self) -> SlicePlan | None:
        """Write what differs from the stored slices; return the writes.

        Returns None if nothing differs, or if it is too early for another repair.

        Raises:
            RetryableError: A write may not have been made.
        """
        current = self._catalog.current()
        if current is None:
            return None
        stored = self._slices.fetch()
        if not (current.devices or stored):
            return None
        if self._recheck_node.is_set():
            self._recheck_node.clear()
            self._node_uid = self._nodes.uid()
        wanted = slices.wanted(current.devices, current.node, node_uid=self._node_uid)
        self._right.take()
        if self._recheck_gates.is_set():
            self._recheck_gates.clear()
            self._dropped = frozenset()
            self._view = replace(self._view, dropped_gates=())
        plan = slices.plan(wanted, stored, dropped=self._dropped)
        if plan and not self._dropped and self._server_drops(plan, wanted, stored):
            plan = slices.plan(wanted, stored, dropped=self._dropped)  # which has no writes
        if not plan:
            self._confirm(wanted, plan)
            return None
        is_repair = self._writing is None and wanted == self._confirmed
        if is_repair and self._repairs.seconds_left():
            return None
        if is_repair and self._repairs.record():
            self._report_contest(plan)
        if self._writing is not None:
            self._writing = WriteReason.RETRY  # the writes before were not confirmed
        elif is_repair:
            self._writing = WriteReason.REPAIR
        else:
            self._writing = slices.write_reason(self._confirmed, wanted)
        self._apply(plan, self._writing)
        self._confirm(wanted, plan)
        self._view = replace(self._view, written_at=self._view.confirmed_at)
        log.info(
            "slices_published",
            pool=current.node.pool,
            generation=plan.generation,
            devices=len(current.devices),
            written=len(plan.create) + len(plan.update),
            deleted=len(plan.delete),
        )
        return plan

    def _confirm(self, wanted: Sequence[Slice], plan: SlicePlan) -> None:
        """Note that the stored slices are the wanted ones."""
        self._confirmed, self._writing = wanted, None
        self._view = replace(
            self._view,
            generation=plan.generation,
            slices=len(wanted),
            devices=sum(len(item["spec"]["devices"]) for item in wanted),
            confirmed_at=datetime.now(UTC),
        )

    def _report_contest(self, plan: SlicePlan) -> None:
        """Log the other writers of the slices, and name them in an Event on the Node."""
        writers = ", ".join(slices.other_writers(plan))
        found = f"found them written by {writers}" if writers else "found them deleted or written"
        error = (
            f"ResourceSlices of {names.DRIVER}: {found} again and again, "
            f"expected {names.FIELD_MANAGER} as their only writer; they are restored once a minute"
        )
        log.warning("slices_contested", writers=writers, error=error)
        if self._events.warn(names.EVENT_SLICES_CONTESTED, error):
            self._repairs.is_reported = True

    def _wait(self, seconds: float | None) -> None:
        """Wait until woken or until the publishing right is back; None sets no time limit."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self._view.has_right:
            left = _RIGHT_SECONDS if deadline is None else deadline - time.monotonic()
            if left <= 0 or self._wakeup.wait(min(left, _RIGHT_SECONDS)) or self._right.held():
                return
        self._wakeup.wait(seconds)

    def _server_drops(
        self, plan: SlicePlan, wanted: Sequence[Slice], stored: Sequence[Slice]
    ) -> bool:
        """Return True if the stored slices lack only fields that this API server drops.

        That is the case after a restart. Writing the slices again would change nothing and wake
        every watcher, so one of them is sent as a dry run.
        """
        if plan.create or plan.delete:
            return False
        for gates in KUBERNETES_DROPS:
            if slices.plan(wanted, stored, dropped=gates):
                continue
            # One that has such fields, because not every slice has a device with a taint.
            sent = next(item for item in plan.update if slices.loses(item, gates))
            if slices.dropped_gates(sent, self._slices.replace(sent, trial=True)) != gates:
                return False
            self._record_dropped(gates)
            return True
        return False

    def _apply(self, plan: SlicePlan, reason: WriteReason) -> None:
        for item in plan.delete:
            self._slices.delete(item)
            self._count_write(reason)
        writes = [(self._slices.replace, item) for item in plan.update]
        writes += [(self._slices.create, item) for item in plan.create]
        for write, item in writes:
            stored = write(item)
            self._count_write(reason)
            if gates := slices.dropped_gates(item, stored):
                self._record_dropped(gates)

    def _count_write(self, reason: WriteReason) -> None:
        writes = self._view.writes
        self._view = replace(self._view, writes={**writes, reason: writes[reason] + 1})

    def _record_dropped(self, gates: frozenset[str]) -> None:
        # Added to the known ones: a slice without a taint does not show that taints are dropped.
        self._dropped |= gates
        self._view = replace(self._view, dropped_gates=tuple(sorted(self._dropped)))
        if self._dropped != self._logged_dropped:
            self._logged_dropped = self._dropped
            log.error(
                "slice_fields_dropped",
                feature_gates=sorted(self._dropped),
                error="the API server keeps only a part of each device: enable these feature "
                "gates on kube-apiserver, kube-scheduler, kube-controller-manager and kubelet",
            )
