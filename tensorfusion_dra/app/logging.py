"""One line a fact on stderr, JSON for machines or coloured for a terminal."""

import logging
import sys
from typing import TextIO

import structlog


def configure(*, level: str, form: str, stream: TextIO | None = None) -> None:
    """Sends all log lines of this process to the stream.

    Args:
        level: The least level that is logged.
        form: ``json`` or ``console``.
    """
    target = stream or sys.stderr
    renderer: structlog.typing.Processor = structlog.processors.JSONRenderer()
    if form == "console":
        renderer = structlog.dev.ConsoleRenderer(colors=target.isatty())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.WriteLoggerFactory(file=target),
        cache_logger_on_first_use=True,
    )
