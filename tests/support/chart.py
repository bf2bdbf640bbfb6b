"""Rendering of the Helm chart as by `helm template`, with the functions that the chart uses."""

import base64
import json
import posixpath
from collections import ChainMap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import jsonschema
import yaml

from tests.support import go_template, yaml_text
from tests.support.go_template import Function, Scope

Document = dict[str, Any]

NAMESPACE: Final = "tensorfusion-dra"


def render(folder: Path, values: Mapping[str, Any] | None = None) -> list[Document]:
    """Return the objects of a release.

    Raises:
        ValidationError: The values do not match values.schema.json.
        TemplateError: A template fails.
    """
    printed = _printer(folder, values)
    return [
        document
        for file in sorted((folder / "templates").glob("*.yaml"))
        for document in yaml_text.load_all(printed(file))
        if document
    ]


def notes(folder: Path, values: Mapping[str, Any] | None = None) -> str:
    """Return the notes that helm prints after an installation.

    Raises:
        ValidationError, TemplateError: As in render().
    """
    return _printer(folder, values)(folder / "templates" / "NOTES.txt")


def _printer(folder: Path, values: Mapping[str, Any] | None) -> Callable[[Path], str]:
    """Return a function that renders one file of a release."""
    chart = yaml_text.load((folder / "Chart.yaml").read_text(encoding="utf-8"))
    merged = merge(yaml_text.load((folder / "values.yaml").read_text(encoding="utf-8")), values)
    jsonschema.validate(merged, json.loads((folder / "values.schema.json").read_text()))
    root = {
        "Values": merged,
        "Release": {"Namespace": NAMESPACE},
        "Chart": {"AppVersion": chart["appVersion"]},
        "Files": {"Get": lambda name: (folder / name).read_text(encoding="utf-8")},
    }
    defined: dict[str, list[go_template.Node]] = {}
    for file in sorted((folder / "templates").glob("*.tpl")):
        defined |= go_template.definitions(file.read_text(encoding="utf-8"))

    def printed(file: Path) -> str:
        scope = Scope(
            dot=root, variables=ChainMap({"$": root}), functions=FUNCTIONS, defined=defined
        )
        return go_template.render(go_template.parse(file.read_text(encoding="utf-8")), scope)

    return printed


def merge(defaults: Mapping[str, Any], given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Merge values over defaults: mappings key by key, other values whole; null removes a key."""
    merged = dict(defaults)
    for key, value in (given or {}).items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else value
    return {key: value for key, value in merged.items() if value is not None}


def _to_yaml(value: object) -> str:
    return yaml.safe_dump(value, default_flow_style=False).removesuffix("\n...\n").rstrip("\n")


def _indented(width: int, text: str) -> str:
    return "\n".join(" " * width + line for line in text.split("\n"))


def _and(*values: Any) -> Any:
    return next((value for value in values if not value), values[-1])


def _or(*values: Any) -> Any:
    return next((value for value in values if value), values[-1])


def _certificate(name: str, *_: Any) -> dict[str, str]:
    return {"Cert": f"certificate of {name}", "Key": f"key of {name}"}


FUNCTIONS: Final[Mapping[str, Function]] = {
    "and": _and,
    "b64enc": lambda text: base64.b64encode(text.encode()).decode(),
    "dir": posixpath.dirname,
    "dict": lambda *pairs: dict(zip(pairs[::2], pairs[1::2], strict=True)),
    "default": lambda default, value: value or default,
    "eq": lambda one, *others: one in others,
    "fail": lambda text: (_ for _ in ()).throw(go_template.TemplateError(text)),
    "fromJson": json.loads,
    "fromYaml": yaml_text.load,
    "genCA": _certificate,
    "genSignedCert": _certificate,
    "has": lambda item, items: item in items,
    "index": lambda found, *keys: found.get(keys[0]),
    "list": lambda *items: list(items),
    # Finds nothing, as without a cluster.
    "lookup": lambda *_: {},
    "ne": lambda one, other: one != other,
    "nindent": lambda width, text: "\n" + _indented(width, text),
    "not": lambda value: not value,
    "or": _or,
    "printf": lambda form, *values: form % values,
    "quote": json.dumps,
    "replace": lambda old, new, text: text.replace(old, new),
    "toJson": json.dumps,
    "toString": lambda value: str(value).lower() if isinstance(value, bool) else str(value),
    "toYaml": _to_yaml,
    "upper": lambda text: text.upper(),
}
