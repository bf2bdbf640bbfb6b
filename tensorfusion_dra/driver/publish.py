"""Keeps the node's ResourceSlices what its devices are."""

import time
from collections.abc import Sequence
from threading import Event
from typing import Final

import structlog

from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices import slices
from tensorfusion_dra.core.devices.slices import Slice, SlicePlan
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes.slice_normal_form import KUBERNETES_DROPS
from tensorfusion_dra.driver.backoff import Backoff
from tensorfusion_dra.driver.catalog import CatalogReader
from tensorfusion_dra.driver.log_throttle import LogThrottle
from tensorfusion_dra.driver.ports.cluster import Events, MissingRightError, Nodes, Slices
from tensorfusion_dra.driver.repairs import Repairs
from tensorfusion_dra.driver.wakeup import Wakeup
from tensorfusion_dra.state.publishing_right import PublishingRight

log = structlog.get_logger()

_RIGHT_SECONDS: Final = 1.0
"""How soon an instance notices that the newer one has gone."""
_NOT_PERMITTED_SECONDS: Final = 60.0
"""A right comes when an administrator grants it."""


class Publisher:
    """One loop that everything else only wakes: a changed card, a changed or deleted slice."""

    def __init__(
        self,
        catalog: CatalogReader,
        slices_at_server: Slices,
        nodes: Nodes,
        events: Events,
        *,
        right: PublishingRight,
        repairs: Repairs | None = None,
    ) -> None:
        """Publishes nothing yet.

        Args:
            events: For one thread, this one.
            repairs: None for a pace of its own.
        """
        self._events = events
        self._repairs = repairs or Repairs()
        self._confirmed: Sequence[Slice] = ()  # as last seen at the server
        self._catalog = catalog
        self._slices = slices_at_server
        self._nodes = nodes
        self._right = right
        self._wakeup = Wakeup()
        self._recheck_gates = Event()
        self._dropped: frozenset[str] = frozenset()
        self._told_dropped: frozenset[str] = frozenset()
        self._told_right = True
        self._throttle = LogThrottle()

    def wake(self) -> None:
        """The catalog or the stored slices may have changed: look at them now."""
        self._wakeup.wake()

    def slices_changed(self) -> None:
        """Somebody may have changed the stored slices: look as soon as they may be repaired."""
        # run() looks by itself once that time has come.
        if not self._repairs.seconds_left():
            self._wakeup.wake()

    def server_returned(self) -> None:
        """The API server may be another one now: look again, also at what it drops."""
        self._recheck_gates.set()
        self._wakeup.wake()

    def stop(self) -> None:
        """Ends run(). The slices stay: the kubelet removes them if nobody comes back."""
        self._wakeup.stop()

    def run(self) -> None:
        """Publishes until stopped, whenever the right to do so is this instance's."""
        backoff = Backoff(first_seconds=0.2, longest_seconds=30)
        while self._wakeup.next_round():
            delay: float | None = None
            try:
                # Who has no right looks at all of it once it has the right again.
                if self._has_right():
                    self.publish()
            except RetryableError as error:
                delay = self._tell(error, backoff.failed(at_least=error.after_seconds))
                if error.after_seconds:
                    self._wakeup.pause(delay)  # the server asked for it
                    continue
            else:
                backoff.succeeded()
                self._throttle.over()
                delay = self._repairs.seconds_left() or None
            self._wait(delay)
        self._right.release()

    def publish(self) -> SlicePlan | None:
        """Writes what differs from the stored slices; None if nothing does.

        None as well if others have changed them and it is too early to repair that again.

        Raises:
            RetryableError: Something may not have been written.
        """
        current = self._catalog.current()
        if current is None:
            return None
        stored = self._slices.fetch()
        if not current.devices and not stored:
            return None
        wanted = slices.wanted(current.devices, current.node, node_uid=self._nodes.uid())
        self._right.take()
        if self._recheck_gates.is_set():
            self._recheck_gates.clear()
            self._dropped = frozenset()
        plan = slices.plan(wanted, stored, dropped=self._dropped)
        if plan and not self._dropped and self._server_drops(plan, wanted, stored):
            return None
        is_repair = wanted == self._confirmed
        if not plan or (is_repair and self._repairs.seconds_left()):
            self._confirmed = wanted
            return None
        if is_repair and self._repairs.made():
            self._tell_of_contest(plan)
        self._confirmed = ()
        self._apply(plan)
        self._confirmed = wanted
        log.info(
            "slices_published",
            pool=current.node.pool,
            generation=plan.generation,
            devices=len(current.devices),
            written=len(plan.create) + len(plan.update),
            deleted=len(plan.delete),
        )
        return plan

    def _tell_of_contest(self, plan: SlicePlan) -> None:
        """Says once who else writes the slices, also to an administrator who looks at the Node."""
        writers = ", ".join(slices.other_writers(plan))
        found = f"found them written by {writers}" if writers else "found them deleted or written"
        error = (
            f"ResourceSlices of {names.DRIVER}: {found} again and again, "
            f"expected {names.FIELD_MANAGER} as their only writer; they are restored once a minute"
        )
        log.warning("slices_contested", writers=writers, error=error)
        if self._events.warn(names.EVENT_SLICES_CONTESTED, error):
            self._repairs.told()

    def _tell(self, error: RetryableError, delay: float) -> float:
        """Says once what does not pass by itself, which is tried again more rarely."""
        event = "publish_retried"
        if isinstance(error, MissingRightError):
            event, delay = "publish_forbidden", max(delay, _NOT_PERMITTED_SECONDS)
        if self._throttle.is_new(str(error)):
            log.warning(event, seconds=round(delay, 1), error=str(error))
        return delay

    def _has_right(self) -> bool:
        held = self._right.held()
        if held != self._told_right:
            self._told_right = held
            log.info("publishing_resumed" if held else "publishing_left_to_newer_instance")
        return held

    def _wait(self, seconds: float | None) -> None:
        """Returns when woken, when the right has come back, or after the time if there is one."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self._told_right:
            left = _RIGHT_SECONDS if deadline is None else deadline - time.monotonic()
            if left <= 0 or self._wakeup.wait(min(left, _RIGHT_SECONDS)) or self._right.held():
                return
        self._wakeup.wait(seconds)

    def _server_drops(
        self, plan: SlicePlan, wanted: Sequence[Slice], stored: Sequence[Slice]
    ) -> bool:
        """True if all that is missing is what this API server drops, found out without a write.

        After a restart the stored slices lack what was dropped from them before. Writing them
        again would change nothing and wake every watcher, so one of them is written on trial.
        """
        if plan.create or plan.delete:
            return False
        for gates in KUBERNETES_DROPS:
            if slices.plan(wanted, stored, dropped=gates):
                continue
            # One that has such fields: not every slice has a device with a taint.
            sent = next(item for item in plan.update if slices.loses(item, gates))
            if slices.dropped_gates(sent, self._slices.replace(sent, trial=True)) != gates:
                return False
            self._note_dropped(gates)
            return True
        return False

    def _apply(self, plan: SlicePlan) -> None:
        for item in plan.delete:
            self._slices.delete(item)
        for item in plan.update:
            self._compare(item, self._slices.replace(item))
        for item in plan.create:
            self._compare(item, self._slices.create(item))

    def _compare(self, sent: Slice, stored: Slice) -> None:
        gates = slices.dropped_gates(sent, stored)
        if gates:
            self._note_dropped(gates)

    def _note_dropped(self, gates: frozenset[str]) -> None:
        # Together: a slice without a taint does not show that taints are dropped.
        self._dropped |= gates
        if self._dropped != self._told_dropped:
            self._told_dropped = self._dropped
            log.error(
                "slice_fields_dropped",
                feature_gates=sorted(self._dropped),
                error="the API server keeps only a part of each device: enable these feature "
                "gates on kube-apiserver, kube-scheduler, kube-controller-manager and kubelet",
            )
