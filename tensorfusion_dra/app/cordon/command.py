"""The verb `cordon`: take a card out of service, with who did it and why."""

import argparse
import sys
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from tensorfusion_dra.app.shared import kubectl, logging, streams
from tensorfusion_dra.cluster.api import (
    APPLY,
    CORE,
    MERGE_PATCH,
    RESOURCE_VERSION,
    Api,
    resource_path,
)
from tensorfusion_dra.cluster.cluster_lists import TAINT_RULES_MINOR, ClusterLists
from tensorfusion_dra.cluster.watch import TAINT_RULES
from tensorfusion_dra.core import names, printable
from tensorfusion_dra.core.devices import cordon
from tensorfusion_dra.core.devices.device import Taint
from tensorfusion_dra.core.errors import InputError, RetryableError, StatusError
from tensorfusion_dra.core.kubernetes.untyped_json import map_at, objects_at

RULE_PREFIX: Final = "tensor-fusion-cordon-"
"""Prefix of the name of a DeviceTaintRule of this verb; the device's name follows."""
_ANNOTATION_NODE: Final = "tensor-fusion.ai/cordoned-node"
_ANNOTATION_BY: Final = "tensor-fusion.ai/cordoned-by"
_ANNOTATION_REASON: Final = "tensor-fusion.ai/cordon-reason"
_REVIEWS: Final = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_FOLLOW_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 1.0

ByCard = Mapping[tuple[str, str], Any]
"""What is known of cards, by node and name of the device."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `cordon`."""
    streams.add_exit_codes(parser, "out of service", "never")
    add_target(parser)
    parser.add_argument("--reason", default="", metavar="TEXT", help="why, for whoever asks later")
    parser.add_argument(
        "--evict",
        action="store_true",
        help="also delete the pods that use the card, whatever PodDisruptionBudgets say",
    )
    kubectl.add_flags(parser)


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add the card that `cordon` and `uncordon` are about."""
    parser.add_argument(
        "card", metavar="NODE/GPU", help="a card as `top` shows it, such as node-01/gpu-363a"
    )


def run(flags: argparse.Namespace) -> int:
    """Write a DeviceTaintRule; before Kubernetes 1.37, annotate the Node.

    Raises:
        InputError: There is no such card, or several.
        RetryableError: The API server did not answer or refused, or the node did not follow.
    """
    logging.configure(level="critical", form="console")
    api = kubectl.api(flags.kubeconfig, flags.context)
    lists = ClusterLists(api)
    node, device = chosen(published(lists), flags.card)
    user = _user(api)
    taint = cordon.taint(user, flags.reason, evicts=flags.evict, since=datetime.now(UTC))
    if _rules(lists) is not None:
        rule = {
            "apiVersion": RESOURCE_VERSION,
            "kind": "DeviceTaintRule",
            "metadata": {
                "name": RULE_PREFIX + device,
                "annotations": {
                    _ANNOTATION_NODE: node,
                    _ANNOTATION_BY: user,
                    _ANNOTATION_REASON: flags.reason,
                },
            },
            "spec": {
                "deviceSelector": {"driver": names.DRIVER, "device": device},
                "taint": {"key": taint.key, "value": taint.value, "effect": taint.effect},
            },
        }
        api.change(
            "PATCH",
            f"{TAINT_RULES}/{RULE_PREFIX}{device}",
            query={"fieldManager": "kubectl-tensorfusion", "force": "true"},
            body=rule,
            content_type=APPLY,
            permission="patch devicetaintrules",
        )
    else:
        annotate(api, node, device, cordon.annotation(taint))
        _wait(lists, node, device, taint)
    rest = "Its pods are deleted." if flags.evict else "Its pods go on."
    sys.stdout.write(
        f"{node}/{device}: out of service for new pods ({taint.value}). {rest} "
        f"To end it: kubectl tensorfusion uncordon {node}/{device}\n"
    )
    return 0


def published(lists: ClusterLists) -> ByCard:
    """Return the cards of all slices of this driver."""
    return {
        (str(item["spec"].get("nodeName")), str(device["name"])): device
        for item in lists.slices(fieldSelector=f"spec.driver={names.DRIVER}")
        for device in item["spec"].get("devices") or ()
    }


def by_rules(lists: ClusterLists) -> ByCard:
    """Return the DeviceTaintRules of this verb by the cards that they take out of service."""
    nodes = {device: node for node, device in published(lists)}
    found = {}
    for rule in _rules(lists) or ():
        name, annotations = rule["metadata"]["name"], map_at(rule, "metadata", "annotations")
        if name.startswith(RULE_PREFIX):
            device = name.removeprefix(RULE_PREFIX)
            # The card may be in another node by now, or that may have another name.
            node = nodes.get(device) or str(annotations.get(_ANNOTATION_NODE, ""))
            found[node, device] = rule
    return found


def by_annotations(lists: ClusterLists) -> ByCard:
    """Return the taints of cards that Nodes' annotations take out of service."""
    return {
        (str(node["metadata"]["name"]), device): taint
        for node in lists.readable_items(resource_path("nodes", root=CORE), "Nodes") or ()
        for device, taint in cordon.of_node(map_at(node, "metadata", "annotations")).items()
    }


