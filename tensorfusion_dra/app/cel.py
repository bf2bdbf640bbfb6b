"""Translates, checks and explains device selectors."""

import json
import sys
from typing import Any, Final

from tensorfusion_dra.app import selector_check
from tensorfusion_dra.app.cel_options import Options
from tensorfusion_dra.app.tables import table
from tensorfusion_dra.core.cel import translate, type_check
from tensorfusion_dra.core.errors import InputError

_INCOMPLETE: Final = 3


def run(options: Options) -> int:
    """Prints the answer; the exit code.

    Raises:
        InputError: The expression cannot be used, or something it needs is not there.
        RetryableError: The API server did not answer.
    """
    if options.action == "translate":
        return _translate(options)
    if options.action == "check":
        return _check(options)
    try:
        from tensorfusion_dra.app import selector_report  # noqa: PLC0415 - the extra 'cel'
    except ImportError as error:
        raise InputError(f"cel explain needs the extra 'cel': {error}") from error

    return selector_report.run(options)


def _translate(options: Options) -> int:
    translated = translate.translate(options.expression)
    type_check.check(translated)
    if options.form == "json":
        changed = translated != options.expression
        _print_json({"expression": translated, "changed": changed})
    else:
        sys.stdout.write(translated + "\n")
    return 0


def _check(options: Options) -> int:
    found = selector_check.findings(options.expression, as_is=options.as_is)
    if options.form == "json":
        checks = [{"check": item.check, "ok": item.is_ok, "text": item.text} for item in found]
        _print_json({"checks": checks})
    else:
        rows = [("CHECK", "RESULT"), *((item.check, item.text) for item in found)]
        sys.stdout.write("\n".join(table(rows, indent="")) + "\n")
    if any(item.is_ok is False for item in found):
        return 1
    return _INCOMPLETE if any(item.is_ok is None for item in found) else 0


def _print_json(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document, indent=2) + "\n")
