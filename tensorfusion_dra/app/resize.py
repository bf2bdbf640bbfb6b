"""The verb `resize`: change the limits of a claim while its containers run."""

import argparse
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from tensorfusion_dra.app.shared import kubectl, logging, streams
from tensorfusion_dra.cluster.api import CORE, MERGE_PATCH, Api, resource_path
from tensorfusion_dra.core import names, printable
from tensorfusion_dra.core.claims import resize, share_policy
from tensorfusion_dra.core.claims.device_status import CONDITION_CHANGED
from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.core.kubernetes import resource_claims
from tensorfusion_dra.core.kubernetes.quantity import QuantityError
from tensorfusion_dra.core.kubernetes.untyped_json import map_at, objects_at

_PARSERS: Final = {
    names.CAPACITY_TFLOPS: share_policy.tflops_limit,
    names.CAPACITY_VRAM: share_policy.vram_limit,
}
_KINDS: Final = {
    **dict.fromkeys(("po", "pod", "pods"), "pod"),
    **dict.fromkeys(("", "claim", "resourceclaim", "resourceclaims"), ""),
}
_POLL_SECONDS: Final = 1.0

Item = Mapping[str, Any]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `resize`."""
    streams.add_exit_codes(parser, "asked for, or granted", "granted in part, or refused")
    parser.add_argument("target", metavar="CLAIM|POD", help="a claim, or a pod that has one")
    parser.add_argument(
        "amounts",
        metavar="AMOUNT=LIMIT",
        nargs="+",
        help="a new limit for each of its cards: vram=40Gi, tflops=200",
    )
    parser.add_argument(
        "--wait",
        metavar="SECONDS",
        type=float,
        nargs="?",
        const=60.0,
        default=0.0,
        help="wait for the node's answer, 60 s by default",
    )
    kubectl.add_flags(parser, namespace="namespace of the claim")


def run(flags: argparse.Namespace) -> int:
    """Annotate the claim; with --wait print what the node answers.

    Raises:
        InputError: There is no such claim, it is not allocated, or an amount is malformed.
        RetryableError: The API server did not answer, refused, or the node did not answer in time.
    """
    logging.configure(level="critical", form="console")
    asked = dict(map(_amount, flags.amounts))
    if len(asked) < len(flags.amounts):
        raise InputError(f"found {' '.join(flags.amounts)}, expected each amount once")
    if not flags.wait >= 0:
        raise InputError(f"--wait: found {flags.wait:g}, expected 0 or more seconds")
    api = kubectl.api(flags.kubeconfig, flags.context)
    namespace = flags.namespace or kubectl.namespace(flags.kubeconfig, flags.context)
    claim = _claim(api, namespace, flags.target)
    name = claim["metadata"]["name"]
    path = resource_path("resourceclaims", namespace=namespace, name=name)
    api.change(
        "PATCH",
        path,
        body={
            "metadata": {
                "uid": claim["metadata"]["uid"],
                "labels": resize.label(claim),
                "annotations": {resize.ANNOTATIONS[each]: text for each, text in asked.items()},
            }
        },
        content_type=MERGE_PATCH,
        permission="patch resourceclaims",
    )
    shown = ", ".join(f"{each} {text}" for each, text in asked.items())
    sys.stdout.write(
        f"claim {namespace}/{name}: limits asked for: {shown}. Its request stays as it is: "
        "for a larger one, create the pod again with a new claim.\n"
    )
    return _answer(api, path, asked, flags.wait) if flags.wait else 0


def _amount(text: str) -> tuple[str, str]:
    name, _, amount = text.partition("=")
    if name not in _PARSERS:
        raise InputError(f"found {printable.one_line(text)}, expected vram=40Gi or tflops=200")
    try:
        found = _PARSERS[name](amount)
    except (ValueError, QuantityError) as error:
        raise InputError(f"{name}: {error}") from error
    if found is None:
        raise InputError(f"{name}: found {amount!r}, expected more than 0")
    return name, str(found)


def _claim(api: Api, namespace: str, target: str) -> Item:
    """Return the claim of this name, or the one claim for GPUs of the pod of this name."""
    kind, _, name = target.rpartition("/")
    if kind not in _KINDS or not name:
        raise InputError(
            f"found {printable.one_line(target)}, expected NAME, claim/NAME or pod/NAME"
        )
    path = resource_path("resourceclaims", namespace=namespace, name=name)
    claim = None if _KINDS[kind] else api.find(path)
    if claim is not None:
        claims = [claim]
    else:
        pod = api.find(resource_path("pods", namespace=namespace, name=name, root=CORE)) or {}
        entries = {
            *resource_claims.names_by_entry(pod).values(),
            resource_claims.extended_name(pod),
        }
        paths = (
            resource_path("resourceclaims", namespace=namespace, name=each)
            for each in sorted(filter(None, entries))
        )
        claims = [found for each in paths if (found := api.find(each))]
    ours = [each for each in claims if resize.label(each)]
    if len(ours) != 1:
        shown = ", ".join(str(each["metadata"]["name"]) for each in ours) or "none"
        raise InputError(
            f"{namespace}/{printable.one_line(target)}: found claims with GPUs: {shown}; expected "
            "the name of one that is allocated, or of its pod"
        )
    return ours[0]


def _answer(api: Api, path: str, asked: Mapping[str, str], seconds: float) -> int:
    """Print what the node answers; return 0 if everything is granted.

    Raises:
        RetryableError: It did not answer in time.
    """
    ends, pause = time.monotonic() + seconds, threading.Event()
    while time.monotonic() < ends:
        devices = [
            each
            for each in objects_at(api.find(path) or {}, "status", "devices")
            if each.get("driver") == names.DRIVER
        ]
        # Admin access has no limits, and no answer.
        shown = [found for each in devices if (found := map_at(each, "data", "asked"))]
        if shown and all(asked.items() <= each.items() for each in shown):
            conditions = [
                each
                for device in devices
                for each in objects_at(device, "conditions")
                if each.get("type") == CONDITION_CHANGED
            ]
            for each in conditions:
                text = printable.one_line(str(each.get("message")))
                sys.stdout.write(f"{each.get('reason')}: {text}\n")
            return int(any(each.get("status") != "True" for each in conditions))
        pause.wait(_POLL_SECONDS)
    raise RetryableError(
        f"found no answer of the node within {seconds:g} s, expected condition {CONDITION_CHANGED} "
        "in the claim's status; setting resize of its node plugin may be false"
    )
