"""Verdict under MPS: a daemon that answers, and clients that only its own tool shows."""

from tensorfusion_dra.core.claims.enforcement import verdict
from tensorfusion_dra.core.claims.enforcement.signs import Signs
from tensorfusion_dra.core.claims.enforcement.verdict import Verdict


def judge(signs: Signs) -> Verdict:
    """Return the verdict about all cards of a claim."""
    daemon = signs.daemon
    if daemon is None:
        return verdict.unknown(verdict.UNREADABLE, "its daemon was not looked for")
    if daemon.trouble:
        return verdict.not_enforced(
            verdict.DAEMON_SILENT,
            f"{daemon.path}: {daemon.trouble}: processes that start now run without limits; "
            "start nvidia-cuda-mps-control -d on this node",
        )
    return verdict.unknown(
        verdict.CLIENTS_HIDDEN,
        f"the MPS daemon answers at {daemon.path}; whether the container's processes are its "
        "clients only its tool shows: run get_client_list in nvidia-cuda-mps-control on the node",
    )
