"""The verb `convert`: rewrite the user guide's YAML for API servers of 1.34 or later.

The guide has the fields of v1beta1 and v1beta2 in places where v1 does not have them, names that no
version has, and CEL of a dialect of its own. Entries first move to their places in requests; then
names, missing entries and expressions are corrected. For example `count: 2` beside a request's
`name` moves into `exactly`, which then gets the `deviceClassName` that it lacks.
"""

import argparse
import difflib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from ruamel.yaml.comments import CommentedMap

from tensorfusion_dra.app.convert import document
from tensorfusion_dra.app.convert.document import Document, at, mappings
from tensorfusion_dra.app.shared import streams
from tensorfusion_dra.core import names
from tensorfusion_dra.core.cel import dialect
from tensorfusion_dra.core.cel.syntax import CelError

VERSION: Final = f"{names.RESOURCE_GROUP}/v1"

_OLD_VERSIONS: Final = (f"{names.RESOURCE_GROUP}/v1beta1", f"{names.RESOURCE_GROUP}/v1beta2")
_CLAIM_SPECS: Final = {"ResourceClaim": ("spec",), "ResourceClaimTemplate": ("spec", "spec")}
_KINDS: Final = (*_CLAIM_SPECS, "ResourceSlice", "DeviceClass")
_BY_NODE_PLUGIN: Final = (
    "a ResourceSlice is not converted: the node plugin publishes its own, and the kubelet deletes "
    "those of a node on which it does not run"
)
# Up to v1beta1 these were beside a request's name; since v1beta2 they are in `exactly`.
_IN_EXACTLY: Final = frozenset(
    {"deviceClassName", "selectors", "selector", "allocationMode", "count", "adminAccess"}
    | {"tolerations", "capacity"}
)


