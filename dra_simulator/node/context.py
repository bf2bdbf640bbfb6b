"""What all parts of one kubelet share: its times, its journal, its access to the API server."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from dra_simulator.rest import Client


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Times of a kubelet, with the values of Kubernetes as defaults.

    The only exception is the socket poll, because a real kubelet uses inotify instead.

    Attributes:
        socket_poll_seconds: Interval between two scans of the registration folder.
        dial_seconds, get_info_seconds, notify_seconds: Timeouts of the steps of a registration.
        first_backoff_seconds, most_backoff_seconds: Limits of the backoff after a failed
            registration.
        call_seconds: Timeout of one prepare or unprepare call.
        health_retry_seconds: Delay before an ended health stream is opened again.
        health_timeout_seconds: Validity of a health message that has no timeout of its own.
        wipe_delay_seconds: Time that a driver may be away before its slices are deleted.
        first_wipe_retry_seconds, most_wipe_retry_seconds: Limits of the backoff after a failed
            deletion of slices.
        prepare_retry_seconds: Delay before a retry for a pod whose claims could not be prepared.
        container_retry_seconds: Delay before a retry for a container that could not be created.
        unprepare_retry_seconds: Delay before a retry for a pod whose claims could not be
            unprepared.
    """

    socket_poll_seconds: float = 0.1
    dial_seconds: float = 10.0
    get_info_seconds: float = 1.0
    notify_seconds: float = 5.0
    first_backoff_seconds: float = 0.5
    most_backoff_seconds: float = 122.0
    call_seconds: float = 45.0
    health_retry_seconds: float = 5.0
    health_timeout_seconds: float = 30.0
    wipe_delay_seconds: float = 30.0
    first_wipe_retry_seconds: float = 1.0
    most_wipe_retry_seconds: float = 300.0
    prepare_retry_seconds: float = 60.0
    container_retry_seconds: float = 10.0
    unprepare_retry_seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class Entry:
    """One event in a kubelet's journal.

    Attributes:
        seconds: Time since the epoch.
        event: Name in the past tense, for example ``plugin_registered``.
    """

    seconds: float
    event: str
    facts: Mapping[str, str]

    def __str__(self) -> str:
        return " ".join([self.event, *(f"{name}={value}" for name, value in self.facts.items())])


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletContext:
    """Node, API client, times and journal of one kubelet; the journal is in order of time."""

    node_name: str
    client: Client
    timings: Timings
    journal: list[Entry] = field(default_factory=list)

    def note(self, event: str, **facts: str) -> None:
        """Append an entry to the journal."""
        self.journal.append(Entry(time.time(), event, facts))
