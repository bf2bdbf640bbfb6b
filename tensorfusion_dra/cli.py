"""The command and its verbs."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from tensorfusion_dra.core.errors import InputError, RetryableError


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as for every other bad input."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see {self.prog} --help)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a verb; the exit code: 2 for bad input, else the verb's own."""
    try:
        parser = _parser()
        flags = parser.parse_args(arguments)
        return int(flags.run(flags))
    except InputError as error:
        sys.stderr.write(f"tensorfusion-dra: {' '.join(str(error).split())}\n")
        return 2
    except RetryableError as error:
        sys.stderr.write(f"tensorfusion-dra: {' '.join(str(error).split())}\n")
        return 1


def _parser() -> argparse.ArgumentParser:
    # Each verb imports what it needs when it runs: the node plugin should not load a simulator.
    from tensorfusion_dra.app import settings  # noqa: PLC0415

    parser = _Parser(
        prog="tensorfusion-dra", description="Kubernetes DRA node driver for shared GPUs."
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True, parser_class=_Parser)

    node_plugin = verbs.add_parser(
        "node-plugin", help="serve the kubelet of this node and publish its GPUs"
    )
    settings.add_flags(node_plugin)
    node_plugin.set_defaults(run=_node_plugin)

    simulate = verbs.add_parser(
        "simulate", help="run a whole node on this machine, without GPU or cluster"
    )
    simulate.add_argument(
        "--gpus",
        default="2xA100-SXM4-80GB",
        help="GPUs of the node: such as 8xA100-SXM4-80GB,1xT4, or a profile's file (%(default)s)",
    )
    simulate.add_argument("--pods", type=int, default=6, help="how many pods (%(default)s)")
    simulate.add_argument(
        "--request",
        action="append",
        help="what a pod asks for, such as tflops=100,vram=16Gi,vram-limit=32Gi,isolation=soft, or "
        "whole for a card alone; given several times, the pods take turns",
    )
    simulate.add_argument(
        "--tflops-oversell-ratio",
        default="100",
        metavar="PERCENT",
        help="compute that the node hands out, in percent of its GPUs' (%(default)s)",
    )
    simulate.add_argument(
        "--vram-expand-to-host-mem",
        default="0",
        metavar="PERCENT",
        help="part of this machine's memory by which the GPUs' is expanded (%(default)s)",
    )
    simulate.add_argument(
        "--keep", action="store_true", help="leave everything running until Ctrl-C"
    )
    simulate.add_argument(
        "-o", dest="form", choices=("text", "json"), default="text", help="how to show it"
    )
    simulate.set_defaults(run=_simulate)

    inspect = verbs.add_parser("inspect", help="show what this node has and holds")
    inspect.add_argument(
        "-o", dest="form", choices=("table", "json", "yaml"), default="table", help="how to show it"
    )
    inspect.add_argument(
        "--raw", action="store_true", help="print what NVML answered to each question, as JSON"
    )
    settings.add_flags(inspect)
    inspect.set_defaults(run=_inspect)
    return parser


def _node_plugin(flags: argparse.Namespace) -> int:
    from tensorfusion_dra.app import logging, settings  # noqa: PLC0415

    chosen = settings.from_flags(flags, os.environ)
    logging.configure(level=chosen.log_level, form=chosen.log_format)
    from tensorfusion_dra.app import node_plugin  # noqa: PLC0415

    return node_plugin.run(chosen)


def _simulate(flags: argparse.Namespace) -> int:
    try:
        from tensorfusion_dra.app import simulate  # noqa: PLC0415
    except ImportError as error:
        raise InputError(f"simulate needs the extra 'cel': {error}") from error

    return simulate.run(simulate.options(flags), form=flags.form)


def _inspect(flags: argparse.Namespace) -> int:
    from tensorfusion_dra.app import inspect, logging, settings  # noqa: PLC0415

    chosen = settings.from_flags(flags, os.environ)
    logging.configure(level="error", form="console")
    return inspect.run(chosen, form=flags.form, raw=flags.raw)
