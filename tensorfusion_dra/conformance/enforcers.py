"""Checks of enforcers."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from tensorfusion_dra.conformance.builders import claim, enforcer_settings, share
from tensorfusion_dra.core.claims import cdi
from tensorfusion_dra.core.claims.enforcement import verdict
from tensorfusion_dra.core.claims.enforcement.signs import Daemon, FileSign
from tensorfusion_dra.core.errors import DriverError
from tensorfusion_dra.core.kubernetes import cdi_rules
from tensorfusion_dra.driver.providers.guarded_enforcer import GuardedEnforcer
from tensorfusion_dra.driver.providers.registered import Kind, Registered
from tensorfusion_dra.extend import (
    BUDGET_SECONDS,
    ClaimError,
    Edits,
    EnforcerSettings,
    Isolation,
    Limit,
    PreparedClaim,
    PreparedShare,
    Signs,
    State,
)

_EXAMPLES: Final[tuple[tuple[PreparedClaim, bool], ...]] = (
    (claim(share()), False),
    (claim(share(percent=100, vram_gib=80)), False),
    (claim(share(limit=None, isolation=Isolation.SHARED)), False),
    (claim(share(device_nodes=())), False),
    (claim(share(), share(1, request="monitor", admin_access=True, limit=None)), True),
    (claim(share(0), share(1)), True),
    (claim(share(0), share(1, percent=50, vram_gib=40)), True),
)
"""Claims, and whether the enforcer may refuse one that it cannot express."""


def check_enforcer(
    kind: Any,
    *,
    limits_of: Callable[[Edits], Sequence[Limit]],
    settings: EnforcerSettings | None = None,
    budget_seconds: float = BUDGET_SECONDS,
) -> None:
    """Check the class of an enforcer.

    Args:
        kind: What the entry point names.
        limits_of: Returns the limits that the software would read from these edits, as it reads
            them: one for each card, in the order of the PCI bus. It is what shows that no limit is
            above what the share has.
        settings: From enforcer_settings(), if it needs other values.
        budget_seconds: Time for each call.

    Raises:
        AssertionError: It fails, is late, returns what no container can have, allows more than a
            share's limit, or changes its answers.
    """
    name = getattr(kind, "name", None)
    assert isinstance(name, str), f"name: found {name!r}, expected the name of the entry point"
    registered = Registered(kind=Kind.ENFORCER, name=name, package="conformance", load=lambda: kind)
    chosen = settings or enforcer_settings(name)
    first, second = (
        GuardedEnforcer(registered, chosen, budget_seconds=budget_seconds) for _ in range(2)
    )
    try:
        first.check()
    except DriverError as error:
        raise AssertionError(str(error)) from error
    for example, may_refuse in _EXAMPLES:
        _check_claim(first, second, example, limits_of, may_refuse=may_refuse)


def _check_claim(
    enforcer: GuardedEnforcer,
    other: GuardedEnforcer,
    example: PreparedClaim,
    limits_of: Callable[[Edits], Sequence[Limit]],
    *,
    may_refuse: bool,
) -> None:
    limited = [each for each in example.shares if not each.admin_access]
    try:
        edits = _checked_edits(enforcer, other, example, limited)
    except ClaimError as error:
        if may_refuse and f"enforcer {enforcer.name}: " not in str(error):
            return
        raise AssertionError(str(error)) from error
    if all(each.limit for each in limited):
        _check_limits(limits_of(edits), limited)
    _check_verdict(enforcer, example, limited[0])


def _checked_edits(
    enforcer: GuardedEnforcer,
    other: GuardedEnforcer,
    example: PreparedClaim,
    limited: Sequence[PreparedShare],
) -> Edits:
    """Return the edits, which make a valid spec and are the same each time."""
    needs, edits = enforcer.needs(example), enforcer.edits(example, limited)
    for again in (enforcer, other):
        found = (again.needs(example), again.edits(example, limited))
        assert found == (needs, edits), f"two calls differ: found {found}, expected {needs, edits}"
    spec = cdi.spec(example, enforcer)
    assert spec is not None
    try:
        cdi_rules.check(spec)
    except cdi_rules.CdiError as error:
        raise AssertionError(f"the CDI spec is invalid: {error}") from error
    return edits


def _check_verdict(
    enforcer: GuardedEnforcer, example: PreparedClaim, limited: PreparedShare
) -> None:
    """Check that limits do not count as enforced where no sign shows it."""
    places = enforcer.places(example)
    missing = Signs(
        read_at=0.0,
        files=tuple(FileSign(path=path, trouble="not found") for path in places.files),
        daemon=Daemon(path=places.socket, trouble="not found") if places.socket else None,
    )
    found = enforcer.judge(example, limited, missing)
    assert found.reason != verdict.UNREADABLE, found.text
    assert found.state is not State.ENFORCED, "judge: found Enforced without a sign of life"


def _check_limits(found: Sequence[Limit], limited: Sequence[PreparedShare]) -> None:
    expected = [each.limit for each in limited if each.limit is not None]
    assert len(found) == len(expected), (
        f"found {len(found)} limits, expected one for each of {len(expected)} cards"
    )
    for limit, most in zip(found, expected, strict=True):
        assert 0 < limit.vram_bytes <= most.vram_bytes, (
            f"found {limit.vram_bytes} bytes of memory, expected 1 to {most.vram_bytes}"
        )
        assert 0 < limit.sm_percent <= most.sm_percent, (
            f"found {limit.sm_percent} percent of compute, expected 1 to {most.sm_percent}"
        )
