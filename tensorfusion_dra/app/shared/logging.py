"""One line a fact on stderr, JSON for machines or coloured for a terminal."""

import logging
import os
import sys
from typing import TextIO

import structlog
from structlog.typing import EventDict

from tensorfusion_dra.cluster import error_text
from tensorfusion_dra.core import printable


class _Libraries(logging.Handler):
    """Warnings of libraries, as lines like all others.

    Without a handler they would go to stderr in a form of their own. What a library says at lower
    levels stays unsaid at any log level: the HTTP ones show headers and whole bodies there.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        log = structlog.get_logger()
        log.warning(
            "library_warned",
            library=record.name,
            error=error_text.one_line(record.getMessage()),
        )


def _printable(_logger: object, _method: str, facts: EventDict) -> EventDict:
    """Makes each fact one printable line; a traceback, which is added later, keeps its lines."""
    return {key: _shown(value) for key, value in facts.items()}


def _shown(value: object) -> object:
    if isinstance(value, str):
        return printable.one_line(value)
    if isinstance(value, list | tuple):
        return [_shown(item) for item in value]
    if isinstance(value, dict):
        return {key: _shown(item) for key, item in value.items()}
    return value


def configure(*, level: str, form: str, stream: TextIO | None = None) -> None:
    """Sends all log lines of this process to the stream.

    Args:
        level: The least level that is logged.
        form: ``json`` or ``console``.
    """
    target = stream or sys.stderr
    logging.basicConfig(level=logging.WARNING, handlers=[_Libraries()], force=True)
    # gRPC's C core writes to stderr by itself; it reads this as it is imported.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    renderer: structlog.typing.Processor = structlog.processors.JSONRenderer()
    if form == "console":
        renderer = structlog.dev.ConsoleRenderer(colors=target.isatty())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _printable,
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.WriteLoggerFactory(file=target),
        cache_logger_on_first_use=True,
    )
