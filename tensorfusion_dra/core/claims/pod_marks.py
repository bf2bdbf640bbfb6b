"""Annotations that this driver adds to pods, and what the pods had before.

An enforcer may have to mark a pod for its own software. The marks are results and request nothing,
so what a pod asks for is read without them. What the driver added is named in `dra-marks`; the
former value of an annotation that it replaced is kept under another name.
"""

from collections.abc import Mapping
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.kubernetes.untyped_json import as_map

RULING: Final = (
    names.ANNOTATION_COMPUTE_PERCENT_LIMIT,
    names.ANNOTATION_GPU_COUNT,
    names.MARK_GPU_INDICES,
    names.ANNOTATION_ISOLATION,
    names.ANNOTATION_TFLOPS_LIMIT,
    names.ANNOTATION_VRAM_LIMIT,
)
"""The annotations of a pod that this driver may replace."""


def annotations(stored: Mapping[str, Any]) -> Mapping[str, object]:
    """Return the annotations of a pod."""
    return as_map(as_map(stored.get("metadata")).get("annotations"))


def original_annotations(stored: Mapping[str, Any]) -> Mapping[str, object]:
    """Return the annotations of a pod as they would be without this driver."""
    found = annotations(stored)
    if names.MARK_DRA_MARKS not in found:
        return found
    own = own_keys(found) | {names.MARK_DRA_MARKS}
    rest = {key: value for key, value in found.items() if key not in own}
    return {**rest, **replaced(found)}


def replaced(found: Mapping[str, object]) -> dict[str, object]:
    """Return the former values of the annotations that this driver replaced."""
    return {key: found[kept(key)] for key in RULING if kept(key) in found}


def own_keys(found: Mapping[str, object]) -> frozenset[str]:
    """Return the labels and annotations that this driver added, as it listed them."""
    text = str(found.get(names.MARK_DRA_MARKS, ""))
    return frozenset(names.ANNOTATION_PREFIX + key for key in text.split(",") if key)


def kept(key: str) -> str:
    """Return the annotation that has the former value of one that this driver replaced."""
    return names.MARK_DRA_PREFIX + key.removeprefix(names.ANNOTATION_PREFIX)
