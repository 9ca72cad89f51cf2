"""What the commands share: the console, the settings, the key of the server that they speak to."""

from __future__ import annotations

import os
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
import uvloop
from rich.console import Console

from bellringer.config import Config, read_config
from bellringer.kernel.errors import StartupError
from bellringer.kernel.logs import configure_logs

T = TypeVar("T")

# A pipe has no width: what reads it must get whole ids.
console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 500)

ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="Settings file; ./bellringer.toml if it exists.", dir_okay=False)
]
Url = Annotated[str | None, typer.Option(help="The server; the one of the settings if left out.")]
Key = Annotated[str | None, typer.Option(help="The API key; BELLRINGER_API_KEY or the first key if left out.")]


def read_settings(config_file: Path | None) -> Config:
    """The settings, with logs as they say. Raises `StartupError`."""
    config = read_config(os.environ, config_file)
    log_format = config.log.format
    configure_logs(
        config.log.level, ("text" if sys.stderr.isatty() else "json") if log_format == "auto" else log_format
    )
    return config


def known_key(config: Config) -> str:
    """The API key of the settings, or the first that `bellringer up` made. Raises `StartupError`."""
    from bellringer.foreground import KEY_FILE  # noqa: PLC0415 - keeps the other commands quick

    if config.api_key is not None:
        return config.api_key
    file = Path(config.data_directory) / KEY_FILE
    try:
        return file.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        raise StartupError(f"no API key: give --key or BELLRINGER_API_KEY; there is none in {file}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"the API key in {file} cannot be read: {error}") from None


def run(work: Coroutine[Any, Any, T]) -> T:
    """Do work that takes an event loop."""
    return uvloop.run(work)
