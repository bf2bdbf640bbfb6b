"""The command and its verbs."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

from tensorfusion_dra.app import stop_signals
from tensorfusion_dra.core.errors import InputError, RetryableError

_SERVING: Final = frozenset({"node-plugin", "webhook"})


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as for every other bad input."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (see {self.prog} --help)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb; return the exit code: 2 for bad input, else the verb's own."""
    given = sys.argv[1:] if arguments is None else arguments
    if _SERVING.isdisjoint(given[:1]):
        stop_signals.release()
    else:
        stop_signals.hold()
    try:
        parser = _parser()
        flags = parser.parse_args(given)
        return int(flags.run(flags))
    except InputError as error:
        sys.stderr.write(f"tensorfusion-dra: {' '.join(str(error).split())}\n")
        return 2
    except RetryableError as error:
        sys.stderr.write(f"tensorfusion-dra: {' '.join(str(error).split())}\n")
        return 1


def _parser() -> argparse.ArgumentParser:
    # Each verb imports what it needs when it runs: the node plugin should not load a simulator.
    from tensorfusion_dra.app import (  # noqa: PLC0415
        cel_options,
        settings,
        simulate_options,
        version,
        webhook_settings,
    )
    from tensorfusion_dra.app.doctor import options as doctor_options  # noqa: PLC0415

    parser = _Parser(
        prog="tensorfusion-dra", description="Kubernetes DRA node driver for shared GPUs."
    )
    parser.add_argument(
        "--version", action="version", version=f"{version.NAME} {version.current()}"
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True, parser_class=_Parser)

    node_plugin = verbs.add_parser(
        "node-plugin", help="serve the kubelet of this node and publish its GPUs"
    )
    settings.add_flags(node_plugin)
    node_plugin.set_defaults(run=_node_plugin)

    webhook = verbs.add_parser(
        "webhook", help="give pods their claims and claims their contents, at admission"
    )
    webhook_settings.add_flags(webhook)
    webhook.set_defaults(run=_webhook)

    simulate = verbs.add_parser(
        "simulate", help="run a whole node on this machine, without GPU or cluster"
    )
    simulate_options.add_flags(simulate)
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

    cel = verbs.add_parser("cel", help="translate, check and explain device selectors")
    cel_options.add_flags(cel)
    cel.set_defaults(run=_cel)

    convert = verbs.add_parser(
        "convert",
        help="the user guide's YAML as an API server of 1.34 or later takes it",
        epilog="exit codes: 0 converted; 1 something is refused and not converted, or, with "
        "--check, would be converted; 2 the input cannot be read",
    )
    convert.add_argument(
        "-f", dest="file", metavar="FILE", required=True, help="YAML or JSON; - for stdin"
    )
    convert.add_argument("--check", action="store_true", help="only say what would be converted")
    convert.set_defaults(run=_convert)

    doctor = verbs.add_parser(
        "doctor",
        help="say why it does not work here, and what to do",
        epilog="Exit code: 0 if nothing is worse than a note, 1 for a problem, 2 for bad input, "
        "3 for a warning, 4 if something could not be looked at.",
    )
    doctor_options.add_flags(doctor)
    settings.add_flags(doctor)
    doctor.set_defaults(run=_doctor)
    return parser


def _node_plugin(flags: argparse.Namespace) -> int:
    from tensorfusion_dra.app import logging, settings  # noqa: PLC0415

    chosen = settings.from_flags(flags, os.environ)
    logging.configure(level=chosen.log_level, form=chosen.log_format)
    from tensorfusion_dra.app import node_plugin  # noqa: PLC0415

    return node_plugin.run(chosen)


def _webhook(flags: argparse.Namespace) -> int:
    from tensorfusion_dra.app import logging, webhook_settings  # noqa: PLC0415

    chosen = webhook_settings.from_flags(flags, os.environ)
    logging.configure(level=chosen.log_level, form=chosen.log_format)
    from tensorfusion_dra.app import webhook  # noqa: PLC0415

    return webhook.run(chosen)


def _simulate(flags: argparse.Namespace) -> int:
    try:
        from tensorfusion_dra.app import simulate, simulate_options  # noqa: PLC0415
    except ImportError as error:
        raise InputError(f"simulate needs the extra 'cel': {error}") from error

    return simulate.run(simulate_options.from_flags(flags), form=flags.form)


def _inspect(flags: argparse.Namespace) -> int:
    from tensorfusion_dra.app import inspect, logging, settings  # noqa: PLC0415

    chosen = settings.from_flags(flags, os.environ)
    logging.configure(level="error", form="console")
    return inspect.run(chosen, form=flags.form, raw=flags.raw)


def _cel(flags: argparse.Namespace) -> int:
    from tensorfusion_dra.app import cel, cel_options  # noqa: PLC0415

    return cel.run(cel_options.from_flags(flags))


def _convert(flags: argparse.Namespace) -> int:
    from tensorfusion_dra.app.convert import command  # noqa: PLC0415

    return command.run(flags.file, check=flags.check)


def _doctor(flags: argparse.Namespace) -> int:
    from tensorfusion_dra.app import logging, settings  # noqa: PLC0415
    from tensorfusion_dra.app.doctor import options as doctor_options  # noqa: PLC0415
    from tensorfusion_dra.app.doctor import run as doctor  # noqa: PLC0415

    chosen = settings.from_flags(flags, os.environ)
    logging.configure(level="critical", form="console")
    options = doctor_options.from_flags(flags)
    return doctor.run(chosen, options, os.environ, form=flags.form)
