"""Decisions on claims in namespaces with a GPUResourceQuota.

A claim is admitted in these steps, of which one review at a time takes the first four:

    read the quotas ──> read the claims ──> decide ──> reserve ──> wait for strangers' claims
      ^                                                   │
      └──────────── another replica was faster ───────────┘

Quotas are read first: if another replica drops a reservation after that, its claim is in the list.
A claim is refused if something cannot be read or reserved in the time of the review.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

from tensorfusion_dra.core.admission import (
    claim_admission,
    quota,
    reservations,
)
from tensorfusion_dra.core.admission.claim_admission import Classes
from tensorfusion_dra.core.admission.reservations import Reservation
from tensorfusion_dra.core.claims.ports import Objects, Pods
from tensorfusion_dra.core.errors import DriverError, InputError, RetryableError
from tensorfusion_dra.core.kubernetes import review
from tensorfusion_dra.core.kubernetes.field_errors import FieldError, Reason
from tensorfusion_dra.core.kubernetes.projection import Projection
from tensorfusion_dra.core.kubernetes.review import PASSED, Decision, Review
from tensorfusion_dra.webhook.admission import of_namespace, parsed_classes

Item = Mapping[str, Any]

_MAX_SEEN: Final = 1000
_STRANGER_WRITE_SECONDS: Final = 1.0


class ClaimReader(Protocol):
    """ResourceClaims at the API server."""

    def of_namespace(self, name: str, keep: Projection, *, wait_seconds: float) -> Sequence[Item]:
        """Return the fields in `keep` of a namespace's claims, as they are stored now.

        Raises:
            UnreadableError: One of them is too large to be read.
            RetryableError: The API server answered with an error, or not within the time.
        """
        ...


class QuotaReader(Protocol):
    """GPUResourceQuotas of all namespaces."""

    def current(self, *, wait_seconds: float) -> Sequence[Item]:
        """Return them as they were stored a moment ago.

        Raises:
            RetryableError: The API server answered with an error, or not within the time.
            InputError: The API server does not serve this kind.
        """
        ...


class QuotaStore(Protocol):
    """GPUResourceQuotas at the API server."""

    def of_namespace(self, name: str, *, wait_seconds: float) -> Sequence[Item]:
        """Return a namespace's quotas as they are stored now.

        Raises:
            RetryableError: The API server answered with an error, or not within the time.
        """
        ...

    def annotate(self, quota: Item, text: str, *, wait_seconds: float) -> bool:
        """Write what was admitted into a quota; return False if it changed since it was read.

        Raises:
            RetryableError: The API server answered with an error, or not within the time.
        """
        ...


class QuotaAdmission:
    """Rule for claims in namespaces with a quota, as they are created and when their annotations
    change; safe for all threads.

    Anybody who reaches the webhook can post reviews, but the UID of a pod is known only to the API
    server and to readers of the namespace. The refusal of a claim without such a UID does not
    reveal what other claims have; core/admission/reservations.py says for how long it counts.
    """

    def __init__(
        self,
        quotas: QuotaReader,
        store: QuotaStore,
        claims: ClaimReader,
        pods: Pods,
        classes: Objects,
        *,
        trusts_clients: bool,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Args:
        quotas: Tells which namespaces have some.
        store, claims, pods: Read for each claim in such a namespace.
        classes: The DeviceClasses, whose limits count as those of their claims.
        trusts_clients: True if only the API server can post reviews.
        clock: Unix time, about the same in all replicas.
        """
        self._quotas = quotas
        self._store = store
        self._claims = claims
        self._pods = pods
        self._classes = classes
        self._trusts_clients = trusts_clients
        self._clock = clock
        self._sleep = sleep
        self._guard = Lock()  # guards all below
        self._locks: WeakValueDictionary[str, Lock] = WeakValueDictionary()
        self._seen: dict[tuple[str, float], quota.Amounts] = {}
        """Of reservations whose claims were seen with their amounts, oldest first."""

    def claim(self, asked: Review) -> Decision:
        """Refuse a claim, or a change of it, for which its namespace's quotas leave too little."""
        if asked.operation not in {"CREATE", "UPDATE"} or asked.subresource:
            return PASSED
        ends = time.monotonic() + asked.wait_seconds
        try:
            if not self._has_quota(asked.namespace, ends):
                return PASSED
            classes = parsed_classes(self._classes)
            if not quota.counted(asked.document, classes):
                return PASSED
            errors = self._refusals(asked, classes, ends)
        except RetryableError as error:
            return review.unavailable(error)
        except DriverError as error:
            errors = [str(error)]
        return Decision(
            errors=tuple(
                FieldError("spec.devices.requests", Reason.FORBIDDEN, text) for text in errors
            )
        )

    def _has_quota(self, namespace: str, ends: float) -> bool:
        try:
            return bool(of_namespace(self._quotas.current(wait_seconds=_left(ends)), namespace))
        except InputError:
            return False  # the cluster does not have the kind

    def _has_pod(self, asked: Review, ends: float) -> bool:
        """Return True if the claim names the UID of a pod in its namespace.

        Raises:
            RetryableError: The API server answered with an error, or not within the time.
        """
        try:
            owner = claim_admission.owner(asked.document, asked.namespace)
        except InputError:
            return False
        return self._pods.find(owner, wait_seconds=_left(ends)) is not None

    def _refusals(self, asked: Review, classes: Classes, ends: float) -> Sequence[str]:
        """Return why quotas refuse the claim; if none does, reserve what it will have.

        Raises:
            DriverError: Something cannot be read or written.
        """

        def charged(claim: Item) -> Item:
            """Return whose claim it is, and what it is charged: all that is kept of it."""
            return {
                **{key: claim["metadata"].get(key, "") for key in ("name", "uid")},
                "charged": quota.counted(claim, classes),
            }

        is_trusted = self._trusts_clients or self._has_pod(asked, ends)
        with self._alone(asked.namespace, ends):
            while True:
                quotas = self._store.of_namespace(asked.namespace, wait_seconds=_left(ends))
                others = reservations.of_quotas(quotas, now=self._clock())
                before = others.pop(_uid(asked), None)
                stored = self._claims.of_namespace(
                    asked.namespace, charged, wait_seconds=_left(ends)
                )
                trusted = {uid: each for uid, each in others.items() if each.is_trusted}
                counted = trusted if is_trusted else others
                compared = partial(self._compared, asked, classes, quotas)
                errors = compared(stored, counted, names_others=is_trusted)
                if errors or asked.dry_run or not quotas:
                    return errors
                # A limit that is lowered counts until the node has followed.
                amounts = reservations.most(
                    quota.counted(asked.old or {}, classes),
                    quota.counted(asked.document, classes),
                )
                new = reservations.of_claim(
                    asked.document, amounts, before, is_trusted=is_trusted, now=self._clock()
                )
                if not is_trusted:  # the claim has to be stored within STRANGER_SECONDS
                    ends = min(ends, time.monotonic() + _STRANGER_WRITE_SECONDS)
                if self._write(quotas, {**others, _uid(asked): new}, ends):
                    break
        now = self._clock()
        recent = {uid: each for uid, each in others.items() if each.keeps_waiting(now)}
        if not compared(stored, recent, names_others=True):
            return ()
        # A claim of somebody, perhaps a stranger, is in the way. If it is one, it is stored by now.
        self._sleep(min(reservations.STRANGER_SECONDS, _left(ends)))
        stored = self._claims.of_namespace(asked.namespace, charged, wait_seconds=_left(ends))
        errors = compared(stored, trusted, names_others=True)
        if errors:
            self._withdraw(asked, ends)
        return errors

    def _compared(
        self,
        asked: Review,
        classes: Classes,
        quotas: Sequence[Item],
        stored: Sequence[Item],
        reserved: Mapping[str, Reservation],
        *,
        names_others: bool,
    ) -> Sequence[str]:
        """Return why quotas refuse the claim beside stored and reserved ones."""
        others = {each["uid"]: (each["name"], each["charged"]) for each in stored}
        with self._guard:
            for uid, each in reserved.items():
                name, charged = others.get(uid, (each.name, {}))
                both = reservations.most(charged, each.amounts)
                if both == charged:
                    self._seen[uid, each.ends_at] = each.amounts
                if not self._is_seen(uid, each):  # else it may be deleted since
                    others[uid] = name, both
            for oldest in [*self._seen][:-_MAX_SEEN]:
                del self._seen[oldest]
        others.pop(_uid(asked), None)  # the claim itself, before a change
        by_name = {name or uid: amounts for uid, (name, amounts) in others.items()}
        return [
            text
            for each in quotas
            for text in quota.refusals(
                each,
                asked.document,
                by_name,
                asked.old,
                classes=classes,
                names_others=names_others,
            )
        ]

    def _write(self, quotas: Sequence[Item], found: Mapping[str, Reservation], ends: float) -> bool:
        """Write reservations into the first quota; return False if another replica was faster."""
        with self._guard:
            kept = {uid: each for uid, each in found.items() if not self._is_seen(uid, each)}
        first = min(quotas, key=lambda each: str(each["metadata"]["name"]))
        return self._store.annotate(first, reservations.text_of(kept), wait_seconds=_left(ends))

    def _is_seen(self, uid: str, reserved: Reservation) -> bool:
        """Return True if the claim was seen with these amounts; two changes may end at one time."""
        return self._seen.get((uid, reserved.ends_at)) == reserved.amounts

    def _withdraw(self, asked: Review, ends: float) -> None:
        """Remove the claim's reservation.

        Raises:
            RetryableError: It cannot be removed, and counts for a while.
        """
        is_removed = False
        with self._alone(asked.namespace, ends):
            while not is_removed:
                quotas = self._store.of_namespace(asked.namespace, wait_seconds=_left(ends))
                found = reservations.of_quotas(quotas, now=self._clock())
                found.pop(_uid(asked), None)
                is_removed = not quotas or self._write(quotas, found, ends)

    @contextmanager
    def _alone(self, namespace: str, ends: float) -> Iterator[None]:
        """Run the block for one review of a namespace at a time."""
        with self._guard:
            lock = self._locks.setdefault(namespace, Lock())
        if not lock.acquire(timeout=_left(ends)):
            raise RetryableError(f"namespace {namespace}: other claims of it are being reviewed")
        try:
            yield
        finally:
            lock.release()


def _uid(asked: Review) -> str:
    return str(asked.document["metadata"].get("uid") or asked.uid)


def _left(ends: float) -> float:
    """Return the seconds until a time.

    Raises:
        RetryableError: It is over.
    """
    if (left := ends - time.monotonic()) <= 0:
        raise RetryableError(
            "found no time left to check quotas, expected a review that just began"
        )
    return left
