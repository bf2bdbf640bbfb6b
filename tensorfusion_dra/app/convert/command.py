"""The verb `convert`: rewrite the user guide's YAML for API servers of 1.34 or later.

The guide has the fields of v1beta1 and v1beta2 in places where v1 does not have them, names that no
version has, and a form of CEL of its own. Entries first move to their places in requests; then
names, missing entries and expressions are corrected. For example `count: 2` beside a request's
`name` moves into `exactly`, which then gets the `deviceClassName` that it lacks.
"""

import argparse
import difflib
import io
import re
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import CommentMark, YAMLError
from ruamel.yaml.events import AliasEvent
from ruamel.yaml.resolver import BaseResolver
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, SingleQuotedScalarString
from ruamel.yaml.tokens import CommentToken

from tensorfusion_dra.app.convert import other_drivers
from tensorfusion_dra.app.shared import streams
from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import dialects, pod_resources
from tensorfusion_dra.core.admission.dialects import Dialect, Translation
from tensorfusion_dra.core.cel import user_guide
from tensorfusion_dra.core.cel.syntax import CelError
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes import resource_claims
from tensorfusion_dra.core.kubernetes.untyped_json import name_of
from tensorfusion_dra.runtime import untyped_yaml
from tensorfusion_dra.runtime.untyped_yaml import BoundsError, Meter

_DOCUMENT_START: Final = re.compile(r"---[ \t]*(?:#.*)?(?:\n|$)|---[ \t]+")
# For example `devices:` and the `- ` below it, `devices:` and the key below it.
_LIST: Final = re.compile(
    r"^(?P<key> *)(?:- )?[^\s#-].*:[ \t]*(?:#.*)?\n(?P<dash> *)-(?P<gap> +)\S", re.M
)
_MAPPING: Final = re.compile(r"^(?P<key> *)[^\s#-].*:[ \t]*(?:#.*)?\n(?P<inner> *)[^\s#-]", re.M)


class _Plain(BaseResolver):
    """Take plain scalars as text, so that numbers, times and nulls are written as they were."""

    def __init__(self, version: object = None, loader: Any = None, loadumper: Any = None) -> None:
        super().__init__(loadumper or loader)

    @property
    def processing_version(self) -> tuple[int, int]:
        """Return YAML 1.2. Other versions differ only in values such as `yes` and `no`."""
        return (1, 2)


_Plain.add_implicit_resolver("tag:yaml.org,2002:null", re.compile("^$"), [""])


