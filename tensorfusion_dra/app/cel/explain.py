"""Explanation of a selector: the devices that it selects, and what excludes each other one."""

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tensorfusion_dra.app.shared import streams
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.cluster.cluster_lists import ClusterLists
from tensorfusion_dra.core import names, printable
from tensorfusion_dra.core.cel import dialect, syntax
from tensorfusion_dra.core.cel.syntax import Term
from tensorfusion_dra.core.errors import DriverError, InputError
from tensorfusion_dra.core.kubernetes.quantity import Quantity
from tensorfusion_dra.scheduling import cel_evaluation, devices, placement
from tensorfusion_dra.scheduling.cel_evaluation import CelRunError
from tensorfusion_dra.scheduling.devices import Device, Usage

Document = Mapping[str, Any]

_SHOWN_VALUES: Final = 4
_SHOWN_DEVICES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """A device, with the result of the selector.

    Attributes:
        reasons: Parts of the selector that exclude it; empty if none does.
        refusal: Why it cannot provide the requested amounts; None if it can.
        error: Set if the selector fails on it, which stops the scheduling of the pod.
    """

    device: Device
    reasons: tuple[str, ...]
    refusal: str | None
    error: str | None

    @property
    def matches(self) -> bool:
        """Return True if nothing excludes the device."""
        return not self.reasons and self.refusal is None


def run(
    selector: str,
    *,
    form: str,
    slices: str | None,
    api: Api,
    requests: Mapping[str, Quantity],
) -> int:
    """Print the result of each part of the selector and for each device; return 1 if none matches.

    Args:
        selector: In Kubernetes' CEL or in the guide's.
        form: Of the output, as -o has it.
        slices: File with ResourceSlices; None reads them from the API server.
        api: That API server.
        requests: Amounts by capacity that the claim requests.

    Raises:
        InputError: The selector or the slices cannot be used.
        RetryableError: The API server did not answer.
    """
    expression = dialect.translate(selector)
    invalid = cel_evaluation.check_expression(expression)
    if invalid is not None:
        raise InputError(f"expression: {invalid}")
    found, used = _read(slices, api, with_claims=bool(requests))
    term = syntax.terms(expression)
    results = [_result(term, device, requests, used) for device in found]
    lines = _lines(expression if expression != selector else "", term, results, requests)
    document = {
        "expression": expression,
        "matching": sum(item.matches for item in results),
        "term": _term_document(term, found),
        "devices": [
            {
                "pool": item.device.id.pool,
                "device": item.device.id.device,
                "matches": item.matches,
                "reasons": list(item.reasons),
                "refusal": item.refusal,
                "error": item.error,
            }
            for item in results
        ],
    }
    sys.stdout.write(streams.formatted(form, document, lines))
    return 0 if any(item.matches for item in results) else 1


def _result(term: Term, device: Device, requests: Mapping[str, Quantity], used: Usage) -> _Result:
    result = placement.result(term, device)
    refusal: str | None = None
    if requests and not device.is_shared:
        refusal = "cannot be shared"
    elif requests and used.is_exclusive(device.id):
        refusal = "a claim has it exclusively"
    elif requests:
        short = devices.shortage(requests, device.capacity, used.taken(device.id))
        refusal = None if short is None else short.text
    reasons = [failed.text for failed in placement.failed_terms(term, device)]
    return _Result(
        device=device,
        reasons=tuple(dict.fromkeys(reasons)),
        refusal=refusal,
        error=str(result) if isinstance(result, CelRunError) else None,
    )


def _lines(
    translated: str,
    term: Term,
    results: Sequence[_Result],
    requests: Mapping[str, Quantity],
) -> list[str]:
    matching = [item.device for item in results if item.matches]
    tainted = sum(device.is_tainted for device in matching)
    pools = len({item.device.id.pool for item in results})
    rows = [("PASS", "FOUND", "TERM"), *_rows(term, [item.device for item in results])]
    if requests:
        text = ", ".join(f"{name}={amount}" for name, amount in requests.items())
        rows.append((sum(item.refusal is None for item in results), "", f"request {text}"))
    errors = Counter(item.error for item in results if item.error)
    left_out = list(_left_out(results))
    return streams.sections(
        ["Translated", *(f"  {line}" for line in translated.splitlines())] if translated else (),
        [
            f"{len(matching)} of {len(results)} devices of {names.DRIVER} match; pools: {pools}",
            *([f"{tainted} of them only for claims that tolerate their taints"] if tainted else ()),
        ],
        streams.table(rows, indent="") if results else (),
        *(
            [f"On {count} of them the selector fails, so no node gets its pods: {error}"]
            for error, count in errors.items()
        ),
        ["Left out", *left_out] if left_out else (),
    )


