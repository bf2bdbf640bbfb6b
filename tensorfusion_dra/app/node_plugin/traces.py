"""Construction of the traces from the settings; without an endpoint, nothing of them is loaded."""

from collections.abc import Mapping

from tensorfusion_dra.app.shared import version
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.app.shared.supervisor import Supervisor
from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.driver.ports.operations import OperationObserver


def started(settings: Settings, supervisor: Supervisor) -> tuple[OperationObserver, ...]:
    """Start sending spans if the settings name an endpoint; return what has to observe operations.

    Raises:
        InputError: The extra 'otel' is missing.
    """
    if not settings.otlp_endpoint:
        return ()
    try:
        from tensorfusion_dra.tracing.spans import Traces  # noqa: PLC0415 - loads the extra 'otel'
    except ImportError as error:
        raise InputError(
            "otlp-endpoint needs the extra 'otel': pip install 'tensorfusion-dra[otel]', or an "
            f"image that was built with REQUIREMENTS=otel ({error})"
        ) from error
    traces = Traces(settings.otlp_endpoint, _resource(settings))
    supervisor.own("traces", traces)
    return (traces,)


def _resource(settings: Settings) -> Mapping[str, str]:
    found = {
        names.TRACE_SERVICE: names.TRACE_SERVICE_NAME,
        names.TRACE_VERSION: version.current(),
        names.TRACE_NODE: settings.node_name,
        names.TRACE_POD_UID: settings.pod_uid,
    }
    return {name: text for name, text in found.items() if text}
