"""Match conditions of webhooks, evaluated as in the API server: on plain JSON, without types."""

import functools
from collections.abc import Mapping
from typing import Any, Final

from cel_expr_python import cel
from cel_expr_python.ext import ext_optional, ext_strings

from dra_simulator.api.webhooks import WebhookError

_CACHED: Final = 64
_STRINGS_VERSION: Final = 2


def holds(expression: str, variables: Mapping[str, object]) -> bool:
    """Return True if an expression holds for object, oldObject and request.

    Raises:
        WebhookError: It cannot be compiled or evaluated, or its result is not a bool.
    """
    result = _program(expression).eval(data=dict(variables))
    if result.type() != cel.Type.BOOL:
        raise WebhookError(f"{expression}: {result.value()}")
    return bool(result.value())


@functools.lru_cache(maxsize=_CACHED)
def _program(expression: str) -> Any:
    try:
        return _environment().compile(expression)
    except RuntimeError as error:
        raise WebhookError(f"{expression}: {error}") from error


@functools.cache
def _environment() -> Any:
    names = ("object", "oldObject", "request")
    return cel.NewEnv(
        variables=dict.fromkeys(names, cel.Type.DYN),
        extensions=[ext_strings.ExtStrings(_STRINGS_VERSION), ext_optional.ExtOptional()],
    )
