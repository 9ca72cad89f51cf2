"""A pytest plugin: where nothing may be missing, a skipped test fails the run and is named.

On with `--strict-skips`, and wherever CI=true.
"""

from __future__ import annotations

import os

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption(
        "--strict-skips",
        action="store_true",
        default=os.environ.get("CI") == "true",
        help="fail the run when a test is skipped (the default where CI=true)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Watch the run if that was asked for."""
    if config.getoption("--strict-skips"):
        config.pluginmanager.register(_StrictSkips())


class _StrictSkips:
    def __init__(self) -> None:
        self._skipped: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self._skipped.append(_told(report))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._skipped.append(_told(report))

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> object:
        result = yield
        if self._skipped and session.exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        return result

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._skipped:
            terminalreporter.section("skipped, and here nothing may be", red=True, bold=True)
            for line in self._skipped:
                terminalreporter.line(line)


def _told(report: pytest.TestReport | pytest.CollectReport) -> str:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr or "")
    return f"{report.nodeid}: {reason.removeprefix('Skipped: ')}"
