"""The webhook's settings, from the same sources as the node plugin's."""

from dataclasses import dataclass

from tensorfusion_dra.app.shared import setting_sources
from tensorfusion_dra.app.shared.setting_sources import LOG_FORMATS, LOG_LEVELS
from tensorfusion_dra.core import names
from tensorfusion_dra.core.settings import LISTENING, setting
from tensorfusion_dra.enforcers import registered


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """All settings of the webhook; a setting's flag is its name with dashes."""

    host: str = setting("", "Address to serve reviews on; all addresses if empty.")
    port: int = setting(9443, "Port for reviews over HTTPS.", span=(0, 65_535))
    tls_cert_file: str = setting("/tls/tls.crt", "PEM file of the certificate and its chain.")
    tls_key_file: str = setting("/tls/tls.key", "PEM file of the certificate's private key.")
    client_ca_file: str = setting(
        "",
        "PEM file of the CAs of clients that may post reviews; all clients if empty.",
    )
    health_address: str = setting(
        ":8081",
        "Where to serve /healthz and /readyz; nowhere if empty.",
        form=LISTENING,
    )
    metrics_address: str = setting(
        ":8081",
        "Where to serve /metrics; nowhere if empty.",
        form=LISTENING,
    )
    kubeconfig: str = setting(
        "", "File with access to the API server; the service account if empty."
    )
    scheduler_name: str = setting(
        "default-scheduler",
        f"Scheduler that replaces {names.TENSOR_FUSION_SCHEDULER}; empty keeps that.",
    )
    virtual_capacity: bool = setting(
        False,
        "Request virtual capacities as long as neither published GPUs nor a GPUPool decide it.",
    )
    default_enabled: bool = setting(
        False,
        "Give GPUs to pods with amounts also without dra-enabled, if no GPUPool decides.",
    )
    enforcer: str = setting(
        registered.AUTO,
        "The nodes' enforcer; pods with isolation hard are refused if it does not enforce that.",
    )
    drain_seconds: float = setting(
        5.0,
        "How long requests are accepted after SIGTERM.",
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
