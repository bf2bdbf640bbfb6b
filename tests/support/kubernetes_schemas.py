"""Kubernetes' own schemas of its objects."""

import functools
from typing import Any, Final

import kubernetes_validate
from kubernetes_validate import utils

VERSION: Final = "1.36"
contents: Final = functools.cache(utils.schema_contents)
"""Reads a schema file once; one of them has a megabyte, and the library reads it each time."""
utils.schema_contents = contents


def check(document: Any, version: str = VERSION) -> None:
    """Raise kubernetes_validate.ValidationError for what is against Kubernetes' strict schema."""
    kubernetes_validate.validate(document, version, strict=True)
