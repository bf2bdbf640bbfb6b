"""The settings of the webhook, which shares none with a node plugin but where they come from."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass

from tensorfusion_dra.app.shared import setting_sources
from tensorfusion_dra.app.shared.setting_sources import (
    LOG_FORMATS,
    LOG_LEVELS,
    check_choice,
    check_range,
    setting,
)
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.enforcers.kinds import KINDS


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """All settings; the flag of each is its name with dashes."""

    host: str = setting("", "Address to serve AdmissionReviews at; all of this machine's if empty.")
    port: int = setting(9443, "Port for AdmissionReviews over HTTPS.")
    tls_cert_file: str = setting("/tls/tls.crt", "PEM file of the certificate and its chain.")
    tls_key_file: str = setting("/tls/tls.key", "PEM file of its key.")
    health_host: str = setting(
        "", "Address at which /healthz and /readyz are served over plain HTTP; all if empty."
    )
    health_port: int = setting(8081, "Their port.")
    kubeconfig: str = setting(
        "", "File with access to the API server; the pod's service account if empty."
    )
    scheduler_name: str = setting(
        "default-scheduler",
        f"Scheduler that replaces {names.TENSOR_FUSION_SCHEDULER}, which allocates no claims, in "
        "pods with a share; empty leaves it.",
    )
    virtual_capacity: str = setting(
        "false",
        "Whether claims ask for virtual_tflops and virtual_vram in clusters without GPUPool "
        "objects, because settings of the node plugins oversubscribe: true, false.",
    )
    enforcer: str = setting(
        "tensor-fusion",
        f"What enforces the limits on the nodes, as their own setting says: {', '.join(KINDS)}. "
        "Pods and claims may ask for isolation hard where it brings a limiter for that.",
    )
    drain_seconds: float = setting(
        5.0,
        "How long requests are still accepted after the process is told to stop, in seconds, "
        "because the API server learns of the stop later.",
    )
    log_level: str = setting("info", f"Lowest level that is logged: {', '.join(LOG_LEVELS)}.")
    log_format: str = setting("json", f"Format of log lines: {', '.join(LOG_FORMATS)}.")

    def __post_init__(self) -> None:
        check_range("port", self.port, 0, 65535)
        check_range("health-port", self.health_port, 0, 65535)
        check_choice("virtual-capacity", self.virtual_capacity, ("true", "false"))
        check_choice("enforcer", self.enforcer, tuple(KINDS))
        check_range("drain-seconds", self.drain_seconds, 0, 600)
        check_choice("log-level", self.log_level, LOG_LEVELS)
        check_choice("log-format", self.log_format, LOG_FORMATS)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """One flag a setting, and --config."""
    setting_sources.add_flags(parser, WebhookSettings)


def from_flags(flags: argparse.Namespace, environment: Mapping[str, str]) -> WebhookSettings:
    """The settings that flags, environment and file give together.

    Raises:
        InputError: One of them is unknown, unreadable or out of its range.
    """
    return WebhookSettings(**setting_sources.values(WebhookSettings, flags, environment))
