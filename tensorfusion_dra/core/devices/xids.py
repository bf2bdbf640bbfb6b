"""XID errors of the NVIDIA driver: those of an application, and those that mark the card.

Source: NVIDIA's XID catalogue, column "Immediate Action"
(docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, releases for Ampere to Blackwell).
"""

from dataclasses import dataclass
from typing import Final

APPLICATION: Final = frozenset(
    {
        # RESTART_APP: the fault ends with the application that caused it.
        *(8, 11, 13, 25, 31, 32, 39, 40, 41, 60, 68, 69, 70, 71, 72, 75, 76, 77, 80, 82, 83, 84),
        *(85, 86, 88, 89, 94, 96, 97, 98, 99, 100, 101, 102, 103, 104, 105),
        *(126, 127, 128, 129, 130, 131, 132, 133, 134, 135, 139),
        # IGNORE: the card needs nothing now.
        *(14, 37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141, 152, 153, 157),
        *(160, 161),
        # The cleanup after another error, which has its own XID.
        45,
        # The recovery action changed; the action itself is read from the driver.
        154,
        # Power smoothing: no action for the card.
        *(162, 163, 164, 165),
    }
)
"""Every other XID marks the card, including those that are not in the catalogue yet."""

DESCRIPTIONS: Final = {
    46: "GPU stopped processing",
    48: "double-bit ECC error",
    54: "auxiliary power is not connected",
    62: "internal micro-controller halt",
    64: "memory remapping failed",
    74: "NVLink error",
    78: "vGPU start error",
    79: "GPU has fallen off the bus",
    95: "uncontained memory error",
    109: "context switch timeout",
    110: "security fault",
    119: "GSP RPC timeout",
    120: "GSP error",
    136: "link training failed",
    140: "unrecovered ECC error",
    142: "NVENC3 error",
    143: "GPU initialization error",
    144: "NVLink SAW error",
    145: "NVLink RLW error",
    146: "NVLink TLW error",
    147: "NVLink TREX error",
    148: "NVLink NVLPW_CTRL error",
    149: "NVLink NETIR error",
    150: "NVLink MSE error",
    151: "key rotation error",
    155: "NVLink software-defined error",
    156: "resource retirement",
    158: "GPU fatal timeout",
    167: "PCIe fatal timeout",
    171: "uncorrectable DRAM error",
    172: "uncorrectable SRAM error",
}
"""Shown to people with a taint or an Event; not every XID has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class XidRules:
    """NVIDIA's catalogue with this node's exceptions.

    Attributes:
        ignored: XIDs that do not mark the card, regardless of the catalogue.
        critical: XIDs that mark the card, regardless of the catalogue and of `ignored`.
    """

    ignored: frozenset[int] = frozenset()
    critical: frozenset[int] = frozenset()

    def marks_card(self, code: int) -> bool:
        """Return True if a card with this error is unhealthy."""
        if code in self.critical:
            return True
        return code not in self.ignored and code not in APPLICATION


def description(code: int) -> str:
    """Return a text such as ``XID 79: GPU has fallen off the bus``."""
    known = DESCRIPTIONS.get(code)
    return f"XID {code}: {known}" if known else f"XID {code}"
