"""Cards that an administrator took out of service.

From Kubernetes 1.37 on, a DeviceTaintRule taints such a card. Older API servers do not serve these
rules by default. There the card's Node has an annotation, and the node plugin taints the device in
its slice:

    cordon.tensor-fusion.ai/gpu-363a38f1: fan-noise_by_alice:NoSchedule:2026-03-01T00:00:00Z

Both ways end in the same taint. Its value says why and by whom, so that it is seen wherever taints
are shown. Kubernetes limits it to 63 letters, digits and ``-_.``.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices.device import NO_SCHEDULE, Taint

NO_EXECUTE: Final = "NoExecute"
_OF_USER: Final = 28
_OF_REASON: Final = 31
_MAX_VALUE: Final = 63
_OTHERS: Final = re.compile(r"[^A-Za-z0-9._-]+")


def taint(user: str, reason: str, *, evicts: bool, since: datetime) -> Taint:
    """Return the taint of a card.

    Args:
        user: Name of the user who cordons it.
        reason: Free text; "" for none.
        evicts: True to end the pods that use the card.
        since: Timezone-aware.
    """
    by = f"by_{_label_value(user, _OF_USER) or 'unknown'}"
    why = _label_value(reason, _OF_REASON)
    return _taint(f"{why}_{by}" if why else by, NO_EXECUTE if evicts else NO_SCHEDULE, since)


def annotation(taint: Taint) -> str:
    """Return the value of a Node's annotation for the taint of a card."""
    return ":".join((taint.value, taint.effect, str(taint.as_api()["timeAdded"])))


def of_node(annotations: Mapping[str, object]) -> Mapping[str, Taint]:
    """Return the taints of the cards that a Node's annotations cordon, by device name.

    A malformed annotation, such as one written by hand, keeps new claims away.
    """
    found = {}
    for key, text in annotations.items():
        if key.startswith(names.CORDON_PREFIX):
            value, effect, moment, *_ = [*str(text).split(":", 2), "", ""]
            try:
                since = datetime.fromisoformat(moment)
            except ValueError:
                since = datetime.fromtimestamp(0, UTC)
            effect = NO_EXECUTE if effect == NO_EXECUTE else NO_SCHEDULE
            device = key.removeprefix(names.CORDON_PREFIX)
            found[device] = _taint(_label_value(value, _MAX_VALUE), effect, since)
    return found


def _label_value(text: str, size: int) -> str:
    return _OTHERS.sub("-", text)[:size].strip("-._")


def _taint(value: str, effect: str, since: datetime) -> Taint:
    return Taint(key=names.TAINT_CORDONED, value=value, effect=effect, since=since)
