"""Input and output of `convert`: claims, and the reasons given for changes."""

import textwrap
from typing import Final

from tensorfusion_dra.app.convert.convert import Converted

CLAIM: Final = """\
apiVersion: resource.k8s.io/{version}
kind: ResourceClaim
metadata:
  name: a
spec:
  devices:
    requests:
"""


def claim_text(requests: str, version: str = "v1") -> str:
    """Return a claim with these requests, which are given without indentation."""
    return (
        CLAIM.format(version=version)
        + textwrap.indent(textwrap.dedent(requests).strip(), "    ")
        + "\n"
    )


def reasons_with_lines(converted: Converted) -> list[str]:
    """Return the reasons for all changes, each with its line."""
    return [f"{reason.line}: {reason.text}" for reason in converted.reasons]
