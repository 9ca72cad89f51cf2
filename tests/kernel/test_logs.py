from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime, timedelta
from typing import Any

import pytest

LOGGING = """
import logging, structlog
from bellringer.kernel.logs import configure_logs, get_logger

early = get_logger("early")  # as every module makes its own, before the process is configured
configure_logs("{level}", "{format}")
log = get_logger("bellringer.test")

def charge(password):
    raise ValueError("the card was refused")

{code}
"""


def logged(code: str, *, level: str = "info", log_format: str = "json") -> str:
    """What a process that runs this code says on standard error; on standard output it must say nothing."""
    program = LOGGING.format(level=level, format=log_format, code=code)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert ended.stdout == ""
    return ended.stderr


def logged_json(code: str, *, level: str = "info") -> list[dict[str, Any]]:
    return [json.loads(line) for line in logged(code, level=level).splitlines()]


def test_an_event_is_one_line_of_json_with_its_level_and_time_in_utc() -> None:
    (line,) = logged_json("log.info('migration applied', subsystem='kernel', number=1)")
    assert datetime.fromisoformat(line.pop("timestamp")).utcoffset() == timedelta(0)
    assert line == {"event": "migration applied", "level": "info", "subsystem": "kernel", "number": 1}


def test_a_logger_made_before_the_configuration_follows_it() -> None:
    (line,) = logged_json("early.info('hello')")
    assert line["event"] == "hello"


def test_libraries_come_out_in_the_same_shape() -> None:
    (line,) = logged_json("logging.getLogger('some.library').warning('slow: %d ms', 5)")
    assert datetime.fromisoformat(line.pop("timestamp")).utcoffset() == timedelta(0)
    assert line == {"event": "slow: 5 ms", "level": "warning"}


@pytest.mark.parametrize(("level", "heard"), [("debug", "abcd"), ("info", "bcd"), ("warning", "cd"), ("error", "d")])
def test_what_is_below_the_level_is_not_said(level: str, heard: str) -> None:
    code = """
for logger in (log, logging.getLogger("some.library")):
    logger.debug("a"); logger.info("b"); logger.warning("c"); logger.error("d")
"""
    assert "".join(line["event"] for line in logged_json(code, level=level)) == heard * 2


def test_libraries_that_speak_of_every_connection_are_heard_from_a_warning_on() -> None:
    code = """
for name in ("mail.log", "aiosmtplib", "_granian", "granian", "asyncio"):
    logging.getLogger(name).info("connected"); logging.getLogger(name).warning(name)
"""
    assert len(logged_json(code, level="debug")) == 5


@pytest.mark.parametrize("logger", ["log", "logging.getLogger('some.library')"])
def test_an_exception_is_part_of_its_line(logger: str) -> None:
    code = f"""
try:
    charge("hunter2")
except ValueError:
    {logger}.exception("charge failed")
"""
    (line,) = logged_json(code)
    assert line["event"] == "charge failed"
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith("ValueError: the card was refused")


def test_what_json_cannot_hold_is_shown_all_the_same() -> None:
    (line,) = logged_json("log.info('odd', value={1, 2}, error=KeyError('k'), text='a\\nb \\ud800')")
    assert (line["value"], line["error"]) == ("{1, 2}", "KeyError('k')")


def test_bound_context_is_part_of_every_line() -> None:
    code = """
structlog.contextvars.bind_contextvars(request="r1")
log.info("one"); logging.getLogger("some.library").warning("two")
"""
    assert [line["request"] for line in logged_json(code)] == ["r1", "r1"]


@pytest.mark.parametrize("log_format", ["json", "text"])
@pytest.mark.parametrize("logger", ["log", "logging.getLogger('some.library')"])
def test_an_exception_does_not_tell_what_the_variables_held(log_format: str, logger: str) -> None:
    code = f"""
secret = "hunter" + str(2)
try:
    charge(secret)
except ValueError:
    {logger}.exception("charge failed")
"""
    said = logged(code, log_format=log_format)
    assert "the card was refused" in said
    assert "hunter2" not in said


def test_text_is_for_people_and_has_no_colours_outside_a_terminal() -> None:
    said = logged("log.warning('disk is full', free_bytes=0)", log_format="text")
    assert "warning" in said
    assert "disk is full" in said
    assert "free_bytes=0" in said
    assert "\x1b" not in said
