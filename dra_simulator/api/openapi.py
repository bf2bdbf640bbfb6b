"""OpenAPI v3 documents of a server, generated from its schema.

kubectl reads three things from them: if patches of a kind take the parameter fieldValidation
(otherwise it does not let the server validate), which lists a strategic merge patch merges, and the
text of `kubectl explain`. Descriptions and required fields are left out, because the server checks
required fields itself.
"""

import hashlib
from collections.abc import Iterator
from functools import cached_property
from typing import Final

from dra_simulator.api import kinds, patches, rendering
from dra_simulator.api.kinds import ADMISSION_GROUP, RESOURCE_GROUP, Json, Kind
from dra_simulator.api.schema import Type, parsed
from dra_simulator.api.served import Served
from dra_simulator.api.structs import KUBERNETES_NAMES, PACKAGES, STRUCTS
from tensorfusion_dra.core.names import TENSOR_FUSION_GROUP

_ROOT: Final = "/openapi/v3"
_GVK: Final = "x-kubernetes-group-version-kind"
_GROUP_PACKAGES: Final = {
    "": "io.k8s.api.core",
    "events.k8s.io": "io.k8s.api.events",
    RESOURCE_GROUP: "io.k8s.api.resource",
    ADMISSION_GROUP: "io.k8s.api.admissionregistration",
    TENSOR_FUSION_GROUP: "ai.tensor-fusion",
}
_QUANTITY: Final = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_SCALARS: Final[dict[str, Json]] = {
    "string": {"type": "string"},
    "int": {"type": "integer"},
    "bool": {"type": "boolean"},
    "quantity": {"allOf": [{"$ref": f"#/components/schemas/{_QUANTITY}"}]},
    "time": {"type": "string", "format": "date-time"},
    "microtime": {"type": "string", "format": "date-time"},
    "intorstring": {
        "format": "int-or-string",
        "oneOf": [{"type": "integer"}, {"type": "string"}],
    },
    "raw": {"type": "object"},
    "any": {},
}
_WRITE_PARAMETERS: Final = ("dryRun", "fieldManager", "fieldValidation")
_LIST_PARAMETERS: Final = ("fieldSelector", "labelSelector", "limit", "resourceVersion", "watch")


class OpenApi:
    """OpenAPI v3 index, and the document of each group version."""

    def __init__(self, served: Served) -> None:
        self._served: Final = served

    def document(self, path: str) -> str | None:
        """Return the text at a path such as ``/openapi/v3/api/v1``; None if there is none."""
        if path.rstrip("/") == _ROOT:
            return self._index
        return self._documents.get(path.removeprefix(f"{_ROOT}/").rstrip("/"))

    @cached_property
    def _documents(self) -> dict[str, str]:
        """Documents by the path of their group version, such as ``apis/resource.k8s.io/v1``."""
        return {
            _prefix(group, version).strip("/"): rendering.text(self._made(group, version))
            for group, versions in self._served.versions.items()
            for version in versions
        }

    @cached_property
    def _index(self) -> str:
        paths = {
            name: {"serverRelativeURL": f"{_ROOT}/{name}?hash={_hash(document)}"}
            for name, document in self._documents.items()
        }
        return rendering.text({"paths": paths})

    def _made(self, group: str, version: str) -> Json:
        found = [kind for kind in kinds.KINDS if kind.group == group]
        paths: Json = {}
        schemas: Json = {}
        structs = _reached("DeleteOptions")
        for kind in found:
            paths.update(_paths(kind, version))
            schemas[_component(kind, version)] = _kind_schema(kind, version)
            structs |= _reached(kind.struct) - {kind.struct}
        schemas[_QUANTITY] = {"oneOf": [{"type": "string"}, {"type": "number"}]}
        schemas |= {_struct_component(name): _struct_schema(name) for name in sorted(structs)}
        return {
            "openapi": "3.0.0",
            "info": {"title": "Simulated Kubernetes", "version": "unversioned"},
            "paths": paths,
            "components": {"schemas": schemas},
        }


def _hash(document: str) -> str:
    return hashlib.sha256(document.encode()).hexdigest().upper()


def _prefix(group: str, version: str) -> str:
    return f"/apis/{group}/{version}" if group else f"/api/{version}"


def _component(kind: Kind, version: str) -> str:
    return f"{_GROUP_PACKAGES[kind.group]}.{version}.{kind.kind}"


def _struct_component(struct: str) -> str:
    package = next(name for name, structs in PACKAGES.items() if struct in structs)
    return f"{package}.{KUBERNETES_NAMES.get(struct, struct)}"


def _gvk(kind: Kind, version: str) -> Json:
    return {"group": kind.group, "version": version, "kind": kind.kind}


