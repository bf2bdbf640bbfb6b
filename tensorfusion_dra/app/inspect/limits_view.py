"""View of the limits of prepared claims: whether each share's hold now, and why."""

from collections.abc import Iterator, Sequence
from typing import Any

from tensorfusion_dra.app.shared import enforcement_parts
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.core.claims.enforcement.verdict import State
from tensorfusion_dra.core.claims.prepared import PreparedClaim


def claims(settings: Settings, prepared: Sequence[PreparedClaim]) -> list[dict[str, Any]]:
    """Return the claims as JSON, with the verdict about each share in `enforcement`."""
    found = [claim.as_json() for claim in prepared]
    verdicts = enforcement_parts.verdicts_now(settings, prepared)
    for claim, of_claim in zip(found, verdicts, strict=True):
        for share, verdict in zip(claim["shares"], of_claim, strict=True):
            share["enforcement"] = verdict.as_json()
    return found


def state(share: dict[str, Any]) -> str:
    """Return the state of a share's limits as text: ``NotEnforced (HeartbeatStale)``."""
    found = share["enforcement"]
    return f"{found['state']} ({found['reason']})"


def lines(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each share whose limits are not seen to hold."""
    for claim in found:
        for share in claim["shares"]:
            verdict = share["enforcement"]
            if verdict["state"] != State.ENFORCED:
                yield (
                    f"  {verdict['state']}: {claim['namespace']}/{claim['name']} on "
                    f"{share['device']}: {verdict['message']}"
                )
