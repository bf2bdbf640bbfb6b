"""The device selector that follows from a pod's annotations (user guide, 5.6)."""

from dataclasses import dataclass
from typing import Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.cel.strings import quoted
from tensorfusion_dra.core.devices import device

_ATTRIBUTES: Final = f"device.attributes[{quoted(names.DRIVER)}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorTerms:
    """What a pod asks of its devices beside amounts; None asks for nothing.

    Amounts are no terms: an expression sees what a device has in all and not what is left of it,
    so they go into the claim's ``capacity.requests``, where the scheduler counts.

    Attributes:
        model: The annotation ``gpu-model``.
        pool: The annotation ``gpupool``.
        qos: The annotation ``qos``.
    """

    model: str | None = None
    pool: str | None = None
    qos: str | None = None


def selector(terms: SelectorTerms) -> str:
    """The expression that selects devices in service which have what the terms ask for.

    A device without one of the attributes does not match; looked up without ``.?``, it would stop
    the scheduling of the pod. The guide's ``used_by == ""`` is not among the terms: a shared card
    is meant to have users, and what they leave of it is what its capacity says.

    Raises:
        InputError: A term cannot be written in CEL.
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
        # The attribute was cut to what the API takes, and so has to be what is compared with it.
        literal = quoted(device.shortened(text))
    return f'{_ATTRIBUTES}.?{attribute}.orValue("") == {literal}'
