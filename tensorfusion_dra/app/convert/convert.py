"""Conversion of the user guide's YAML for API servers of 1.34 or later.

The guide has the fields of v1beta1 and v1beta2 in places where v1 does not have them, names that no
version has, and CEL of a dialect of its own. Entries first move to their places in requests and
devices; then names, values, missing entries and expressions are corrected. For example `count: 2`
beside a request's `name` moves into `exactly`, which then gets the `deviceClassName` that it lacks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from tensorfusion_dra.app.convert import document
from tensorfusion_dra.app.convert.document import Document, at, mappings
from tensorfusion_dra.core import names
from tensorfusion_dra.core.cel import translate
from tensorfusion_dra.core.cel.edits import Edit
from tensorfusion_dra.core.cel.syntax import CelError
from tensorfusion_dra.core.devices import capacity
from tensorfusion_dra.core.kubernetes import name_rules, quantity
from tensorfusion_dra.core.kubernetes.quantity import MIB, NANO, Quantity, QuantityError

VERSION: Final = f"{names.RESOURCE_GROUP}/v1"

_OLD_VERSIONS: Final = (f"{names.RESOURCE_GROUP}/v1beta1", f"{names.RESOURCE_GROUP}/v1beta2")
_CLAIM_SPECS: Final = {"ResourceClaim": ("spec",), "ResourceClaimTemplate": ("spec", "spec")}
_KINDS: Final = (*_CLAIM_SPECS, "ResourceSlice", "DeviceClass")
# Up to v1beta1 these were beside a request's name; since v1beta2 they are in `exactly`.
_IN_EXACTLY: Final = frozenset(
    {"deviceClassName", "selectors", "selector", "allocationMode", "count", "adminAccess"}
    | {"tolerations", "capacity"}
)
_ATTRIBUTES: Final = {
    "stringValue": "string",
    "intValue": "int",
    "boolValue": "bool",
    "versionValue": "version",
}
_NOT_BY_HAND: Final = (
    "the node plugin publishes its slices itself; the kubelet deletes those of a node on which it "
    "does not run"
)
_IN_STEPS: Final = frozenset({names.CAPACITY_VRAM, names.CAPACITY_VIRTUAL_VRAM})


@dataclass(frozen=True, slots=True, order=True)
class Reason:
    """Text about one line: why it was changed, what is wrong with it, or what to know.

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
        notes: Parts that an API server accepts, but that do not have the expected effect.
    """

    text: str
    reasons: tuple[Reason, ...]
    problems: tuple[Reason, ...]
    notes: tuple[Reason, ...]


def convert(text: str) -> Converted:
    """Convert everything in a text that an API server of 1.34 or later refuses.

    A document in which nothing has to be converted stays as it is, byte for byte.

    Raises:
        InputError: The text is not YAML.
    """
    done = [_Conversion(part, found) for part, found in document.documents(text)]

    def collected(kind: str) -> tuple[Reason, ...]:
        return tuple(sorted({reason for each in done for reason in getattr(each, kind)}))

    return Converted(
        text="".join(each.text for each in done),
        reasons=collected("reasons"),
        problems=collected("problems"),
        notes=collected("notes"),
    )


class _Conversion:
    """Conversion of one document, which may be an object, a List or a part of an object."""

    def __init__(self, text: str, of: Document) -> None:
        self._of: Final = of
        self.reasons: Final[list[Reason]] = []
        self.notes: Final[list[Reason]] = []
        self.problems: Final = [
            Reason(line, f"{key}: found twice, expected once; first in line {first}")
            for key, line, first in of.repeated
        ]
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
        self._version(item)
        if kind in _CLAIM_SPECS:
            for _, request in mappings(at(item, *_CLAIM_SPECS[kind], "devices", "requests")):
                self._request(request)
        if kind == "ResourceClaimTemplate":
            self._label(item)
        if kind == "DeviceClass" and isinstance(at(item, "spec"), CommentedMap):
            self._selectors(item["spec"])
        if kind == "ResourceSlice":
            for _, device in mappings(at(item, "spec", "devices")):
                self._device(device)
            self._pool(item)

    def _version(self, item: CommentedMap) -> None:
        found = item["apiVersion"]
        if found in _OLD_VERSIONS:
            self._reason(
                item, "apiVersion", f"{found} is not served by default since 1.34: {VERSION}"
            )
            _replace(item, "apiVersion", VERSION)
        elif found != VERSION:
            expected = ", ".join([VERSION, *_OLD_VERSIONS])
            self._problem(
                item, "apiVersion", f"apiVersion: found {found}, expected one of {expected}"
            )

    def _request(self, request: CommentedMap) -> None:
        """Convert a request of a claim."""
        found = [key for key in request if key in _IN_EXACTLY]
        if found and "firstAvailable" in request:
            for key in found:
                self._problem(
                    request, key, f"{key} beside firstAvailable: expected it in each of its entries"
                )
        elif found and not isinstance(request.get("exactly", CommentedMap()), CommentedMap):
            self._problem(request, "exactly", "exactly: expected a mapping")
        elif found:
            self._into_exactly(request, found)
        if isinstance(request.get("exactly"), CommentedMap):
            self._choice(request, "exactly")
        choices = request.get("firstAvailable")
        for index, _ in mappings(choices):
            self._choice(choices, index)

    def _into_exactly(self, request: CommentedMap, found: list[str]) -> None:
        """Move entries into ``exactly``, or drop them if it has them with the same value."""
        inside = request.get("exactly", {})
        same = [
            key for key in found if isinstance(inside.get(key), str) and inside[key] == request[key]
        ]
        for key in found:
            if key in same:
                self._reason(request, key, f"{key} is in exactly as well")
            elif key in inside:
                self._problem(
                    request, key, f"{key}: found one beside exactly and another in it, expected one"
                )
            else:
                self._reason(request, key, f"{key} belongs in exactly")
        moving = [key for key in found if key not in inside]
        if moving and "exactly" not in request:
            index = list(request).index(moving[0])
            request.insert(index, "exactly", _like(request))
            request.lc.add_kv_line_col("exactly", request.lc.data[moving[0]])
        document.move(request, moving, "exactly")
        for key in same:
            document.remove(request, key)

    def _choice(self, owner: Any, key: Any) -> None:
        """Convert a device request: ``exactly``, or an entry of ``firstAvailable``."""
        choice = owner[key]
        self._selectors(choice)
        if "deviceClassName" not in choice:
            self._reason(owner, key, f"deviceClassName is required: {names.DEVICE_CLASS}")
            if "name" in choice:
                document.insert(choice, "deviceClassName", names.DEVICE_CLASS, after="name")
            else:
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
        for key in ("selectors", "selector"):
            selectors = part.get(key)
            for selector in [selectors] if isinstance(selectors, CommentedMap) else selectors or []:
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
            found = translate.changes(expression)
        except CelError as error:
            line = self._of.line_in(part, key, error.offset)
            self.problems.append(Reason(line, f"expression {error}"))
            return
        if found:
            self._reason(part, key, "user guide's CEL, translated for Kubernetes")
            document.edit(part, key, found)

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

    def _device(self, device: CommentedMap) -> None:
        """Convert a device of a slice."""
        if "basic" in device:
            self._problem(device, "basic", "basic: expected its entries beside name, as since v1")
        for attribute in _values(device.get("attributes")):
            for key in list(attribute if isinstance(attribute, CommentedMap) else ()):
                if new := _ATTRIBUTES.get(key):
                    self._reason(attribute, key, f"unknown field {key}: renamed to {new}")
                    document.rename(attribute, key, new)
        if str(device.get("allowMultipleAllocations")).lower() == "true":
            capacities = device.get("capacity")
            for name in list(capacities if isinstance(capacities, CommentedMap) else ()):
                self._policy(capacities, name)

    def _policy(self, capacities: CommentedMap, name: str) -> None:
        """Add a request policy to a capacity.

        Without one, a claim that does not name the capacity takes all of it, so nothing is shared.
        """
        entry = capacities[name]
        if not isinstance(entry, CommentedMap) or "value" not in entry or "requestPolicy" in entry:
            return
        try:
            total = quantity.parse(entry["value"] if isinstance(entry["value"], str) else "")
        except QuantityError as error:
            self._problem(entry, "value", f"{name}: {error}")
            return
        self._reason(capacities, name, "without a requestPolicy the first claim takes all of it")
        # Beside virtual capacities the physical ones default to 0, so that only a claim that names
        # them consumes them.
        is_physical = name not in capacity.VIRTUAL and any(
            key in capacity.VIRTUAL for key in capacities
        )
        limits = _like(entry, {"min": DoubleQuotedScalarString("0")})
        if name in _IN_STEPS and not is_physical and total.nano % (MIB * NANO) == 0:
            limits = _like(entry, {"min": "1Mi", "step": "1Mi"})
        default = DoubleQuotedScalarString(str(Quantity.whole(0) if is_physical else total))
        policy = _like(entry, {"default": default, "validRange": limits})
        document.insert(entry, "requestPolicy", policy, after="value")

    def _pool(self, item: CommentedMap) -> None:
        """Append the node's name to the name of a slice's pool.

        The scheduler takes slices of several nodes with the same pool name for one pool.
        """
        spec = item.get("spec")
        if at(spec, "driver") == names.DRIVER:
            self.notes.append(Reason(self._of.line(spec, "driver"), _NOT_BY_HAND))
        pool, node = at(spec, "pool"), at(spec, "nodeName")
        name = at(pool, "name")
        if not isinstance(name, str) or not node or f"/{node}/" in f"/{name}/":
            return
        own = f"{name}/{node}"
        if any(name_rules.pool("", own)):
            return  # an invalid name of a pool or node, which the API server reports
        self._reason(
            pool, "name", f"a pool without the node's name is one pool of several nodes: {own}"
        )
        _replace(pool, "name", own)


def _objects(root: Any) -> Iterator[CommentedMap]:
    """Yield the objects of resource.k8s.io in a document, including the items of Lists."""
    kind, version = at(root, "kind"), at(root, "apiVersion")
    if isinstance(kind, str) and kind.endswith("List") and "items" in root:
        for _, item in mappings(root["items"]):
            yield from _objects(item)
    elif kind in _KINDS and str(version).partition("/")[0] == names.RESOURCE_GROUP:
        yield root


def _values(part: Any) -> list[Any]:
    return list(part.values()) if isinstance(part, CommentedMap) else []


def _like(other: CommentedMap, content: dict[str, Any] | None = None) -> CommentedMap:
    """Return a new mapping, in brackets if the other one is."""
    new = CommentedMap(content or {})
    if other.fa.flow_style():
        new.fa.set_flow_style()
    return new


def _replace(part: CommentedMap, key: str, text: str) -> None:
    """Replace a text and keep its quotes."""
    document.edit(part, key, (Edit(0, len(part[key]), text),))
