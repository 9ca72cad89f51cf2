"""Structured logs: one event per line on standard error, as JSON for machines or coloured text for people."""

from __future__ import annotations

import logging
import sys
from typing import Literal, cast

import structlog
from structlog.typing import FilteringBoundLogger

LogFormat = Literal["json", "text"]
LogLevel = Literal["debug", "info", "warning", "error"]


def configure_logs(level: LogLevel, log_format: LogFormat) -> None:
    """Set up logging for the whole process; libraries that use `logging` come out in the same shape."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: structlog.typing.Processor
    if log_format == "json":
        shared.append(structlog.processors.format_exc_info)
        renderer = structlog.processors.JSONRenderer()
    else:
        # Plain, because the default shows local variables, and with them API keys and passwords.
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # These speak of every connection at the level "info".
    for chatty in ("mail.log", "aiosmtplib", "_granian", "granian", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def get_logger(name: str) -> FilteringBoundLogger:
    """The logger of a module."""
    return cast("FilteringBoundLogger", structlog.get_logger(name))