class _Bounded(Composer):
    """Composer with bounds: the conversion goes through a value again for each of its aliases."""

    def __init__(self, meter: Meter, loader: Any = None) -> None:
        super().__init__(loader)
        self._meter: Final = meter

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a node and those in it."""
        event = self.parser.peek_event()
        with self._meter.node(event, is_alias=isinstance(event, AliasEvent)):
            return super().compose_node(parent, index)


class YamlDocument:
    """One document of a YAML text.

    Attributes:
        root: Its content: mappings, lists and texts; None if it is empty.
    """

    def __init__(self, text: str, first_line: int, meter: Meter) -> None:
        """Parse a document.

        Args:
            first_line: Number of its first line in the whole text, from 1.
            meter: Count of the values in the whole text.

        Raises:
            InputError: The text is not YAML, sets a key twice, or describes too much.
        """
        self._newline: Final = "\r\n" if "\r\n" in text else "\n"
        text = text.replace("\r\n", "\n")
        start = _DOCUMENT_START.match(text)
        self._start: Final = start[0] if start else ""
        self._body: Final = text.removeprefix(self._start)
        self._first_line: Final = first_line + self._start.count("\n")
        self._yaml: Final = _round_trip(self._body)
        composer: Any = partial(_Bounded, meter)
        self._yaml.Composer = composer
        try:
            self.root: Any = self._yaml.load(self._body)
        except (YAMLError, BoundsError) as error:
            text = untyped_yaml.fault(error, self._body, self._first_line)
            raise InputError(f"YAML: {text}") from error

    def text(self) -> str:
        """Return the document as it is now."""
        written = io.StringIO()
        self._yaml.dump(self.root, written)
        text = written.getvalue()
        if not self._body.endswith("\n"):
            text = text.removesuffix("\n")
        return (self._start + text).replace("\n", self._newline)

    def line(self, part: Any, key: object) -> int:
        """Return the line of a mapping's key or of a list's item in the original text, from 1."""
        return int(part.lc.data[key][0]) + self._first_line


def documents(text: str) -> Iterator[tuple[str, YamlDocument]]:
    """Yield the text of each document, and what it has.

    Raises:
        InputError: The text is not YAML.
    """
    line, meter = 1, Meter()
    for part in re.split(r"(?m)^(?=---(?:\s|$))", text):
        yield part, YamlDocument(part, line, meter)
        line += part.count("\n")


def at(part: Any, *path: str) -> Any:
    """Return what is at a path of keys; None if there is nothing."""
    for key in path:
        part = part.get(key) if isinstance(part, CommentedMap) else None
    return part


def mappings(part: Any) -> Iterator[tuple[int, CommentedMap]]:
    """Yield the mappings in a list, with their places in it; nothing for anything else."""
    for index, item in enumerate(part if isinstance(part, list) else ()):
        if isinstance(item, CommentedMap):
            yield index, item


def move(owner: CommentedMap, keys: list[str], into: str) -> None:
    """Move entries into the mapping of another entry, with the comments after them."""
    part = owner[into]
    for key in reversed(keys):
        line, comments = owner.lc.data[key], owner.ca.items.pop(key, [None] * 4)
        part.insert(0, key, owner.pop(key))
        part.lc.add_kv_line_col(key, line)
        part.ca.items[key] = comments


def remove(owner: Any, field: str, key: str) -> None:
    """Remove an entry of the mapping in a field; comments above the next one stay."""
    part = owner[field]
    following = list(part)[list(part).index(key) + 1 :]
    token = part.ca.items.pop(key, [None] * 4)[2]
    del part[key]
    _, _, comments = token.value.partition("\n") if token else ("", "", "")
    if following and comments:
        first = CommentToken(comments.lstrip(" "), CommentMark(part.lc.col))
        part.ca.items.setdefault(following[0], [None] * 4)[1] = [first]
    if not part:
        part.fa.set_flow_style()  # as {}: nothing after the colon would be null


def rename(part: CommentedMap, key: str, new: str) -> None:
    """Replace a key; its place, quotes, comments and line stay."""
    index, old = next((place, found) for place, found in enumerate(part) if found == key)
    name = type(old)(new)
    part.insert(index, name, part.pop(key))
    part.lc.add_kv_line_col(name, part.lc.data[key])
    if key in part.ca.items:
        part.ca.items[name] = part.ca.items.pop(key)


def enlist(part: CommentedMap, key: str) -> None:
    """Replace a mapping by a list that has only this mapping."""
    one, only = part[key], CommentedSeq()
    if one.fa.flow_style():
        only.fa.set_flow_style()
    one.ca.comment = None
    only.append(one)
    part[key] = only


def replace(part: CommentedMap, key: str, text: str) -> None:
    """Replace a text and keep its quotes."""
    part[key] = type(part[key])(text)


def _round_trip(text: str) -> YAML:
    """Return ruamel.yaml's reader and writer for a text, with the indentation of the text."""
    found = YAML(typ="rt", pure=True)
    found.Resolver = _Plain
    found.preserve_quotes = True
    found.brace_single_entry_mapping_in_flow_sequence = True
    found.width = 2**31
    mapping, listed = _MAPPING.search(text), _LIST.search(text)
    found.map_indent = max(2, len(mapping["inner"]) - len(mapping["key"])) if mapping else 2
    if listed:
        found.sequence_dash_offset = max(0, len(listed["dash"]) - len(listed["key"]))
        found.sequence_indent = found.sequence_dash_offset + 1 + len(listed["gap"])
    return found