@dataclass(frozen=True, slots=True, order=True)
class Reason:
    """Text about one line: why it was changed, or what is wrong with it.

    Attributes:
        line: Number of the line in the original text, from 1.
    """

    line: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """Result of a conversion.

    Attributes:
        text: The converted text.
        reasons: Reasons of the changes.
        problems: Parts that an API server refuses and that could not be converted.
    """

    text: str
    reasons: tuple[Reason, ...]
    problems: tuple[Reason, ...]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `convert`."""
    parser.epilog = (
        "exit codes: 0 converted; 1 a part would be refused and cannot be converted, or with "
        "--check needs conversion; 2 the input cannot be read"
    )
    parser.add_argument("-f", dest="file", metavar="FILE", required=True, help="YAML; - for stdin")
    parser.add_argument("--check", action="store_true", help="only print what would be converted")


def run(flags: argparse.Namespace) -> int:
    """Print the converted text, and on stderr the diff and its reasons; return the exit code.

    With --check no text is printed, and the exit code is 1 if there is anything to convert.

    Raises:
        InputError: The file cannot be read, or is not YAML.
    """
    text = streams.read(flags.file)
    converted = convert(text)
    name = "stdin" if flags.file == streams.STDIN else flags.file
    if not flags.check:
        sys.stdout.write(converted.text)
    lines = difflib.unified_diff(
        text.splitlines(), converted.text.splitlines(), name, f"{name}, converted", lineterm=""
    )
    sys.stderr.writelines(f"{line}\n" for line in lines)
    for prefix, reasons in (("", converted.reasons), ("refused: ", converted.problems)):
        sys.stderr.writelines(f"{name}:{each.line}: {prefix}{each.text}\n" for each in reasons)
    return 1 if converted.problems or (flags.check and converted.text != text) else 0


def convert(text: str) -> Converted:
    """Convert what an API server of 1.34 or later refuses of the guide's forms.

    A document in which nothing has to be converted stays as it is, byte for byte.

    Raises:
        InputError: The text is not YAML, or sets a key twice.
    """
    done = [_Conversion(part, found) for part, found in document.documents(text)]
    return Converted(
        text="".join(each.text for each in done),
        reasons=tuple(sorted({reason for each in done for reason in each.reasons})),
        problems=tuple(sorted({problem for each in done for problem in each.problems})),
    )


class _Conversion:
    """Conversion of one document, which may be an object, a List or a part of an object."""

    def __init__(self, text: str, of: Document) -> None:
        self._of: Final = of
        self.reasons: Final[list[Reason]] = []
        self.problems: Final[list[Reason]] = []
        for item in _objects(of.root):
            self._object(item)
        self._annotations(of.root)
        self.text: Final = of.text() if self.reasons else text

    def _reason(self, part: Any, key: object, text: str) -> None:
        self.reasons.append(Reason(self._of.line(part, key), text))

    def _problem(self, part: Any, key: object, text: str) -> None:
        self.problems.append(Reason(self._of.line(part, key), text))

    def _object(self, item: CommentedMap) -> None:
        """Convert an object of resource.k8s.io."""
        kind = item["kind"]
        if kind == "ResourceSlice":
            self._problem(item, "kind", _BY_NODE_PLUGIN)
            return
        self._version(item)
        if kind in _CLAIM_SPECS:
            for _, request in mappings(at(item, *_CLAIM_SPECS[kind], "devices", "requests")):
                self._request(request)
        if kind == "ResourceClaimTemplate":
            self._label(item)
        if kind == "DeviceClass" and isinstance(at(item, "spec"), CommentedMap):
            self._selectors(item["spec"])

    def _version(self, item: CommentedMap) -> None:
        found = item["apiVersion"]
        if found in _OLD_VERSIONS:
            self._reason(
                item, "apiVersion", f"{found} is not served by default since 1.34: {VERSION}"
            )
            document.replace(item, "apiVersion", VERSION)
        elif found != VERSION:
            expected = ", ".join([VERSION, *_OLD_VERSIONS])
            self._problem(
                item, "apiVersion", f"apiVersion: found {found}, expected one of {expected}"
            )

    def _request(self, request: CommentedMap) -> None:
        """Move entries into ``exactly``, then convert the device requests of a claim's request."""
        found = [key for key in request if key in _IN_EXACTLY]
        inside = request.get("exactly", CommentedMap())
        if found and ("firstAvailable" in request or not isinstance(inside, CommentedMap)):
            doubtful = found
        else:
            doubtful = [key for key in found if key in inside]
        for key in doubtful:
            self._problem(
                request, key, f"{key}: expected it only in exactly, or in each of firstAvailable"
            )
        if found and not doubtful:
            for key in found:
                self._reason(request, key, f"{key} belongs in exactly")
            if "exactly" not in request:
                request.insert(list(request).index(found[0]), "exactly", _like(request))
                request.lc.add_kv_line_col("exactly", request.lc.data[found[0]])
            document.move(request, found, "exactly")
        if isinstance(request.get("exactly"), CommentedMap):
            self._choice(request, "exactly")
        for index, _ in mappings(request.get("firstAvailable")):
            self._choice(request["firstAvailable"], index)

    def _choice(self, owner: Any, key: Any) -> None:
        """Convert a device request: ``exactly``, or an entry of ``firstAvailable``."""
        choice = owner[key]
        self._selectors(choice)
        if "deviceClassName" not in choice:
            self._reason(owner, key, f"deviceClassName is required: {names.DEVICE_CLASS}")
            document.insert_first(owner, key, "deviceClassName", names.DEVICE_CLASS)

    def _selectors(self, part: CommentedMap) -> None:
        """Convert the selectors of a device request or of a class."""
        if "selector" in part and "selectors" in part:
            self._problem(part, "selector", "selector beside selectors: expected selectors alone")
        elif "selector" in part:
            self._reason(part, "selector", "unknown field selector: renamed to selectors, a list")
            document.rename(part, "selector", "selectors")
            if isinstance(part["selectors"], CommentedMap):
                document.enlist(part, "selectors")
        for _, selector in mappings(part.get("selectors")):
            self._expression(at(selector, "cel"), "expression")

    def _annotations(self, part: Any) -> None:
        """Convert the expressions in annotations at any depth, as of pods and pod templates."""
        for key, value in part.items() if isinstance(part, CommentedMap) else ():
            if key == names.ANNOTATION_CEL_EXPRESSION:
                self._expression(part, key)
            else:
                self._annotations(value)
        for item in part if isinstance(part, list) else ():
            self._annotations(item)

    def _expression(self, part: Any, key: str) -> None:
        if not isinstance(expression := at(part, key), str):
            return
        try:
            translated = dialect.translate(expression)
        except CelError as error:
            self._problem(part, key, f"expression {error}")
            return
        if translated != expression:
            self._reason(part, key, "user guide's CEL, translated for Kubernetes")
            document.replace(part, key, translated)

    def _label(self, item: CommentedMap) -> None:
        """Copy the label for finding claims into the template's spec.

        Only labels in spec.metadata are copied to the claims.
        """
        name, spec = names.LABEL_CLAIM_TEMPLATE, item.get("spec")
        value = at(item, "metadata", "labels", name)
        if not isinstance(value, str) or not isinstance(spec, CommentedMap):
            return
        if isinstance(at(spec, "metadata", "labels", name), str):
            return
        self._reason(
            item["metadata"]["labels"],
            name,
            "a template's own labels are not copied to its claims: spec.metadata.labels are",
        )
        owner, own = item, "spec"
        for key in ("metadata", "labels"):
            if not isinstance(at(owner, own, key), CommentedMap):
                owner[own].pop(key, None)
                document.insert_first(owner, own, key, _like(owner[own]))
            owner, own = owner[own], key
        document.insert_first(owner, own, name, value)


def _objects(root: Any) -> Iterator[CommentedMap]:
    """Yield the objects of resource.k8s.io in a document, including the items of Lists."""
    kind, version = at(root, "kind"), at(root, "apiVersion")
    if isinstance(kind, str) and kind.endswith("List") and "items" in root:
        for _, item in mappings(root["items"]):
            yield from _objects(item)
    elif kind in _KINDS and str(version).partition("/")[0] == names.RESOURCE_GROUP:
        yield root


def _like(other: CommentedMap) -> CommentedMap:
    """Return a new mapping, in brackets if the other one is."""
    new = CommentedMap()
    if other.fa.flow_style():
        new.fa.set_flow_style()
    return new
