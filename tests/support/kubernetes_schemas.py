"""Kubernetes' own schemas of its objects."""

import functools
from typing import Any, Final

import kubernetes_validate
from kubernetes_validate import utils

VERSION: Final = "1.37"
contents: Final = functools.cache(utils.schema_contents)
"""Cached reader of schema files: the library reads them each time, and one is a megabyte long."""
utils.schema_contents = contents


def check(document: Any, version: str = VERSION) -> None:
    """Raise kubernetes_validate.ValidationError if Kubernetes' strict schema forbids the object."""
    kubernetes_validate.validate(document, version, strict=True)
