"""How long a kubelet waits for what."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Kubernetes' own values, apart from the socket poll, for which it has inotify.

    Attributes:
        socket_poll_seconds: Between two looks at the registration folder.
        dial_seconds, get_info_seconds, notify_seconds: Limits of one registration's steps.
        first_backoff_seconds, most_backoff_seconds: Before a socket's registration is tried again.
        call_seconds: Limit of one prepare or unprepare call.
        health_retry_seconds: Before an ended health stream is opened again.
        health_timeout_seconds: How long a health message holds that names no time itself.
        wipe_delay_seconds: How long a driver may be away before its slices are deleted.
        first_wipe_retry_seconds, most_wipe_retry_seconds: Before the deletion is tried again.
        prepare_retry_seconds: Before a pod whose claims could not be prepared is tried again.
        container_retry_seconds: Before a container that could not be made is tried again.
        unprepare_retry_seconds: Before a pod whose claims could not be unprepared is tried again.
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
