"""The user guide's dialect of CEL for selectors (user guide, 5.2 to 5.4).

In the guide an attribute is looked up by its name alone, ``device.attributes["model"]``, and an
amount is converted to a number by ``.AsApproximateFloat64()``. Kubernetes supports neither.
"""

from enum import StrEnum
from typing import Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices import capacity

TO_NUMBER: Final = "AsApproximateFloat64"
"""The guide's method; Kubernetes has asApproximateFloat."""


class Kind(StrEnum):
    """Kind of a value, as far as the dialect distinguishes kinds; the values appear in errors.

    NUMBER is the result of converting an amount; DOUBLE is a literal.
    """

    STRING = "a string"
    INT = "an integer"
    DOUBLE = "a double"
    NUMBER = "a number"
    BOOL = "a bool"
    VERSION = "a version"
    QUANTITY = "a Quantity"
    AMOUNT = "a string that holds an amount"
    KUBERNETES_AMOUNT = "a string that holds an amount, looked up as Kubernetes does"
    DEVICE = "the device"
    ATTRIBUTES = "the attributes"
    CAPACITY = "the capacity"
    OUR_ATTRIBUTES = "the driver's attributes"
    CAPACITY_OF_A_DRIVER = "a driver's capacity"
    UNKNOWN = "a value"


ATTRIBUTES: Final = {
    names.ATTR_MODEL: Kind.STRING,
    names.ATTR_POOL_NAME: Kind.STRING,
    names.ATTR_POD_NAMESPACE: Kind.STRING,
    names.ATTR_UUID: Kind.STRING,
    names.ATTR_PHASE: Kind.STRING,
    names.ATTR_USED_BY: Kind.STRING,
    names.ATTR_NODE_NAME: Kind.STRING,
    names.ATTR_QOS: Kind.STRING,
    names.ATTR_NODE_TOTAL_TFLOPS: Kind.AMOUNT,
    names.ATTR_NODE_TOTAL_VRAM: Kind.AMOUNT,
    names.ATTR_NODE_TOTAL_GPUS: Kind.INT,
    names.ATTR_NODE_MANAGED_GPUS: Kind.INT,
    names.ATTR_NODE_VIRTUAL_TFLOPS: Kind.AMOUNT,
    names.ATTR_NODE_VIRTUAL_VRAM: Kind.AMOUNT,
    names.ATTR_PRODUCT_NAME: Kind.STRING,
    names.ATTR_BRAND: Kind.STRING,
    names.ATTR_ARCHITECTURE: Kind.STRING,
    names.ATTR_COMPUTE_CAPABILITY: Kind.VERSION,
    names.ATTR_DRIVER_VERSION: Kind.VERSION,
    names.ATTR_CUDA_DRIVER_VERSION: Kind.VERSION,
    names.ATTR_TFLOPS_SOURCE: Kind.STRING,
}
"""Attributes of the guide, and those that this driver publishes in addition."""

NOT_ON_EVERY_DEVICE: Final = capacity.VIRTUAL
"""Capacities that only the devices of oversubscribing pools have."""

CAPACITIES: Final = (names.CAPACITY_TFLOPS, names.CAPACITY_VRAM, *sorted(NOT_ON_EVERY_DEVICE))
