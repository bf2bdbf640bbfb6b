"""Settings at which calls are measured: every combination of the given values."""

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

MOST: Final = {
    "held": 10_000,
    "api_ms": 1000,
    "devices": 16,
    "claims_per_call": 32,
    "at_a_time": 64,
}
"""Highest value of each setting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One combination of settings.

    Attributes:
        held: Other claims that are prepared all the time.
        api_ms: Additional latency of each API request.
        devices: Devices of each claim.
        claims_per_call: Claims of each call.
        at_a_time: Calls that run at the same time.
    """

    held: int
    api_ms: float
    devices: int
    claims_per_call: int
    at_a_time: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add a flag for each setting."""
    for flag, defaults, text in (
        ("--held", [10, 100, 1000], "claims that are held, ascending"),
        ("--api-ms", [0], "latency of API requests; simulated API server only"),
        ("--devices", [1], "devices of a claim"),
        ("--claims-per-call", [1], "claims of a call"),
        ("--at-a-time", [1], "calls at the same time"),
    ):
        name = flag.removeprefix("--").replace("-", "_")
        parser.add_argument(
            flag,
            type=float if name == "api_ms" else int,
            nargs="+",
            default=defaults,
            metavar="N",
            help=f"{text} (up to {MOST[name]}; default {' '.join(map(str, defaults))})",
        )


def of_flags(flags: argparse.Namespace) -> Sequence[Cell]:
    """Return every combination, in the order of held claims, so that held claims only increase.

    Raises:
        ValueError: A value is too high or too low.
    """
    for name, most in MOST.items():
        least = 0 if name in {"held", "api_ms"} else 1
        wrong = [value for value in getattr(flags, name) if not least <= value <= most]
        if wrong:
            flag = name.replace("_", "-")
            raise ValueError(f"--{flag}: found {wrong[0]:g}, expected {least} to {most}")
    held = sorted(set(flags.held))
    values = (held, flags.api_ms, flags.devices, flags.claims_per_call, flags.at_a_time)
    return [Cell(**dict(zip(MOST, each, strict=True))) for each in itertools.product(*values)]
