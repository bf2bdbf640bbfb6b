"""The webhook's settings, from the same sources as the node plugin's."""

from dataclasses import dataclass

from tensorfusion_dra.app.shared import setting_sources
from tensorfusion_dra.app.shared.setting_sources import (
    LISTENING,
    LOG_FORMATS,
    LOG_LEVELS,
    setting,
)
from tensorfusion_dra.core import names
from tensorfusion_dra.enforcers import registered


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """All settings of the webhook; a setting's flag is its name with dashes."""

    host: str = setting("", "Address to serve AdmissionReviews on; all addresses if empty.")
    port: int = setting(9443, "Port for AdmissionReviews over HTTPS.", span=(0, 65_535))
    tls_cert_file: str = setting("/tls/tls.crt", "PEM file of the certificate and its chain.")
    tls_key_file: str = setting("/tls/tls.key", "PEM file of the certificate's private key.")
    client_ca_file: str = setting(
        "",
        "PEM file of CA certificates. Only clients with a certificate that one of them signed may "
        "post reviews; all clients if empty.",
    )
    health_address: str = setting(
        ":8081",
        "Where to serve /healthz and /readyz over plain HTTP; nowhere if empty.",
        form=LISTENING,
    )
    metrics_address: str = setting(
        ":8081",
        "Where to serve /metrics over plain HTTP, which may be health-address; nowhere if empty.",
        form=LISTENING,
    )
    kubeconfig: str = setting(
        "", "File with access to the API server; the pod's service account if empty."
    )
    scheduler_name: str = setting(
        "default-scheduler",
        f"Scheduler that replaces {names.TENSOR_FUSION_SCHEDULER}, which allocates no claims, in "
        "pods with a share; empty leaves it.",
    )
    virtual_capacity: bool = setting(
        False,
        "Whether claims request virtual_tflops and virtual_vram in clusters without GPUPool "
        "objects, for node plugins whose settings oversubscribe: true, false.",
    )
    default_enabled: bool = setting(
        False,
        "Whether pods with amounts get a GPU without the annotation dra-enabled, where no GPUPool "
        "decides: true, false.",
    )
    enforcer: str = setting(
        registered.AUTO,
        "Enforcer of the limits, as in the node plugins' setting: "
        f"{', '.join((registered.AUTO, *registered.OWN))}, or one of another package. Isolation "
        "hard is "
        "refused if the enforcer has none; with auto the nodes decide.",
    )
    drain_seconds: float = setting(
        5.0,
        "How long requests are still accepted after SIGTERM or SIGINT, in seconds, "
        "because the API server learns of the stop later.",
        span=(0, 600),
    )
    log_level: str = setting(
        "info", f"Lowest level that is logged: {', '.join(LOG_LEVELS)}.", choices=LOG_LEVELS
    )
    log_format: str = setting(
        "json", f"Format of log lines: {', '.join(LOG_FORMATS)}.", choices=LOG_FORMATS
    )

    def __post_init__(self) -> None:
        setting_sources.check(self)
        if self.enforcer != registered.AUTO:
            registered.entry_point(self.enforcer)