def _rows(
    term: Term, devices: Sequence[Device], depth: int = 0
) -> Iterator[tuple[object, str, str]]:
    """Yield a row for each part in the order of the text; for the whole only if it has no parts."""
    if depth or not term.parts:
        found = []
        for name, values in {} if term.parts else _values(term, devices).items():
            counted = [f"{value} ({count})" for value, count in values.most_common()]
            found.append(f"{name}: {printable.first(counted, _SHOWN_VALUES)}")
        text = "any of" if term.operator == "||" else term.text
        yield _passing(term, devices), "; ".join(found), "  " * (depth - 1) + text
    for part in term.parts:
        yield from _rows(part, devices, depth + 1)


def _passing(term: Term, devices: Sequence[Device]) -> int:
    return sum(placement.result(term, device) is True for device in devices)


def _values(term: Term, devices: Sequence[Device]) -> dict[str, Counter[str]]:
    return {lookup.name: placement.values(lookup, devices) for lookup in term.lookups}


def _left_out(results: Sequence[_Result]) -> Iterator[str]:
    """Yield the excluded devices; those of a pool with the same reasons share a line."""
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for item in results:
        refusals = [streams.with_points(item.refusal)] if item.refusal else []
        reasons = (*item.reasons, *(f"request: {each}" for each in refusals))
        if reasons:
            key = (item.device.id.pool, reasons)
            groups.setdefault(key, []).append(item.device.id.device)
    for (pool, reasons), named in groups.items():
        yield f"  {pool}: {printable.first(named, _SHOWN_DEVICES)}"
        yield from (f"    {reason}" for reason in reasons)


def _term_document(term: Term, devices: Sequence[Device]) -> Mapping[str, Any]:
    return {
        "text": term.text,
        "operator": term.operator,
        "passing": _passing(term, devices),
        "values": {name: dict(found) for name, found in _values(term, devices).items()},
        "parts": [_term_document(part, devices) for part in term.parts],
    }


def _read(file: str | None, api: Api, *, with_claims: bool) -> tuple[Sequence[Device], Usage]:
    """Return the driver's devices and their use: of a YAML or JSON file, or of the API server.

    Args:
        file: Has the ResourceClaims as well; None for the API server.
        with_claims: Read the API server's ResourceClaims, too; without them no device counts as
            used.

    Raises:
        InputError: The file has no ResourceSlice, the kubeconfig cannot be used, or the slices are
            malformed.
        RetryableError: The API server did not answer, or refused the request.
    """
    subject = "the cluster's slices" if file is None else f"slices {file}"
    slices: Sequence[Document]
    claims: Sequence[Document]
    if file is None:
        lists = ClusterLists(api)
        slices = lists.slices(fieldSelector=f"spec.driver={names.DRIVER}")
        claims = lists.claims() if with_claims else []
    else:
        documents = streams.documents(file, of="slices ")
        slices = [item for item in documents if item.get("kind") == "ResourceSlice"]
        claims = [item for item in documents if item.get("kind") == "ResourceClaim"]
        if not slices:
            raise InputError(f"{subject}: found no ResourceSlice, expected one or more")
    try:
        of_driver = [
            devices.slice_of(document)
            for document in slices
            if document["spec"]["driver"] == names.DRIVER
        ]
        return list(devices.newest(of_driver)), devices.usage_of(claims)
    except (KeyError, TypeError, AttributeError, ValueError, DriverError) as error:
        raise InputError(
            f"{subject}: found {type(error).__name__} {error}, "
            f"expected ResourceSlices as the API server shows them"
        ) from error