VERSION: Final = f"{names.RESOURCE_GROUP}/v1"

_OLD_VERSIONS: Final = (f"{names.RESOURCE_GROUP}/v1beta1", f"{names.RESOURCE_GROUP}/v1beta2")
_CLAIM_SPECS: Final = {"ResourceClaim": ("spec",), "ResourceClaimTemplate": ("spec", "spec")}
_KINDS: Final = (*_CLAIM_SPECS, "ResourceSlice", "DeviceClass")
# Up to v1beta1 these were beside a request's name; since v1beta2 they are in `exactly`.
_IN_EXACTLY: Final = frozenset(
    {"deviceClassName", "selectors", "selector", "allocationMode", "count", "adminAccess"}
    | {"tolerations", "capacity"}
)


@dataclass(frozen=True, slots=True, order=True)
class Remark:
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
    reasons: tuple[Remark, ...]
    problems: tuple[Remark, ...]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `convert`."""
    streams.add_exit_codes(
        parser,
        "converted",
        "a part would be refused and cannot be converted, or with --check needs conversion",
    )
    parser.add_argument("-f", dest="file", metavar="FILE", required=True, help="YAML; - for stdin")
    parser.add_argument(
        "--dialects",
        metavar="NAMES",
        type=_dialects,
        default=(),
        help="also translate the pods' words of other systems, separated by commas: "
        f"{', '.join(Dialect)}",
    )
    parser.add_argument(
        "--class",
        dest="classes",
        action="append",
        choices=other_drivers.CLASSES,
        default=[],
        help="also rewrite claims of this DeviceClass of another driver; repeat it for both",
    )
    parser.add_argument("--check", action="store_true", help="only print what would be converted")


def _dialects(text: str) -> tuple[Dialect, ...]:
    found = [name.strip() for name in text.split(",")]
    for name in found:
        if name not in list(Dialect):
            raise argparse.ArgumentTypeError(
                f"found {name!r}, expected some of {', '.join(Dialect)}"
            )
    return tuple(map(Dialect, found))


def run(flags: argparse.Namespace) -> int:
    """Print the converted text, and on stderr the diff and its reasons; return the exit code.

    With --check no text is printed, and the exit code is 1 if there is anything to convert.

    Raises:
        InputError: The file cannot be read, or is not YAML.
    """
    text = streams.read(flags.file)
    converted = convert(text, flags.dialects, flags.classes)
    name = "stdin" if flags.file == streams.STDIN else flags.file
    if not flags.check:
        sys.stdout.write(converted.text)
    sys.stderr.writelines(
        f"{line}\n"
        for line in difflib.unified_diff(
            text.splitlines(), converted.text.splitlines(), name, f"{name}, converted", lineterm=""
        )
    )
    for prefix, reasons in (("", converted.reasons), ("refused: ", converted.problems)):
        sys.stderr.writelines(f"{name}:{each.line}: {prefix}{each.text}\n" for each in reasons)
    return 1 if converted.problems or (flags.check and converted.text != text) else 0


def convert(
    text: str, spoken: Collection[Dialect] = (), classes: Collection[str] = ()
) -> Converted:
    """Convert the guide's forms that API servers of 1.34 or later refuse.

    A document in which nothing has to be converted stays as it is, byte for byte.

    Args:
        spoken: Systems whose words in pods become Tensor Fusion's annotations.
        classes: DeviceClasses of other drivers, whose claims become claims of this driver.

    Raises:
        InputError: The text is not YAML, or sets a key twice.
    """
    done = [_Conversion(part, found, spoken, classes) for part, found in documents(text)]
    return Converted(
        text="".join(each.text for each in done),
        reasons=tuple(sorted({reason for each in done for reason in each.reasons})),
        problems=tuple(sorted({problem for each in done for problem in each.problems})),
    )


class _Conversion:
    """Conversion of one document, which may be an object, a List or a part of an object."""

    def __init__(
        self, text: str, of: YamlDocument, spoken: Collection[Dialect], classes: Collection[str]
    ) -> None:
        self._of: Final = of
        self._spoken: Final = spoken
        self._classes: Final = classes
        self.reasons: Final[list[Remark]] = []
        self.problems: Final[list[Remark]] = []
        for item in _objects(of.root):
            self._object(item)
        for part in list(_every_mapping(of.root)):
            self._expression(part, names.ANNOTATION_CEL_EXPRESSION)  # among annotations
            if isinstance(at(part, "spec", "containers"), list):
                self._pod(part)
            if Dialect.KSERVE in self._spoken and at(part, "kind") == "LLMInferenceService":
                self._service(part)
        self.text: Final = of.text() if self.reasons else text

    def _reason(self, part: Any, key: object, text: str) -> None:
        self.reasons.append(Remark(self._of.line(part, key), text))

    def _problem(self, part: Any, key: object, text: str) -> None:
        self.problems.append(Remark(self._of.line(part, key), text))

    def _object(self, item: CommentedMap) -> None:
        """Convert an object of resource.k8s.io."""
        kind = item["kind"]
        if kind == "ResourceSlice":
            self._problem(
                item,
                "kind",
                "a ResourceSlice is not converted: the node plugin publishes its own, and the "
                "kubelet deletes those of a node on which it does not run",
            )
            return
        self._version(item)
        if kind in _CLAIM_SPECS:
            self._other_drivers(at(item, *_CLAIM_SPECS[kind], "devices"))
            for _, request in mappings(at(item, *_CLAIM_SPECS[kind], "devices", "requests")):
                self._request(request)
        if kind == "ResourceClaimTemplate":
            self._label(item)
        if kind == "DeviceClass" and isinstance(at(item, "spec"), CommentedMap):
            self._selectors(item["spec"])

    def _other_drivers(self, devices: Any) -> None:
        """Convert a claim of another driver's class."""
        found = other_drivers.words(devices, self._classes)
        # A mapping with an alias is found at each of its places.
        for each in {(id(each.holder), each.key): each for each in found}.values():
            if not each.new or (each.is_key and each.new in each.holder):
                self._problem(each.holder, each.key, each.text)
                continue
            self._reason(each.holder, each.key, each.text)
            (rename if each.is_key else replace)(each.holder, each.key, each.new)

    def _version(self, item: CommentedMap) -> None:
        found = item["apiVersion"]
        if found in _OLD_VERSIONS:
            self._reason(
                item, "apiVersion", f"{found} is not served by default since 1.34: {VERSION}"
            )
            replace(item, "apiVersion", VERSION)
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
            move(request, found, "exactly")
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
            choice.insert(0, "deviceClassName", names.DEVICE_CLASS)

    def _selectors(self, part: CommentedMap) -> None:
        """Convert the selectors of a device request or of a class."""
        if "selector" in part and "selectors" in part:
            self._problem(part, "selector", "selector beside selectors: expected selectors alone")
        elif "selector" in part:
            self._reason(part, "selector", "unknown field selector: renamed to selectors, a list")
            rename(part, "selector", "selectors")
            if isinstance(part["selectors"], CommentedMap):
                enlist(part, "selectors")
        for _, selector in mappings(part.get("selectors")):
            self._expression(at(selector, "cel"), "expression")

    def _pod(self, pod: CommentedMap) -> None:
        found = dialects.translate(pod, self._spoken)
        ours = pod_resources.named(pod)
        refused = [each for each in found.matches if each.is_refused or (ours and each.is_removed)]
        for each in refused:
            text = f"found it beside {ours[0]}, expected one of the two" if ours else each.text
            self._problem(each.holder, each.key, f"{each.name}: {text}")
        if found.error:
            self._problem(pod, "spec", found.error)
        if refused or not found.annotations:
            return
        for each in found.matches:
            self._reason(each.holder, each.key, f"{each.name}: {each.text}")
        for text in found.notes:
            self._reason(pod, "spec", text)
        annotations = self._resources(pod, found)
        if annotations and not isinstance(at(pod, "metadata"), CommentedMap):
            pod.insert(0, "metadata", CommentedMap())
        if annotations and not isinstance(at(pod, "metadata", "annotations"), CommentedMap):
            pod["metadata"].pop("annotations", None)
            pod["metadata"].insert(0, "annotations", _like(pod["metadata"]))
        for name, value in reversed(annotations.items()):
            if name not in pod["metadata"]["annotations"]:
                quotes = SingleQuotedScalarString if '"' in value else DoubleQuotedScalarString
                pod["metadata"]["annotations"].insert(0, name, quotes(value))
        for each in found.matches:
            if each.is_removed and each.key in each.holder:  # an alias is found at each place
                remove(each.owner, each.field, each.key)

    def _resources(self, pod: CommentedMap, found: Translation) -> dict[str, str]:
        """Write amounts into the limits in which words were; return what is left for annotations.

        Queues such as Kueue count resources. Words in annotations stay there.
        """
        asked, annotations = pod_resources.written(pod, found.annotations)
        limits = {
            name_of(container): at(container, "resources", "limits")
            for _, container in resource_claims.containers_with_paths(pod)
        }
        if (
            not asked
            or {id(limits[name]) for name in asked} - {id(each.holder) for each in found.matches}
            or any(names.RESOURCE_GPU in limits[name] for name in asked)
        ):
            return found.annotations
        for container, amounts in asked.items():
            for place, (name, value) in enumerate(amounts.items()):
                limits[container].insert(place, name, DoubleQuotedScalarString(value))
        self._reason(pod, "spec", f"resources of {', '.join(asked)} say the same as annotations")
        return annotations

    def _service(self, service: CommentedMap) -> None:
        """Make KServe create its claims of this driver's class."""
        annotations = at(service, "metadata", "annotations")
        for name in (dialects.KSERVE_CLASS, dialects.KSERVE_SELECTOR):
            value = at(annotations, name)
            if value is None or names.DEVICE_CLASS in value:
                continue
            if name == dialects.KSERVE_CLASS:
                self._reason(annotations, name, f"{name}: {value} becomes {names.DEVICE_CLASS}")
                replace(annotations, name, names.DEVICE_CLASS)
            else:
                self._problem(
                    annotations,
                    name,
                    f"{name}: expected attributes of {names.DRIVER}, which has other names",
                )

    def _expression(self, part: Any, key: str) -> None:
        if not isinstance(expression := at(part, key), str):
            return
        try:
            translated = user_guide.translate(expression)
        except CelError as error:
            self._problem(part, key, f"expression {error}")
            return
        if translated != expression:
            self._reason(part, key, "user guide's CEL, translated for Kubernetes")
            replace(part, key, translated)

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
                owner[own].insert(0, key, _like(owner[own]))
            owner, own = owner[own], key
        owner[own].insert(0, name, value)


def _objects(root: Any) -> Iterator[CommentedMap]:
    """Yield the objects of resource.k8s.io in a document, including the items of Lists."""
    kind, version = at(root, "kind"), at(root, "apiVersion")
    if isinstance(kind, str) and kind.endswith("List") and "items" in root:
        for _, item in mappings(root["items"]):
            yield from _objects(item)
    elif kind in _KINDS and str(version).partition("/")[0] == names.RESOURCE_GROUP:
        yield root


def _every_mapping(part: Any) -> Iterator[CommentedMap]:
    """Yield the mappings at any depth, each before those in it."""
    if isinstance(part, CommentedMap):
        yield part
        part = list(part.values())
    for inner in part if isinstance(part, list) else ():
        yield from _every_mapping(inner)


def _like(other: CommentedMap) -> CommentedMap:
    """Return a new mapping, in brackets if the other one is."""
    new = CommentedMap()
    if other.fa.flow_style():
        new.fa.set_flow_style()
    return new