def chosen(cards: ByCard, target: str) -> tuple[str, str]:
    """Return node and device of the one card that a text names.

    The text has the beginning of a device's name or of a UUID; the node may be left out.

    Raises:
        InputError: There is no such card, or several.
    """
    node, _, start = target.rpartition("/")
    found = sorted(
        (of_node, device)
        for of_node, device in cards
        if node in ("", of_node) and start and device.startswith(start.lower())
    )
    if len(found) != 1:
        shown = printable.first(["/".join(each) for each in found or sorted(cards)]) or "none"
        raise InputError(
            f"{printable.one_line(target)}: found {len(found)} such cards of {shown}; expected "
            "one, such as node-01/gpu-363a"
        )
    return found[0]


def annotate(api: Api, node: str, device: str, text: str | None) -> None:
    """Write the annotation of a card on its Node; None removes it."""
    api.change(
        "PATCH",
        resource_path("nodes", name=node, root=CORE),
        body={"metadata": {"annotations": {names.CORDON_PREFIX + device: text}}},
        content_type=MERGE_PATCH,
        permission="patch nodes",
    )


def _rules(lists: ClusterLists) -> list[dict[str, Any]] | None:
    """Return the cluster's DeviceTaintRules; None if it does not follow such rules.

    Raises:
        RetryableError: The API server did not answer, or permission to list them is missing.
    """
    is_new = (lists.minor_version or 0) >= TAINT_RULES_MINOR
    return lists.items_if_served(TAINT_RULES) if is_new else None


def _user(api: Api) -> str:
    """Return the name of the user whom the API server sees; "" if it does not say."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        found = api.call("POST", _REVIEWS, body=body)
    except StatusError:
        return ""
    return str(map_at(found, "status", "userInfo").get("username", ""))


def _wait(lists: ClusterLists, node: str, device: str, taint: Taint) -> None:
    """Return once the node's slice has the taint.

    Raises:
        RetryableError: It did not get it in time.
    """
    ends, pause = time.monotonic() + _FOLLOW_SECONDS, threading.Event()
    while time.monotonic() < ends:
        found = objects_at(published(lists).get((node, device)), "taints")
        if any(each.get("key") == taint.key and each.get("value") == taint.value for each in found):
            return
        pause.wait(_POLL_SECONDS)
    raise RetryableError(
        f"{node}/{device}: the Node is annotated, but found no taint of its device within "
        f"{_FOLLOW_SECONDS:g} s; expected its node plugin to run, with release-driver or a "
        "pool-source other than settings, and the feature gate DRADeviceTaints"
    )
