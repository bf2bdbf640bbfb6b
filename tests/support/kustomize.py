"""Rendering with the subset of kustomize that the manifests use; anything else is an error.

If kubectl is on PATH, `make manifests` compares the output with that of `kubectl kustomize`.
"""

import copy
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.support import yaml_text

Document = dict[str, Any]

_FIELDS = frozenset(
    {"apiVersion", "kind", "resources", "components", "patches", "images", "configMapGenerator"}
)


def render(folder: Path) -> list[Document]:
    """Return the objects of a kustomization, in the order in which it lists them."""
    return _accumulate(folder, [])


def with_components(folder: Path, *components: Path) -> list[Document]:
    """Return the objects of a kustomization to which an administrator has added components."""
    documents = render(folder)
    for component in components:
        documents = _accumulate(component, documents)
    return documents


def kustomization(folder: Path) -> Document:
    """Return the kustomization of a folder.

    Raises:
        ValueError: It has a field that is not implemented here.
    """
    loaded: Document = yaml_text.load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    unknown = loaded.keys() - _FIELDS
    if unknown:
        raise ValueError(f"{folder}: found {sorted(unknown)}, expected only {sorted(_FIELDS)}")
    return loaded


def _accumulate(folder: Path, documents: list[Document]) -> list[Document]:
    """Return the objects after a kustomization or component, applied to those so far.

    A kustomization starts with no objects; a component changes existing ones.
    """
    wanted = kustomization(folder)
    documents = [*documents]
    for name in wanted.get("resources", []):
        documents.extend(_resource(folder / name))
    for generator in wanted.get("configMapGenerator", []):
        documents.append(_config_map(generator, folder))
    for name in wanted.get("components", []):
        documents = _accumulate(folder / name, documents)
    for patch in wanted.get("patches", []):
        documents = _patched(documents, patch, folder)
    for image in wanted.get("images", []):
        _set_image(documents, image)
    return documents


def _resource(path: Path) -> list[Document]:
    if path.is_dir():
        return render(path)
    return copy.deepcopy(_objects(path))


@functools.cache
def _objects(file: Path) -> list[Document]:
    """Return the objects of a file. It is parsed once, because most overlays share their files."""
    return [item for item in yaml_text.load_all(file.read_text(encoding="utf-8")) if item]


def _config_map(generator: Document, folder: Path) -> Document:
    """Return the ConfigMap of files, which are listed as KEY=FILE."""
    options = generator["options"]
    if not options["disableNameSuffixHash"]:
        raise ValueError(f"{folder}: {generator['name']}: expected disableNameSuffixHash")
    pairs = [entry.split("=") for entry in generator["files"]]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": generator["name"],
            "namespace": generator["namespace"],
            "labels": dict(options["labels"]),
        },
        "data": {key: (folder / file).read_text(encoding="utf-8") for key, file in pairs},
    }


def _patched(documents: list[Document], patch: Document, folder: Path) -> list[Document]:
    text = patch.get("patch") or (folder / patch["path"]).read_text(encoding="utf-8")
    target = patch["target"]
    met = [
        item
        for item in documents
        if item["kind"] == target["kind"] and item["metadata"]["name"] == target["name"]
    ]
    if len(met) != 1:
        raise ValueError(f"{folder}: {target}: found {len(met)} objects, expected one")
    changed = apply(met[0], yaml_text.load(text))
    return [changed if item is met[0] else item for item in documents]


def apply(document: Document, operations: list[Document]) -> Document:
    """Apply a JSON patch (RFC 6902, without move and copy) and return the new document."""
    result = copy.deepcopy(document)
    for operation in operations:
        *way, last = [
            part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]
        ]
        parent: Any = result
        for part in way:
            parent = parent[int(part)] if isinstance(parent, list) else parent[part]
        key: Any = last
        if isinstance(parent, list):
            key = len(parent) if last == "-" else int(last)
        _OPERATIONS[operation["op"]](parent, key, operation)
    return result


def _add(parent: Any, key: Any, operation: Document) -> None:
    value = copy.deepcopy(operation["value"])
    if isinstance(parent, list):
        parent.insert(key, value)
    else:
        parent[key] = value


def _remove(parent: Any, key: Any, _: Document) -> None:
    del parent[key]


def _replace(parent: Any, key: Any, operation: Document) -> None:
    _ = parent[key]  # fails if the value does not exist
    parent[key] = copy.deepcopy(operation["value"])


def _test(parent: Any, key: Any, operation: Document) -> None:
    if parent[key] != operation["value"]:
        raise ValueError(
            f"{operation['path']}: found {parent[key]!r}, expected {operation['value']!r}"
        )


_OPERATIONS: dict[str, Callable[[Any, Any, Document], None]] = {
    "add": _add,
    "remove": _remove,
    "replace": _replace,
    "test": _test,
}


def _set_image(documents: list[Document], image: Document) -> None:
    for container in containers(documents):
        name, _, tag = container["image"].partition(":")
        if name == image["name"]:
            name = image.get("newName", name)
            container["image"] = f"{name}:{image.get('newTag', tag)}"


def containers(documents: list[Document]) -> Iterator[Document]:
    """Yield the containers of all workloads, with those that run before the others."""
    for item in documents:
        template = item.get("spec", {}).get("template")
        if isinstance(template, dict) and "spec" in template:
            yield from template["spec"].get("initContainers", [])
            yield from template["spec"]["containers"]
