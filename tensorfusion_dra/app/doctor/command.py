"""The verb `doctor`: check everything that the driver depends on, and change nothing."""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final

from tensorfusion_dra.app.doctor import (
    checks,
    container_runtime,
    gpus,
    kubernetes,
    node,
    objects,
    requests,
)
from tensorfusion_dra.app.doctor.checks import Check, Context, Place, run_checks
from tensorfusion_dra.app.shared import (
    kubectl,
    logging,
    node_settings,
    setting_sources,
    streams,
    version,
)
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.cluster.cluster_lists import ClusterLists
from tensorfusion_dra.core import finding
from tensorfusion_dra.core.finding import EXIT_CODES, Finding, Level

_WIDTH: Final = max(len(level) for level in Level)
_WAIT_SECONDS: Final = 10.0
_NODE: Final = frozenset({Place.NODE})
_WORKSTATION: Final = frozenset({Place.WORKSTATION})

CHECKS: Final = (
    Check(theme="kubernetes", run=kubernetes.version, needs_api=True),
    Check(theme="kubernetes", run=kubernetes.slice_gates, needs_api=True),
    Check(theme="kubernetes", run=kubernetes.allocations, needs_api=True, places=_WORKSTATION),
    Check(theme="kubernetes", run=kubernetes.multi_gpu, needs_api=True, places=_WORKSTATION),
    Check(theme="kubernetes", run=kubernetes.nodes, needs_api=True),
    Check(theme="container runtime", run=container_runtime.cdi, needs_api=True),
    Check(theme="folders", run=node.folders, places=_NODE),
    Check(theme="sockets", run=node.serving, places=_NODE),
    Check(theme="GPUs", run=gpus.cards, places=_NODE),
    Check(theme="GPUs", run=gpus.competing_drivers, needs_api=True),
    Check(theme="limits", run=gpus.alive, places=_NODE),
    Check(theme="limits", run=gpus.claims, places=_NODE),
    Check(theme="node plugin", run=objects.pods, needs_api=True, places=_WORKSTATION),
    Check(theme="pods", run=objects.rollout, needs_api=True),
    Check(theme="slices", run=objects.published_slices, needs_api=True),
    Check(theme="slices", run=objects.out_of_service, needs_api=True),
    Check(theme="device class", run=objects.device_class, needs_api=True),
    Check(theme="classes of shares", run=objects.share_classes, needs_api=True),
    Check(theme="claim template", run=objects.templates, needs_api=True),
    Check(theme="requests", run=requests.classes, needs_api=True),
    Check(theme="requests", run=requests.ranges, needs_api=True, places=_WORKSTATION),
    Check(theme="requests", run=requests.waiting, needs_api=True, places=_WORKSTATION),
    Check(theme="requests", run=requests.queued, needs_api=True, places=_WORKSTATION),
    Check(theme="requests", run=requests.templates, needs_api=True, places=_WORKSTATION),
    Check(theme="quotas", run=objects.quotas, needs_api=True, places=_WORKSTATION),
    Check(theme="GPU pools", run=objects.known_pools, needs_api=True, places=_WORKSTATION),
    Check(theme="GPU pools", run=objects.pool_definition, needs_api=True, places=_WORKSTATION),
    Check(theme="webhook", run=objects.reachable, needs_api=True),
    Check(theme="records", run=node.records, places=_NODE),
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the doctor's own flags and the node plugin's settings."""
    streams.add_exit_codes(
        parser,
        "nothing is worse than a note",
        "a problem or a warning; a problem also if something could not be checked",
    )
    streams.add_form(parser)
    parser.add_argument(
        "--on",
        choices=tuple(Place),
        help="node, or workstation, where only the cluster is checked; detected by default",
    )
    setting_sources.add_flags(parser, Settings, is_hidden=True, own=("kubeconfig",))
    kubectl.add_flags(
        parser, namespace="of the dry run of a pod; by default that of kubectl's context"
    )


def run(flags: argparse.Namespace) -> int:
    """Print every finding and return the exit code of the worst level (EXIT_CODES).

    Raises:
        InputError: A flag or a setting cannot be used.
    """
    settings = node_settings.from_flags(flags, os.environ)
    logging.configure(level="critical", form="console")
    own_namespace, place = checks.own_namespace(), flags.on
    if place is None:  # a pod, or a machine with the kubelet's registration folder, is a node
        is_node = own_namespace or settings.registry_folder.is_dir()
        place = Place.NODE if is_node else Place.WORKSTATION
    here = Context(
        settings=settings,
        place=Place(place),
        own_namespace=own_namespace,
        cluster=ClusterLists(
            kubectl.api(settings.kubeconfig, flags.context), wait_seconds=_WAIT_SECONDS
        ),
        namespace=flags.namespace or kubectl.namespace(settings.kubeconfig, flags.context),
    )
    with streams.own_output():
        results = list(run_checks(CHECKS, here))
    worst = finding.worst(found for _, found in results)
    document = {
        "version": version.current(),
        "place": here.place.value,
        "node": settings.node_name if here.place is Place.NODE else None,
        "worst": worst.value,
        "exitCode": EXIT_CODES[worst],
        "findings": [{"theme": theme, **found.as_json()} for theme, found in results],
    }
    sys.stdout.write(streams.formatted(flags.form, document, _report(results, here)))
    return EXIT_CODES[worst]


def _report(results: Sequence[tuple[str, Finding]], context: Context) -> list[str]:
    """Return the lines of the report as text."""
    where = f"On node {context.settings.node_name}"
    if context.place is not Place.NODE:
        where = "On a workstation: run this on a node as well, for the checks of the node itself"
    counts = Counter(found.level for _, found in results)
    return streams.sections(
        [f"{version.NAME} {version.current()}", where],
        *(
            [theme, *(line for _, found in group for line in _lines(found))]
            for theme, group in groupby(results, key=itemgetter(0))
        ),
        [", ".join(f"{counts[level]} {level}" for level in reversed(Level) if counts[level])],
    )


def _lines(found: Finding) -> Iterator[str]:
    yield f"  {found.level:{_WIDTH}}  {found.subject}: {found.found}"
    for name, text in (("expected", found.expected), ("cure", found.remedy)):
        if text:
            yield f"  {'':{_WIDTH}}    {name + ':':9} {text}"