def _reached(struct: str) -> set[str]:
    """Return a struct and all structs that its fields refer to, directly or not."""
    reached: set[str] = set()
    todo = [struct]
    while todo:
        name = todo.pop()
        if name in reached:
            continue
        reached.add(name)
        for text in STRUCTS[name].values():
            found = parsed(text)
            while found.shape in ("list", "map"):
                found = parsed(found.base)
            if found.shape == "struct":
                todo.append(found.base)
    return reached


def _kind_schema(kind: Kind, version: str) -> Json:
    fields = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}}
    schema = _struct_schema(kind.struct)
    properties = schema["properties"]
    assert isinstance(properties, dict)
    return {
        "type": "object",
        "properties": {**fields, **kind.outward(properties)},
        _GVK: [_gvk(kind, version)],
    }


def _struct_schema(struct: str) -> Json:
    return {
        "type": "object",
        "properties": {
            name.rstrip("!"): _schema(parsed(text)) for name, text in STRUCTS[struct].items()
        },
    }


def _schema(found: Type) -> Json:
    if found.shape == "struct":
        return {"allOf": [{"$ref": f"#/components/schemas/{_struct_component(found.base)}"}]}
    if found.shape == "map":
        return {"type": "object", "additionalProperties": _item(parsed(found.base))}
    if found.shape == "scalar":
        return dict(_SCALARS[found.base])
    schema: Json = {"type": "array", "items": _item(parsed(found.base))}
    schema["x-kubernetes-list-type"] = "map" if found.keys else "atomic"
    if found.keys:
        schema["x-kubernetes-list-map-keys"] = list(found.keys)
    if found.merged:
        schema["x-kubernetes-patch-strategy"] = "merge"
        if found.keys:
            schema["x-kubernetes-patch-merge-key"] = found.keys[0]
        else:
            schema["x-kubernetes-list-type"] = "set"
    return schema


def _item(found: Type) -> Json:
    """Return the schema of a list's or map's element: a bare reference, as in Kubernetes."""
    schema = _schema(found)
    references = schema.get("allOf")
    return references[0] if isinstance(references, list) else schema


def _paths(kind: Kind, version: str) -> Iterator[tuple[str, Json]]:
    prefix, body = _prefix(kind.group, version), _component(kind, version)
    place = f"{prefix}/namespaces/{{namespace}}" if kind.namespaced else prefix
    inside = [_path_parameter("namespace")] if kind.namespaced else []
    verbs = _Operations(kind, version, body)
    if kind.namespaced:
        yield f"{prefix}/{kind.plural}", {"get": verbs.list()}
    yield (
        f"{place}/{kind.plural}",
        {"get": verbs.list(), "post": verbs.write("post"), "parameters": inside},
    )
    named = [_path_parameter("name"), *inside]
    one = {"get": verbs.read(), "put": verbs.write("put"), "patch": verbs.patch()}
    path = f"{place}/{kind.plural}/{{name}}"
    yield path, {**one, "delete": verbs.delete(), "parameters": named}
    if "status" in kind.subresources:
        yield f"{path}/status", {**one, "parameters": named}


class _Operations:
    """OpenAPI operations on one kind."""

    def __init__(self, kind: Kind, version: str, component: str) -> None:
        self._kind = kind
        self._gvk = _gvk(kind, version)
        self._object: Json = {"$ref": f"#/components/schemas/{component}"}

    def list(self) -> Json:
        """Return the GET operation for a list or watch."""
        return self._operation("list", _LIST_PARAMETERS, None)

    def read(self) -> Json:
        """Return the GET operation for an object."""
        return self._operation("get", (), None)

    def delete(self) -> Json:
        """Return the DELETE operation for an object."""
        options = {"$ref": f"#/components/schemas/{_struct_component('DeleteOptions')}"}
        return self._operation("delete", ("dryRun", "gracePeriodSeconds"), {"*/*": options})

    def write(self, action: str) -> Json:
        """Return the POST or PUT operation for an object."""
        return self._operation(action, _WRITE_PARAMETERS, {"*/*": self._object})

    def patch(self) -> Json:
        """Return the PATCH operation for an object, with the content types that the kind takes."""
        content: Json = {name: {"type": "object"} for name in patches.types(self._kind)}
        return self._operation("patch", (*_WRITE_PARAMETERS, "force"), content)

    def _operation(self, action: str, parameters: tuple[str, ...], body: Json | None) -> Json:
        found: Json = {
            "parameters": [
                {"name": name, "in": "query", "schema": {"type": "string"}} for name in parameters
            ],
            "responses": {
                "200": {
                    "description": "OK",
                    "content": {"application/json": {"schema": self._object}},
                }
            },
            "x-kubernetes-action": action,
            _GVK: self._gvk,
        }
        if body is not None:
            content = {media_type: {"schema": schema} for media_type, schema in body.items()}
            found["requestBody"] = {"content": content}
        return found


def _path_parameter(name: str) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
