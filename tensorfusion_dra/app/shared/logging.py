"""Configuration of the log: one line per event, as JSON or coloured for a terminal."""

import logging
import os
import sys
from typing import TextIO

import structlog

from tensorfusion_dra.cluster import error_text
from tensorfusion_dra.core import printable


class _Libraries(logging.Handler):
    """Handler that writes warnings of libraries in the form of all other log lines.

    Without it they would go to stderr in a form of their own. Messages of libraries below warning
    are dropped at every log level, because HTTP libraries log headers and whole bodies there.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Log the record as the event library_warned."""
        structlog.get_logger().warning(
            "library_warned",
            library=record.name,
            error=error_text.one_line(record.getMessage()),
        )


def configure(*, level: str, form: str, stream: TextIO | None = None) -> None:
    """Write all log lines of this process to the stream, by default stderr.

    Args:
        level: The lowest level that is logged.
        form: ``json`` or ``console``.
    """
    target = stream or sys.stderr
    logging.basicConfig(level=logging.WARNING, handlers=[_Libraries()], force=True)
    # gRPC's C core writes to stderr by itself; it reads this variable when it is imported.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    renderer: structlog.typing.Processor = structlog.processors.JSONRenderer(default=repr)
    if form == "console":
        renderer = structlog.dev.ConsoleRenderer(colors=target.isatty())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            # Before the next one, because a traceback keeps its lines.
            lambda _logger, _method, facts: printable.escaped(facts),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.WriteLoggerFactory(file=target),
        cache_logger_on_first_use=True,
    )
