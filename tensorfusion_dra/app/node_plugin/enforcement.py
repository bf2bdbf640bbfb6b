"""Construction of the parts that look whether the limits of prepared claims hold."""

from collections.abc import Mapping

from tensorfusion_dra.app.shared import node_parts
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.cluster.events import Events
from tensorfusion_dra.core.claims.enforcers.enforcer import Enforcer
from tensorfusion_dra.driver.enforcement_watch import EnforcementWatch, NodeEnforcer
from tensorfusion_dra.driver.ports.enforcement import LiveSigns
from tensorfusion_dra.driver.status import StatusReporter, utc_now
from tensorfusion_dra.runtime.supervisor import Supervisor
from tensorfusion_dra.state.standing_limits import StandingLimits


def watch(settings: Settings, enforcers: Mapping[str, Enforcer]) -> EnforcementWatch:
    """Return the watch over the limits of all claims; nothing is started."""
    signs = node_parts.live_signs(settings, enforcers)
    return EnforcementWatch(
        signs,
        enforcers,
        StandingLimits(settings.data_folder),
        now=utc_now,
        node=NodeEnforcer(
            signs,
            enforcer=settings.enforcer,
            is_required=settings.require_enforcement == "true",
            now=utc_now,
        )
        if node_parts.needs_enforcer(settings)
        else None,
    )


def required_signs(settings: Settings, enforcers: Mapping[str, Enforcer]) -> LiveSigns | None:
    """Return a reader of the signs without which claims are refused; None to refuse none."""
    if settings.require_enforcement != "true":
        return None
    return node_parts.live_signs(settings, enforcers)


def start(
    watch: EnforcementWatch, supervisor: Supervisor, status: StatusReporter, events: Events
) -> None:
    """Start the watch in its thread; the supervisor stops it."""
    supervisor.on_stop(watch.stop)
    supervisor.run("enforcement", lambda: watch.run(status.report_changed, events))
