"""Report of the findings, as text or as JSON."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from tensorfusion_dra.app.doctor.context import Context
from tensorfusion_dra.app.doctor.options import Place
from tensorfusion_dra.app.doctor.runner import Result
from tensorfusion_dra.app.shared import version
from tensorfusion_dra.core.doctor import finding as findings
from tensorfusion_dra.core.doctor.finding import EXIT_CODES, Finding, Level

_WIDTH = max(len(level) for level in Level)


def document(results: Sequence[Result], context: Context) -> dict[str, Any]:
    """Return the report as a JSON object."""
    on_node = context.place is Place.NODE
    worst = findings.worst(f for result in results for f in result.findings)
    return {
        "version": version.current(),
        "place": context.place.value,
        "node": context.settings.node_name if on_node else None,
        "worst": worst.value,
        "exitCode": EXIT_CODES[worst],
        "findings": [
            {"theme": result.theme, **found.as_json()}
            for result in results
            for found in result.findings
        ],
    }


def lines(results: Sequence[Result], context: Context) -> Iterator[str]:
    """Yield the lines of the report as text."""
    yield f"{version.NAME} {version.current()}"
    if context.place is Place.NODE:
        yield f"On node {context.settings.node_name}"
    else:
        yield "On a workstation: run this on a node as well, for the checks of the node itself"
    theme = ""
    for result in results:
        if result.findings and result.theme != theme:
            theme = result.theme
            yield ""
            yield theme
        for found in result.findings:
            yield from _lines(found)
    yield ""
    yield _summary([found for result in results for found in result.findings])


def _lines(found: Finding) -> Iterator[str]:
    yield f"  {found.level:{_WIDTH}}  {found.subject}: {found.found}"
    for name, text in (("expected", found.expected), ("cure", found.cure)):
        if text:
            yield f"  {'':{_WIDTH}}    {name + ':':9} {text}"


def _summary(found: Sequence[Finding]) -> str:
    """Return the number of findings by level: ``1 problem, 2 warning, 20 ok``."""
    counts = Counter(item.level for item in found)
    return ", ".join(f"{counts[level]} {level}" for level in reversed(Level) if counts[level])
