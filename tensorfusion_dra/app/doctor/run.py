"""Why does it not work here: looks at everything the driver depends on, and changes nothing."""

import json
import sys
from collections.abc import Mapping
from typing import Final

from tensorfusion_dra.app.doctor import (
    context,
    folders,
    gpus,
    kubernetes,
    limiter,
    objects,
    records,
    report,
    rights,
    runtime,
    sockets,
    webhook,
)
from tensorfusion_dra.app.doctor.options import Options, Place
from tensorfusion_dra.app.doctor.runner import Check, examined
from tensorfusion_dra.app.settings import Settings
from tensorfusion_dra.core.doctor import finding as findings
from tensorfusion_dra.core.doctor.finding import EXIT_CODES

_NODE: Final = frozenset({Place.NODE})
_WORKSTATION: Final = frozenset({Place.WORKSTATION})

CHECKS: Final = (
    Check(theme="kubernetes", look=kubernetes.version, needs_api=True),
    Check(theme="kubernetes", look=kubernetes.slice_gates, needs_api=True),
    Check(theme="kubernetes", look=kubernetes.claim_gates, needs_api=True),
    Check(theme="kubernetes", look=kubernetes.allocations, needs_api=True, places=_WORKSTATION),
    Check(theme="kubernetes", look=kubernetes.several_gpus, needs_api=True, places=_WORKSTATION),
    Check(theme="kubernetes", look=kubernetes.nodes, needs_api=True),
    Check(theme="container runtime", look=runtime.cdi, needs_api=True),
    Check(theme="folders", look=folders.folders, places=_NODE),
    Check(theme="sockets", look=sockets.paths, places=_NODE),
    Check(theme="sockets", look=sockets.served, places=_NODE),
    Check(theme="sockets", look=sockets.registered, places=_NODE),
    Check(theme="GPUs", look=gpus.cards, places=_NODE),
    Check(theme="GPUs", look=gpus.neighbours, needs_api=True),
    Check(theme="limits", look=limiter.files, places=_NODE),
    Check(theme="slices", look=objects.slices, needs_api=True),
    Check(theme="device class", look=objects.device_class, needs_api=True),
    Check(theme="claim template", look=objects.templates, needs_api=True),
    Check(theme="GPU pools", look=objects.definitions, needs_api=True, places=_WORKSTATION),
    Check(theme="rights", look=rights.of_node_plugin, needs_api=True),
    Check(theme="webhook", look=rights.of_webhook, needs_api=True, places=_WORKSTATION),
    Check(theme="webhook", look=webhook.reachable, needs_api=True),
    Check(theme="records", look=records.records, places=_NODE),
)


def run(settings: Settings, chosen: Options, environment: Mapping[str, str], *, form: str) -> int:
    """Prints every finding; the exit code says how bad the worst is (EXIT_CODES)."""
    here = context.found(settings, chosen, environment)
    results = list(examined(CHECKS, here))
    if form == "json":
        text = json.dumps(report.document(results, here), indent=2)
    else:
        text = "\n".join(report.lines(results, here))
    sys.stdout.write(text + "\n")
    worst = findings.worst(found for result in results for found in result.findings)
    return EXIT_CODES[worst]
