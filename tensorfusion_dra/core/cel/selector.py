"""The device selector that is generated from a pod's annotations (user guide, 5.6)."""

from dataclasses import dataclass
from typing import Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.cel.syntax import quoted
from tensorfusion_dra.core.devices import device

_ATTRIBUTES: Final = f"device.attributes[{quoted(names.DRIVER)}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorTerms:
    """Conditions of a pod on its devices, other than amounts; None is no condition.

    Amounts are not part of a selector, because an expression sees a device's total capacity and not
    what is left of it. They go into the claim's ``capacity.requests``, which the scheduler counts.

    Attributes:
        model: The annotation ``gpu-model``.
        pool: The annotation ``gpupool``.
        qos: The annotation ``qos``.
    """

    model: str | None = None
    pool: str | None = None
    qos: str | None = None


def selector(terms: SelectorTerms) -> str:
    """Return the expression that selects devices in phase Running which satisfy the terms.

    A device without one of the attributes does not match; looked up without ``.?``, it would stop
    the scheduling of the pod. The guide's ``used_by == ""`` is left out: a shared card is meant to
    have several users, and the scheduler counts what they leave of its capacity.

    Raises:
        InputError: A term contains an unpaired surrogate, which no CEL string can.
    """
    wanted = (
        (names.ATTR_MODEL, terms.model),
        (names.ATTR_POOL_NAME, terms.pool),
        (names.ATTR_QOS, terms.qos),
        (names.ATTR_PHASE, names.PHASE_RUNNING),
    )
    return " && ".join(_equals(name, text) for name, text in wanted if text)


def _equals(attribute: str, text: str) -> str:
    literal = quoted(text)
    if len(text) > len(device.shortened(text)):
        # The attribute was shortened to the API's maximum length; compare with the same text.
        literal = quoted(device.shortened(text))
    return f'{_ATTRIBUTES}.?{attribute}.orValue("") == {literal}'
