"""Report of the devices that a selector selects, and of what excludes each other device."""

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tensorfusion_dra.app.cel import devices as candidates
from tensorfusion_dra.app.shared.tables import table
from tensorfusion_dra.core import names
from tensorfusion_dra.core.cel import terms, translate
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes.quantity import Quantity
from tensorfusion_dra.scheduling import cel_evaluation, selector_trace
from tensorfusion_dra.scheduling.selector_trace import TracedDevice, TracedTerm

_SHOWN_VALUES: Final = 4
_SHOWN_DEVICES: Final = 3
_EXCLUDING_EFFECTS: Final = frozenset({"NoSchedule", "NoExecute"})


def run(
    text: str,
    *,
    form: str,
    slices: str | None,
    kubeconfig: str | None,
    requests: Mapping[str, Quantity],
) -> int:
    """Print the result of each part of the selector and for each device; return 1 if none matches.

    Args:
        text: The selector, which may be in the user guide's dialect.
        form: table or json.
        slices: File with ResourceSlices; None reads them from the API server.
        kubeconfig: None for the one that kubectl would use.
        requests: Amounts by capacity that the claim requests as well.

    Raises:
        InputError: The selector or the slices cannot be used.
        RetryableError: The API server did not answer.
    """
    expression = translate.translate(text)
    invalid = cel_evaluation.check_expression(expression)
    if invalid is not None:
        raise InputError(f"expression: {invalid}")
    if slices is not None:
        found = candidates.from_file(slices)
    else:
        with_claims = bool(requests)
        found = candidates.from_cluster(kubeconfig, with_claims=with_claims)
    term = terms.terms(expression)
    traced = selector_trace.traced_term(term, found.devices)
    devices = [
        selector_trace.traced_device(term, device, requests=requests, usage=found.usage)
        for device in found.devices
    ]
    if form == "json":
        document = _document(expression, traced, devices)
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        is_translated = expression != text
        lines = _lines(expression if is_translated else "", traced, devices, requests)
        sys.stdout.write("\n".join(lines) + "\n")
    return 0 if any(item.matches for item in devices) else 1


def _lines(
    translated: str,
    term: TracedTerm,
    devices: Sequence[TracedDevice],
    requests: Mapping[str, Quantity],
) -> Iterator[str]:
    if translated:
        yield "Translated"
        yield from (f"  {line}" for line in translated.splitlines())
        yield ""
    matching = [item.device for item in devices if item.matches]
    pools = len({item.device.id.pool for item in devices})
    yield f"{len(matching)} of {len(devices)} devices of {names.DRIVER} match; pools: {pools}"
    tainted = sum(
        any(taint.effect in _EXCLUDING_EFFECTS for taint in device.taints) for device in matching
    )
    if tainted:
        yield f"{tainted} of them only for claims that tolerate their taints"
    if not devices:
        return
    yield ""
    rows = [("PASS", "FOUND", "TERM"), *_rows(term)]
    if requests:
        text = ", ".join(f"{name}={amount}" for name, amount in requests.items())
        rows.append((sum(item.refusal is None for item in devices), "", f"request {text}"))
    yield from table(rows, indent="")
    for error, count in Counter(item.error for item in devices if item.error).items():
        yield ""
        yield f"On {count} of them the selector fails, so no node gets its pods: {error}"
    yield from _left_out(devices)


def _rows(term: TracedTerm, depth: int = 0) -> Iterator[tuple[object, str, str]]:
    """Yield a row for each part in the order of the text; for the whole only if it has no parts."""
    if depth or not term.parts:
        found = "; ".join(f"{name}: {_values(values)}" for name, values in term.values.items())
        text = "any of" if term.operator == "||" else term.text
        yield term.passing, "" if term.parts else found, "  " * (depth - 1) + text
    for part in term.parts:
        yield from _rows(part, depth + 1)


def _values(values: Counter[str]) -> str:
    shown = [f"{value} ({count})" for value, count in values.most_common(_SHOWN_VALUES)]
    more = len(values) - _SHOWN_VALUES
    return ", ".join([*shown, f"{more} more"] if more > 0 else shown)


def _left_out(devices: Sequence[TracedDevice]) -> Iterator[str]:
    """Yield the excluded devices; those of a pool with the same reasons share a line."""
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for item in devices:
        reasons = item.reasons + ((f"request: {item.refusal}",) if item.refusal else ())
        if reasons:
            key = (item.device.id.pool, reasons)
            groups.setdefault(key, []).append(item.device.id.device)
    if groups:
        yield ""
        yield "Left out"
    for (pool, reasons), named in groups.items():
        more = len(named) - _SHOWN_DEVICES
        shown = ", ".join(named[:_SHOWN_DEVICES]) + (f" and {more} more" if more > 0 else "")
        yield f"  {pool}: {shown}"
        yield from (f"    {reason}" for reason in reasons)


def _document(
    expression: str, term: TracedTerm, devices: Sequence[TracedDevice]
) -> Mapping[str, Any]:
    return {
        "expression": expression,
        "matching": sum(item.matches for item in devices),
        "term": _term_document(term),
        "devices": [
            {
                "pool": item.device.id.pool,
                "device": item.device.id.device,
                "matches": item.matches,
                "reasons": list(item.reasons),
                "refusal": item.refusal,
                "error": item.error,
            }
            for item in devices
        ],
    }


def _term_document(term: TracedTerm) -> Mapping[str, Any]:
    return {
        "text": term.text,
        "operator": term.operator,
        "passing": term.passing,
        "values": {name: dict(values) for name, values in term.values.items()},
        "parts": [_term_document(part) for part in term.parts],
    }
