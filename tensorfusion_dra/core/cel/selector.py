"""The device selector that is generated from a pod's annotations (user guide, 5.6)."""

from typing import Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.cel.syntax import quoted
from tensorfusion_dra.core.devices import device

_ATTRIBUTES: Final = f"device.attributes[{quoted(names.DRIVER)}]"


def selector(*, model: str = "", pool: str = "", qos: str = "") -> str:
    """Return the expression that selects devices in phase Running which satisfy the terms.

    A term that is "" is no condition. Amounts are not part of a selector, because an expression
    sees a device's total capacity and not what is left of it. They go into the claim's
    ``capacity.requests``, which the scheduler counts.

    A device without one of the attributes does not match; looked up without ``.?``, it would stop
    the scheduling of the pod. The guide's ``used_by == ""`` is left out: a shared card is meant to
    have several users, and the scheduler counts what they leave of its capacity.

    Args:
        model: The annotation ``gpu-model``.
        pool: The annotation ``gpupool``.
        qos: The annotation ``qos``.

    Raises:
        InputError: A term contains an unpaired surrogate, which no CEL string can.
    """
    wanted = {
        names.ATTR_MODEL: model,
        names.ATTR_POOL_NAME: pool,
        names.ATTR_QOS: qos,
        names.ATTR_PHASE: names.PHASE_RUNNING,
    }
    return " && ".join(
        f'{_ATTRIBUTES}.?{name}.orValue("") == {_literal(text)}'
        for name, text in wanted.items()
        if text
    )


def _literal(text: str) -> str:
    """Return the literal of an attribute: the text, cut to the API's limit as attributes are."""
    whole = quoted(text)
    shortened = device.shortened(text)
    return whole if shortened == text else quoted(shortened)
