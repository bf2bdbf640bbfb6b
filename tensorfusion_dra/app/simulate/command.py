"""The verb `simulate`: run a whole node on this machine, without GPU or cluster."""

import argparse
from pathlib import Path
from typing import Final

from tensorfusion_dra.app.shared import kubectl, streams
from tensorfusion_dra.app.simulate.options import MAX_PODS, Options, ShareRequest
from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices.gpupool import DEFAULT_QOS, QOS_LEVELS
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes import name_rules, quantity, releases
from tensorfusion_dra.core.kubernetes.quantity import QuantityError

DEFAULT_GPUS: Final = "2xA100-SXM4-80GB"
DEFAULT_PODS: Final = 6
DEFAULT_REQUESTS: Final = (
    "tflops=100,vram=16Gi",
    "tflops=71200m,vram=10Gi",
    "tflops=200,vram=40Gi",
    "whole",
)
WHOLE: Final = "whole"

_AMOUNTS: Final = (names.CAPACITY_TFLOPS, names.CAPACITY_VRAM)
_ANNOTATIONS: Final = {
    annotation.rpartition("/")[2]: annotation for annotation in sorted(names.SHARE_ANNOTATIONS)
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `simulate`."""
    parser.add_argument(
        "--gpus",
        default=DEFAULT_GPUS,
        help="GPUs of the node, such as 8xA100-SXM4-80GB,1xT4, or a profile file (%(default)s)",
    )
    parser.add_argument(
        "--qos",
        choices=QOS_LEVELS,
        default=DEFAULT_QOS,
        help="level of service of the node's GPUs, unless a GPUPool in the file sets it "
        "(%(default)s)",
    )
    parser.add_argument(
        "--tflops-oversell-ratio",
        default="100",
        metavar="PERCENT",
        help="compute that the node hands out, in percent of its GPUs' (%(default)s)",
    )
    parser.add_argument(
        "--vram-expand-to-host-mem",
        default="0",
        metavar="PERCENT",
        help="part of this machine's memory by which the GPUs' is expanded (%(default)s)",
    )
    parser.add_argument(
        "--pods", type=int, default=DEFAULT_PODS, help="number of pods (%(default)s)"
    )
    parser.add_argument(
        "--request",
        action="append",
        help="what a pod requests, such as tflops=100,vram=16Gi,vram-limit=32Gi,isolation=soft, or "
        "whole for a card of its own; capacities of other packages have their domain; if given "
        "several times, the pods take turns",
    )
    parser.add_argument(
        "--from",
        dest="file",
        metavar="FILE",
        help="YAML file with pods, workloads, classes, GPUPools and claim templates, which are "
        "applied through the webhook in place of --pods and --request",
    )
    kubectl.add_release(parser, f"1.{releases.SIMULATED}")
    parser.add_argument("--keep", action="store_true", help="leave everything running until Ctrl-C")
    parser.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="show the CDI spec, the container's whole environment and the filled claims as well",
    )
    streams.add_exit_codes(parser, "simulated", "something was left behind")
    streams.add_form(parser)


def run(flags: argparse.Namespace) -> int:
    """Simulate, print what happened, and return 1 if something was left behind.

    Raises:
        InputError: A flag is malformed, or a required extra is not installed.
        RetryableError: A step did not happen in time; the text names it.
    """
    try:
        from tensorfusion_dra.app.simulate import sequence  # noqa: PLC0415 - the extra 'simulate'
    except ImportError as error:
        raise InputError(f"simulate needs the extra 'simulate': {error}") from error

    return sequence.run(_options(flags), form=flags.form)


def _options(flags: argparse.Namespace) -> Options:
    """Return the options in the flags, checked.

    Raises:
        InputError: A request or the number of pods is malformed.
    """
    if not 0 <= flags.pods <= MAX_PODS:
        raise InputError(f"pods: found {flags.pods}, expected 0 to {MAX_PODS}")
    return Options(
        gpus=flags.gpus,
        pods=flags.pods,
        requests=tuple(_share_request(text) for text in flags.request or DEFAULT_REQUESTS),
        tflops_oversell_ratio=flags.tflops_oversell_ratio,
        vram_expand_to_host_mem=flags.vram_expand_to_host_mem,
        file=Path(flags.file) if flags.file else None,
        qos=flags.qos,
        keep=flags.keep,
        verbose=flags.verbose,
        release=kubectl.release(flags.kubernetes) or releases.SIMULATED,
    )


def _share_request(text: str) -> ShareRequest:
    """Parse ``tflops=100,vram=16Gi,vram-limit=32Gi,isolation=hard``, or ``whole`` for a card."""
    amounts: dict[str, str] = {}
    annotations: dict[str, str] = {}
    for part in () if text == WHOLE else text.split(","):
        name, separator, value = part.partition("=")
        is_other = "/" in name and not any(name_rules.qualified("", name))
        if not separator or not (is_other or name in (*_AMOUNTS, *_ANNOTATIONS)):
            known = ", ".join(f"{key}=..." for key in (*_AMOUNTS, *_ANNOTATIONS, "DOMAIN/NAME"))
            raise InputError(f"request {text!r}: {part!r}: expected {known}, or {WHOLE} alone")
        if name in _ANNOTATIONS:
            annotations[_ANNOTATIONS[name]] = value
            continue
        try:
            quantity.parse(value)
        except QuantityError as error:
            raise InputError(f"request {text!r}: {name}: {error}") from error
        amounts[name] = value
    return ShareRequest(amounts=amounts, annotations=annotations)
