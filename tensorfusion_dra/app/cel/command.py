"""The verb `cel`: translate, check and explain device selectors.

An explanation shows which devices a selector selects, and what excludes each other one.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tensorfusion_dra.app.shared import kubectl, streams
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.cluster.cluster_lists import ClusterLists
from tensorfusion_dra.core import names, printable
from tensorfusion_dra.core.cel import syntax, user_guide
from tensorfusion_dra.core.cel.syntax import CelError, Term
from tensorfusion_dra.core.errors import DriverError, InputError
from tensorfusion_dra.core.kubernetes import quantity, releases
from tensorfusion_dra.core.kubernetes.quantity import Quantity, QuantityError
from tensorfusion_dra.scheduling import cel_evaluation, devices, placement
from tensorfusion_dra.scheduling.cel_evaluation import CelRunError
from tensorfusion_dra.scheduling.devices import PublishedDevice, SchedulingError, Usage

Document = Mapping[str, Any]

_SHOWN_VALUES: Final = 4
_SHOWN_DEVICES: Final = 3


CheckResult = dict[str, Any]
"""A check of an expression, as in the JSON document; `ok` is None if it was not fully made."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `cel`."""
    streams.add_exit_codes(
        parser,
        "translate: done; check: nothing wrong; explain: a device matches",
        "check: the API server would refuse it, a name is unknown, or the types were not fully\n"
        "     checked; explain: no device matches",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    translating = actions.add_parser(
        "translate", help="translate the user guide's CEL for Kubernetes"
    )
    checking = actions.add_parser("check", help="check whether the API server would accept it")
    explaining = actions.add_parser(
        "explain", help="show which devices it selects, and what excludes each other device"
    )
    for action in (translating, checking, explaining):
        action.add_argument(
            "expression", nargs="?", help=f"the expression; {streams.STDIN} for stdin"
        )
        action.add_argument("-f", dest="file", metavar="FILE", help="read it from a file")
        streams.add_form(action)
    checking.add_argument(
        "--as-is",
        action="store_true",
        help="report the user guide's CEL as an error, as Kubernetes does",
    )
    explaining.add_argument(
        "--slices",
        metavar="FILE",
        help="ResourceSlices, as kubectl get resourceslices -o yaml prints them, and the "
        "ResourceClaims allocated from them; by default those of the cluster",
    )
    kubectl.add_release(explaining, f"that of the API server, and 1.{releases.NEWEST} of a file")
    kubectl.add_flags(explaining)
    explaining.add_argument(
        "--request",
        action="append",
        default=[],
        metavar="AMOUNTS",
        help="capacities that the claim requests as well, such as tflops=100,vram=16Gi",
    )


def run(flags: argparse.Namespace) -> int:
    """Print the answer and return the exit code.

    Raises:
        InputError: The expression or a file cannot be used.
        RetryableError: The API server did not answer.
    """
    expression = _expression(flags.expression, flags.file)
    if flags.action == "translate":
        return _translate(expression, form=flags.form)
    if flags.action == "check":
        return _check(expression, form=flags.form, as_is=flags.as_is)
    return _explain(
        expression,
        form=flags.form,
        slices=flags.slices,
        api=kubectl.api(flags.kubeconfig, flags.context),
        requests=_requests(flags.request),
        release=kubectl.release(flags.kubernetes),
    )


def _expression(text: str | None, file: str | None) -> str:
    if (text is None) == (file is None):
        found = "none" if text is None else "one, and a file"
        raise InputError(f"expression: found {found}, expected EXPR, -f FILE or {streams.STDIN}")
    if text == streams.STDIN:
        file = streams.STDIN
    # The line break that ends a file is not part of the expression.
    return streams.read(file).removesuffix("\n") if file is not None else str(text)


def _requests(texts: list[str]) -> dict[str, Quantity]:
    amounts = {}
    for part in (part for text in texts for part in text.split(",")):
        name, _, value = part.partition("=")
        if name not in user_guide.CAPACITIES and "/" not in name:
            known = "=..., ".join([*user_guide.CAPACITIES, "DOMAIN/NAME"])
            raise InputError(f"request: found {part!r}, expected {known}=...")
        try:
            amounts[name] = quantity.parse(value)
        except QuantityError as error:
            raise InputError(f"request: {name}: {error}") from error
    return amounts


def _translate(expression: str, *, form: str) -> int:
    translated = user_guide.translate(expression)
    for finding in _by_library(translated):
        if finding["ok"] is False:
            raise InputError(finding["text"])
        if finding["ok"] is None:
            sys.stderr.write(f"types {finding['text']}\n")
    document = {"expression": translated, "changed": translated != expression}
    sys.stdout.write(streams.formatted(form, document, [translated]))
    return 0


def _check(expression: str, *, form: str, as_is: bool) -> int:
    found = _findings(expression, as_is=as_is)
    rows = [("CHECK", "RESULT"), *((each["check"], each["text"]) for each in found)]
    # Never cut: the errors would be.
    sys.stdout.write(streams.formatted(form, {"checks": found}, streams.table(rows, indent="")))
    return 0 if all(each["ok"] for each in found) else 1


def _findings(expression: str, *, as_is: bool) -> list[CheckResult]:
    """Return the results of all checks; the first that cannot parse or translate is the last.

    Args:
        as_is: Check an expression in the user guide's form as it is, not its translation.
    """
    try:
        size = len(expression.encode(errors="surrogatepass"))
        syntax.parse(expression)
        found = [CheckResult(check="syntax", ok=True, text="ok")]
    except CelError as error:
        return [CheckResult(check="syntax", ok=False, text=str(error))]
    try:
        translated = user_guide.translate(expression)
    except CelError as error:
        if size <= user_guide.MAX_EXPRESSION_BYTES:
            return [*found, CheckResult(check="guide's CEL", ok=False, text=str(error))]
        translated = expression
    if translated != expression:
        found.append(
            CheckResult(
                check="guide's CEL",
                ok=not as_is,
                text="found; Kubernetes accepts only its translation",
            )
        )
    checked = expression if as_is else translated
    size = len(checked.encode(errors="surrogatepass"))
    found.append(
        CheckResult(
            check="length",
            ok=size <= user_guide.MAX_EXPRESSION_BYTES,
            text=f"{size} of at most {user_guide.MAX_EXPRESSION_BYTES} bytes",
        )
    )
    return [*found, *_by_library(checked), *_unknown_names(checked)]


def _unknown_names(expression: str) -> list[CheckResult]:
    """Warn of names in this driver's domain that only a provider of another package could give."""
    known = {syntax.ATTRIBUTES: user_guide.ATTRIBUTES, syntax.CAPACITY: user_guide.CAPACITIES}
    return [
        CheckResult(
            check="names",
            ok=None,
            text=f"{names.DRIVER} has no {each.map} {each.name}, unless a package of yours adds "
            f"it; it has {', '.join(known[each.map])}",
        )
        for each in syntax.terms(expression).lookups
        if each.domain == names.DRIVER and each.name not in known[each.map]
    ]


def _by_library(expression: str) -> list[CheckResult]:
    """Check what needs the CEL library: the types."""
    errors = cel_evaluation.type_errors(expression)
    unchecked = cel_evaluation.missing
    if function := cel_evaluation.not_covered(errors):
        unchecked = f"Kubernetes has {function}, the local CEL library does not"
    if unchecked:
        return [CheckResult(check="types", ok=None, text=f"not checked: {unchecked}")]
    types = [CheckResult(check="types", ok=False, text=error) for error in errors]
    return types or [CheckResult(check="types", ok=True, text="ok")]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """A device, with the result of the selector.

    Attributes:
        reasons: Parts of the selector that exclude it; empty if none does.
        refusal: Why it cannot provide the requested amounts; None if it can.
        error: Set if the selector fails on it, which stops the scheduling of the pod.
    """

    device: PublishedDevice
    reasons: tuple[str, ...]
    refusal: str | None
    error: str | None

    @property
    def matches(self) -> bool:
        """Return True if nothing excludes the device."""
        return not self.reasons and self.refusal is None


def _explain(
    selector: str,
    *,
    form: str,
    slices: str | None,
    api: Api,
    requests: Mapping[str, Quantity],
    release: int | None,
) -> int:
    """Print the result of each part of the selector and for each device; return 1 if none matches.

    Args:
        selector: In Kubernetes' CEL or in the guide's.
        form: Of the output, as -o has it.
        slices: File with ResourceSlices; None reads them from the API server.
        api: That API server.
        requests: Amounts by capacity that the claim requests.
        release: Minor version of Kubernetes; None for that of the API server, or of a file the
            newest.
    """
    expression = user_guide.translate(selector)
    if invalid := cel_evaluation.check_expression(expression):
        raise InputError(f"expression: {invalid}")
    lists = ClusterLists(api, release=release or (releases.NEWEST if slices else None))
    found, used = _read(slices, lists, with_claims=bool(requests))
    rules = min(lists.minor_version or releases.NEWEST, releases.NEWEST)
    term = syntax.terms(expression)
    results = [_result(term, device, requests, used, rules) for device in found]
    lines = _lines(expression if expression != selector else "", term, results, requests, rules)
    document = {
        "expression": expression,
        "matching": sum(item.matches for item in results),
        "term": _term_document(term, found, rules),
        "release": f"1.{rules}",
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


def _result(
    term: Term,
    device: PublishedDevice,
    requests: Mapping[str, Quantity],
    used: Usage,
    release: int,
) -> _Result:
    result = placement.result(term, device, release)
    refusal: str | None = None
    if requests and not device.is_shared:
        refusal = "cannot be shared"
    elif requests and used.is_exclusive(device.id):
        refusal = "a claim has it exclusively"
    elif requests:
        taken = used.taken(device.id)
        try:
            short = devices.shortage(requests, device, taken, release)
            refusal = None if short is None else short.text
        except SchedulingError as error:
            refusal = str(error)
    return _Result(
        device=device,
        reasons=tuple(
            dict.fromkeys(each.text for each in placement.failed_terms(term, device, release))
        ),
        refusal=refusal,
        error=str(result) if isinstance(result, CelRunError) else None,
    )


def _lines(
    translated: str,
    term: Term,
    results: Sequence[_Result],
    requests: Mapping[str, Quantity],
    release: int,
) -> list[str]:
    matching = [item.device for item in results if item.matches]
    tainted = sum(device.is_tainted for device in matching)
    pools = len({item.device.id.pool for item in results})
    rows = [("PASS", "FOUND", "TERM"), *_rows(term, [item.device for item in results], release)]
    if requests:
        asked = ", ".join(f"{name}={amount}" for name, amount in requests.items())
        rows.append((sum(item.refusal is None for item in results), "", f"request {asked}"))
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
    term: Term, devices: Sequence[PublishedDevice], release: int, depth: int = 0
) -> Iterator[tuple[object, str, str]]:
    """Yield a row for each part in the order of the text; for the whole only if it has no parts."""
    if depth or not term.parts:
        found = []
        if not term.parts:
            for name, values in _values(term, devices).items():
                counted = [f"{value} ({count})" for value, count in values.most_common()]
                found.append(f"{name}: {printable.first(counted, _SHOWN_VALUES)}")
        text = "any of" if term.operator == "||" else term.text
        yield _passing(term, devices, release), "; ".join(found), "  " * (depth - 1) + text
    for part in term.parts:
        yield from _rows(part, devices, release, depth + 1)


def _passing(term: Term, devices: Sequence[PublishedDevice], release: int) -> int:
    return sum(placement.result(term, device, release) is True for device in devices)


def _values(term: Term, devices: Sequence[PublishedDevice]) -> dict[str, Counter[str]]:
    return {lookup.name: placement.values(lookup, devices) for lookup in term.lookups}


def _left_out(results: Sequence[_Result]) -> Iterator[str]:
    """Yield the excluded devices; those of a pool with the same reasons share a line."""
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for item in results:
        reasons = item.reasons
        if item.refusal:
            reasons = (*reasons, f"request: {streams.with_points(item.refusal)}")
        if reasons:
            groups.setdefault((item.device.id.pool, reasons), []).append(item.device.id.device)
    for (pool, reasons), named in groups.items():
        yield f"  {pool}: {printable.first(named, _SHOWN_DEVICES)}"
        yield from (f"    {reason}" for reason in reasons)


def _term_document(
    term: Term, devices: Sequence[PublishedDevice], release: int
) -> Mapping[str, Any]:
    return {
        "text": term.text,
        "operator": term.operator,
        "passing": _passing(term, devices, release),
        "values": {name: dict(found) for name, found in _values(term, devices).items()},
        "parts": [_term_document(part, devices, release) for part in term.parts],
    }


def _read(
    file: str | None, lists: ClusterLists, *, with_claims: bool
) -> tuple[Sequence[PublishedDevice], Usage]:
    """Return the driver's devices and their use: of a YAML or JSON file, or of the API server.

    Args:
        file: Has the ResourceClaims as well; None for the API server.
        lists: Of that API server.
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
        slices = lists.slices(fieldSelector=f"spec.driver={names.DRIVER}")
        claims = lists.claims() if with_claims else []
    else:
        documents = streams.documents(file, of="slices ")
        slices = [item for item in documents if item.get("kind") == "ResourceSlice"]
        claims = [item for item in documents if item.get("kind") == "ResourceClaim"]
        if not slices:
            raise InputError(f"{subject}: found no ResourceSlice, expected one or more")
    try:
        ours = (each for each in slices if each["spec"]["driver"] == names.DRIVER)
        return list(devices.newest(map(devices.slice_of, ours))), devices.usage_of(claims)
    except (KeyError, TypeError, AttributeError, ValueError, DriverError) as error:
        raise InputError(
            f"{subject}: found {type(error).__name__} {error}, "
            f"expected ResourceSlices as the API server shows them"
        ) from error
