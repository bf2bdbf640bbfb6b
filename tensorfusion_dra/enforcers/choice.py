"""The choice of the node's enforcer: which one gets new claims, and would it enforce their limits?

The choice is made before a container runs, so it has less evidence than the verdict about a share:
whether the enforcer is there. Whether a process loads its library shows only later.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import structlog

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import verdicts
from tensorfusion_dra.core.claims.enforcer import Enforcer, Sign
from tensorfusion_dra.core.claims.verdicts import CurrentVerdict, State, Verdict
from tensorfusion_dra.core.devices.device import Enforcement, Node
from tensorfusion_dra.enforcers import registered
from tensorfusion_dra.enforcers.none import NoEnforcer

log = structlog.get_logger()

CHECK_SECONDS: Final = 60.0
_FRESH_SECONDS: Final = 5.0
"""Age up to which a sign of life counts at a prepare."""
_SIMULATED: Final = verdicts.unknown(verdicts.SIMULATED, "simulated GPUs: nothing to enforce")
_WHOLE: Final = "claims for whole cards need none"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnforcerChoice:
    """The enforcer of new claims, and what is known of it on this node.

    Attributes:
        enforcer: Its name; that of NoEnforcer if `auto` found none.
        enforces_hard: True if the enforcer brings a limiter for hard isolation.
        sign: Whether it is there.
        remedy: What to do about a bad verdict.
        none_found: Reason to refuse claims with limits: `auto` found no enforcer; "" otherwise.
        unenforced: The error of a claim whose limits depend on a sign of the enforcer, where claims
            wait for one; "" if it is there.
    """

    enforcer: str
    sign: Sign
    remedy: str
    none_found: str = ""
    enforces_hard: bool = True
    unenforced: str = ""

    def with_remedy(self, *, is_required: bool) -> Verdict:
        """Return the verdict, with what follows from a bad one and what to do."""
        found = self.sign.verdict
        if found.state is not State.NOT_ENFORCED:
            return found
        follows = consequence(self.sign, is_required=is_required)
        return replace(found, text=f"{found.text}: {follows}; {self.remedy}")


def remedy(enforcer: Enforcer) -> str:
    """Return what to do about a node without its enforcer; every text about one ends with this."""
    others = (each for name, each in registered.DECLARED.items() if name != enforcer.name)
    hints = "".join(f"; {each.alternative}" for each in others if each.alternative)
    return f"{_remedy(enforcer)}, or choose another enforcer (setting enforcer{hints}); {_WHOLE}"


def _remedy(enforcer: Enforcer) -> str:
    return enforcer.facts.remedy or f"install what enforcer {enforcer.name} needs"


def missing_error(enforcer: Enforcer, reason: str) -> str:
    """Return the error of a claim that waits for what its enforcer lacks on this node."""
    return (
        f"nothing on this node would enforce its limits: enforcer {enforcer.name}: {reason}; "
        f"{remedy(enforcer)}"
    )


def refuses(sign: Sign, *, is_required: bool) -> bool:
    """Return True if parts of cards wait on a node with this sign; whole cards never do.

    Args:
        sign: Its verdict is NotEnforced.
        is_required: True with require-enforcement.
    """
    return is_required or not sign.may_be_missing


def consequence(sign: Sign, *, is_required: bool) -> str:
    """Return what a node with this sign, whose verdict is NotEnforced, does with claims."""
    if refuses(sign, is_required=is_required):
        return "every claim for a part of a GPU waits"
    return "claims are prepared, but nothing keeps them within their limits"


class EnforcerChooser:
    """Chooses the enforcer of new claims; safe for all threads, but check() is for one.

    An enforcer that the settings name is always chosen, there or not. Of several (`auto`), the
    first that is there is chosen, by signs of the last seconds. While none is there, all are
    checked again at each prepare, because one may come while this process runs. If the node's pool
    expands its cards' memory, only enforcers that can do this count.

    Check the signs once a minute, in the watch's thread. Log a missing enforcer and write one Event
    on the Node; write another one only after the enforcer was back. That limits are advisory is no
    Event: the administrator chose it.

    With a wait (enforcer-wait-seconds), a missing enforcer shows on the devices as well, if parts
    of cards would be refused for it. First they carry a binding condition: pods get this node and
    wait at the scheduler. After the wait they carry a taint instead: pods get other nodes.
    BindingConditions (driver/binding_conditions.py) ends the wait of claims.

    Reading a sign may take a few seconds if the enforcer hangs. Claims for whole cards, which need
    no enforcer, use what was read last.

    Example: a bare node has the choice `none`, and pods with a part of a card wait. HAMi-core's
    library is installed: the kubelet's next prepare, or the next check, chooses `hami-core`, and
    the devices are published again with this name.
    """

    def __init__(
        self,
        candidates: Mapping[str, Enforcer],
        *,
        is_auto: bool,
        is_required: bool,
        is_real: bool = True,
        is_needed: bool = True,
        wait_seconds: float = 0.0,
        on_change: Callable[[], None] = lambda: None,
        now: Callable[[], datetime],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Leave the signs to be read by the first call.

        Args:
            candidates: The enforcers to choose from, by name in their order; at least one.
            is_auto: False if the one candidate is chosen in any case.
            is_required: True if claims wait for signs of life (require-enforcement).
            is_real: False for simulated GPUs, which have no signs.
            is_needed: False if shares in the default isolation need no enforcer: then none is
                missed.
            wait_seconds: How long the devices carry a binding condition once the enforcer is
                missing; 0 to show nothing but its attributes.
            on_change: Called, from any thread, when what the devices show of the enforcer has
                changed.
            now: Returns the wall clock's time.
            clock: In seconds, for the age of signs and the time of the next check.
        """
        self._candidates = candidates
        self._is_auto = is_auto
        self._is_required = is_required
        self._is_real = is_real
        self._is_needed = is_needed
        self._wait_seconds = wait_seconds
        self._on_change = on_change
        self._now = now
        self._clock = clock
        self._check_at = -math.inf
        # Each replaced as a whole, so that reading needs no lock:
        self._choice: EnforcerChoice | None = None
        self.current: CurrentVerdict | None = None
        """The current verdict; None before the first check."""
        self._read_at = -math.inf
        self.shown: Enforcement | None = None
        """State that the devices show, as last read; None before the first reading."""
        self._absent_since: tuple[float, datetime] | None = None  # on both clocks
        self._expands = False
        self._is_missing = False
        self._pending = ""  # text of an Event that is not written yet
        self.was_awaited = True
        """Set, by any thread, while pods wait at the scheduler; perhaps by the process before."""

    def of_new_claim(self, *, own: str = "", may_wait: bool = True) -> EnforcerChoice:
        """Return the choice for a claim that is prepared now.

        Args:
            own: The enforcer that comes with the claim's devices; "" for the node's choice.
            may_wait: False for a claim that can do without an enforcer.
        """
        if own:
            found = verdicts.enforced(verdicts.ENFORCER_ALIVE, "it comes with the device")
            return EnforcerChoice(enforcer=own, sign=Sign(verdict=found), remedy="")
        known = self._choice
        if known is not None and may_wait:
            if self._is_auto:
                is_old = self._clock() >= self._read_at + _FRESH_SECONDS
                is_due = bool(known.none_found) or is_old
            else:
                is_due = self._waits_for(self._candidates[known.enforcer])
            known = None if is_due else known
        return self._choose() if known is None else known

    def of_devices(self, node: Node) -> Enforcement:
        """Return what the devices of the node show.

        Args:
            node: As it is published now: its pool may expand the cards' memory.
        """
        ratios = node.oversubscription
        expands = ratios is not None and ratios.expands_memory
        known = self.shown
        if known is None or expands != self._expands:
            self._expands = expands
            known = self._show(self._read())
        return known

    def check(self, warn: Callable[[str, str], bool]) -> None:
        """Check the signs if it is time, and write the Event that is due.

        Args:
            warn: Writes an Event with this reason and message; returns True once it is written.
        """
        if self._clock() >= self._check_at or self._absent_since is not None:
            self._check_at = self._clock() + CHECK_SECONDS
            choice = self._choose()
            if self._is_needed:
                self._report(choice)
        if self._pending and warn(names.EVENT_ENFORCER_MISSING, self._pending):
            self._pending = ""

    def _waits_for(self, enforcer: Enforcer) -> bool:
        """Return True if claims wait for a sign; with `auto` the choice says that one is there."""
        is_asked = self._is_required or enforcer.facts.must_show_itself
        return self._is_real and not self._is_auto and is_asked

    def _report(self, choice: EnforcerChoice) -> None:
        """Make the choice's verdict the current one, and log what changed."""
        found = choice.with_remedy(is_required=self._is_required)
        if not choice.none_found:
            found = replace(found, text=f"enforcer {choice.enforcer}: {found.text}")
        before = self.current or CurrentVerdict(verdict=found, since=self._now())
        self.current = before.after(found, self._now())
        was_missing = self._is_missing
        self._is_missing = found.state is State.NOT_ENFORCED
        facts = {"enforcer": choice.enforcer, "reason": found.reason}
        if self._is_missing and not was_missing:
            log.warning("enforcer_not_seen", **facts, error=found.text)
            if found.reason != verdicts.NO_ENFORCER:
                self._pending = found.text
        elif was_missing and not self._is_missing:
            log.info("enforcer_seen", **facts)
            self._pending = ""

    def _choose(self) -> EnforcerChoice:
        """Read the signs; have the devices published again if they show something else."""
        before, choice = self.shown, self._read()
        if self._show(choice) != before and before is not None:
            self._on_change()
        return choice

    def _read(self) -> EnforcerChoice:
        looked_for: dict[str, Verdict] = {}
        for enforcer in self._candidates.values():
            if self._is_auto and self._expands and not enforcer.facts.expands_memory:
                continue
            sign = enforcer.sign() if self._is_real else Sign(verdict=_SIMULATED)
            if sign.verdict.state is not State.NOT_ENFORCED or not self._is_auto:
                choice = EnforcerChoice(
                    enforcer=enforcer.name,
                    sign=sign,
                    remedy=remedy(enforcer),
                    enforces_hard=enforcer.facts.enforces_hard,
                    unenforced=self._unenforced(enforcer, sign.verdict),
                )
                break
            looked_for[enforcer.name] = sign.verdict
        else:
            choice = self._none_found(looked_for)
        if self._is_auto and (self._choice is None or self._choice.enforcer != choice.enforcer):
            log.info("enforcer_chosen", enforcer=choice.enforcer, reason=choice.sign.verdict.reason)
        self._choice, self._read_at = choice, self._clock()
        return choice

    def _unenforced(self, enforcer: Enforcer, found: Verdict) -> str:
        if found.state is not State.NOT_ENFORCED or not self._waits_for(enforcer):
            return ""
        why = "" if enforcer.facts.must_show_itself else " (require-enforcement)"
        return f"nothing would enforce its limits{why}: {found.text}; {remedy(enforcer)}"

    def _none_found(self, looked_for: Mapping[str, Verdict]) -> EnforcerChoice:
        """Return the choice of `auto` on a node that has none of these enforcers.

        Hard isolation is allowed: a claim is refused for the missing enforcer instead.
        """
        seen = "; ".join(f"{name} ({found.text})" for name, found in looked_for.items())
        ways = "; ".join(f"{name}: {_remedy(self._candidates[name])}" for name in looked_for)
        found = verdicts.not_enforced(verdicts.NONE_FOUND, f"found no enforcer: {seen}")
        remedy = (
            "install one, or let limits be advisory (chart value settings.enforcer=none); "
            f"{_WHOLE}; {ways}"
        )
        return EnforcerChoice(
            enforcer=NoEnforcer.name,
            sign=Sign(verdict=found),
            remedy=remedy,
            none_found=f"nothing on this node would enforce its limits: {found.text}; {remedy}",
        )

    def _show(self, choice: EnforcerChoice) -> Enforcement:
        """Make the choice what the devices show, and return that."""
        shown = Enforcement(enforcer=choice.enforcer)
        chosen, found = self._candidates.get(choice.enforcer), choice.sign.verdict
        is_absent = found.state is State.NOT_ENFORCED
        if chosen is not None and not is_absent:
            facts = chosen.facts
            shown = replace(shown, compute=facts.enforces_compute, memory=facts.enforces_memory)
        is_missed = is_absent and self._is_needed and self._wait_seconds > 0
        if is_missed and refuses(choice.sign, is_required=self._is_required):
            since, at = self._absent_since = self._absent_since or (self._clock(), self._now())
            is_over = self._clock() >= since + self._wait_seconds
            shown = replace(shown, is_awaited=not is_over, given_up_since=at if is_over else None)
            self.was_awaited |= shown.is_awaited
        else:
            self._absent_since = None
        self.shown = shown
        return shown
