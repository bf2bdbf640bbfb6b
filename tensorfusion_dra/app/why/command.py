"""The verb `why`: explain why a pod waits, and what would help."""

import argparse
import sys

from tensorfusion_dra.app.shared import kubectl, logging, streams
from tensorfusion_dra.app.why import answers, diagnosis
from tensorfusion_dra.core.errors import InputError


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `why`."""
    streams.add_exit_codes(
        parser,
        "the pod fits now, or is scheduled already",
        "it waits, cannot start, is being deleted, or got no GPU",
    )
    parser.add_argument(
        "pod",
        nargs="?",
        metavar="POD",
        help="name of the pod, or NAMESPACE/POD, or a workload: deploy/NAME, job/NAME",
    )
    parser.add_argument(
        "-f",
        dest="file",
        metavar="FILE",
        help="a pod or workload that is not created yet, and its claims; - for stdin",
    )
    streams.add_form(parser)
    kubectl.add_release(parser, "that of the API server")
    kubectl.add_flags(parser, namespace="the pod's; by default that of kubectl's context")


def run(flags: argparse.Namespace) -> int:
    """Print the answer and return the exit code.

    Raises:
        InputError: There is no such pod, or a flag cannot be used.
        RetryableError: The API server did not answer, or a permission is missing.
    """
    if not flags.pod and flags.file is None:
        raise InputError("pod: found none, expected POD, KIND/NAME or -f FILE")
    logging.configure(level="critical", form="console")
    found = diagnosis.answer(
        kubectl.api(flags.kubeconfig, flags.context),
        namespace=flags.namespace or kubectl.namespace(flags.kubeconfig, flags.context),
        target=flags.pod or "",
        file=flags.file,
        release=kubectl.release(flags.kubernetes),
    )
    sys.stdout.write(
        streams.formatted(
            flags.form,
            answers.document(found),
            answers.lines(found, is_wide=flags.form == streams.WIDE),
        )
    )
    return diagnosis.exit_code(found)
