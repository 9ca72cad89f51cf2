"""The commands as their users run them: processes of their own, of which only output and exit code are known."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.postgres import Cluster

from bellringer import __version__, cli
from bellringer.config import VARIABLES
from bellringer.edge.keys import Keys
from bellringer.edge.model import RateLimit, Scope, SigningKey
from bellringer.kernel.clock import SystemClock
from bellringer.kernel.database import Database

PATIENCE_SECONDS = 60


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """What a command said, and how it ended."""

    code: int
    output: str
    errors: str


class CommandLine:
    """`bellringer` in a directory of its own, with nothing in its environment but what is set here."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self._directory = directory
        self._environment = {"PATH": os.environ["PATH"], **settings}

    async def run(self, *arguments: str, **settings: str) -> Ended:
        """Run a command to its end."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "bellringer",
            *arguments,
            cwd=self._directory,
            env=self._environment | settings,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, errors = await asyncio.wait_for(process.communicate(), PATIENCE_SECONDS)
        assert process.returncode is not None
        return Ended(code=process.returncode, output=output.decode(), errors=errors.decode())


@pytest.fixture
def bellringer(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)


async def test_the_version_is_shown(bellringer: CommandLine) -> None:
    assert await bellringer.run("version") == Ended(code=0, output=f"{__version__}\n", errors="")


async def test_wrong_usage_is_exit_code_2_and_explains_itself(bellringer: CommandLine) -> None:
    wrong = [("up", "--role", "king"), ("keys", "revoke", "no-uuid"), ("keys", "create", "x", "--scope", "king")]
    for ended in await asyncio.gather(*(bellringer.run(*arguments) for arguments in wrong)):
        assert ended.code == 2
        assert ended.errors.startswith("Usage: ")
        assert "Traceback" not in ended.errors


def test_an_argument_that_is_no_text_is_one_line_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bellringer", "tasks", "show", os.fsdecode(b"nightly\xff")])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == "bellringer: the argument 'nightly\\udcff' is not UTF-8\n"


async def test_a_setting_that_is_wrong_is_one_line_and_exit_code_1(bellringer: CommandLine) -> None:
    commands = [("check-config",), ("up",)]
    for ended in await asyncio.gather(*(bellringer.run(*command, BELLRINGER_PORT="eighty") for command in commands)):
        assert ended == Ended(code=1, output="", errors="bellringer: BELLRINGER_PORT: expected `int`, got `str`\n")


async def test_a_database_that_is_not_there_is_one_line_and_exit_code_1(bellringer: CommandLine) -> None:
    url = "postgresql://bell:hunter2@127.0.0.1:1/bellringer"
    commands = [("up",), ("keys", "list")]
    for ended in await asyncio.gather(*(bellringer.run(*command, BELLRINGER_DATABASE_URL=url) for command in commands)):
        assert ended.code == 1
        assert ended.errors == "bellringer: the database cannot be reached: [Errno 111] Connection refused\n"


async def test_every_setting_is_listed_whole_with_its_value_and_without_secrets(bellringer: CommandLine) -> None:
    secrets = {
        "BELLRINGER_API_KEY": "hunter2-hunter2-hunter2",
        "BELLRINGER_DATABASE_URL": "postgresql://bell:hunter2@127.0.0.1:1/bellringer",
        "BELLRINGER_SMTP_URL": "smtp://bell:hunter2@mail.acme.example",
    }
    ended = await bellringer.run(
        "check-config",
        "--list",
        BELLRINGER_PORT="9090",
        BELLRINGER_EMAIL_FROM='"[bold]" <bell@acme.example>',
        **secrets,
    )
    assert ended.code == 0
    assert "hunter2" not in ended.output + ended.errors
    rows = [re.split(r"  +", line.strip(), maxsplit=2) for line in ended.output.splitlines()]
    listed = {variable: (path, value) for variable, path, value in (row for row in rows if len(row) == 3)}
    assert {variable: path for variable, (path, _) in listed.items() if variable in VARIABLES} == dict(VARIABLES)
    assert listed["BELLRINGER_PORT"] == ("edge.port", "9090")
    assert listed["BELLRINGER_EMAIL_FROM"] == ("notifications.email_from", '"[bold]" <bell@acme.example>')
    assert {listed[variable][1] for variable in secrets} == {"(set)"}


async def test_a_settings_file_is_found_or_named(bellringer: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "bellringer.toml").write_text("[edge]\nport = 1111")
    (tmp_path / "other.toml").write_text("[edge]\nport = 2222")
    found, named = await asyncio.gather(
        bellringer.run("check-config", "--list"), bellringer.run("check-config", "--list", "--config", "other.toml")
    )
    assert " 1111" in found.output
    assert "(set)" not in found.output
    assert " 2222" in named.output


@pytest.fixture
def on_database(tmp_path: Path, cluster: Cluster, database_arguments: dict[str, Any]) -> CommandLine:
    """The commands on a database of the test's own."""
    url = cluster.url(str(database_arguments["database"]))
    return CommandLine(tmp_path, BELLRINGER_DATABASE_URL=url, BELLRINGER_ORGANISATION="acme")


async def test_a_key_is_made_shown_once_listed_and_revoked(on_database: CommandLine, database: Database) -> None:
    made = await on_database.run("keys", "create", "billing [/service]", "--environment", "staging")
    assert made.code == 0
    shown = dict(line.split("=", 1) for line in made.output.splitlines())
    assert list(shown) == ["BELLRINGER_API_KEY", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]
    key, access_key_id, secret = shown.values()
    access = await Keys(database, SystemClock()).authenticate(key)
    assert (str(access.environment), access.scopes) == ("acme/staging", {Scope.ADMIN})
    signing_key = await Keys(database, SystemClock()).find_by_access_key_id(access_key_id)
    assert signing_key == SigningKey(secret=secret, access=access)
    assert await on_database.run("keys", "pair", "--key", key) == made
    assert await on_database.run("keys", "pair", BELLRINGER_API_KEY=key) == made

    (listed,) = await Keys(database, SystemClock()).list_keys()
    before = await on_database.run("keys", "list")
    assert key not in before.output
    assert secret not in before.output
    (row,) = before.output.splitlines()[1:]
    for part in (str(listed.id), "acme/staging", "billing [/service]", f"…{key[-4:]}", "admin", access_key_id):
        assert part in row

    revoked = await on_database.run("keys", "revoke", str(listed.id))
    assert (revoked.code, revoked.output) == (0, f"Revoked {listed.id}.\n")
    (after,) = await Keys(database, SystemClock()).list_keys()
    assert after.revoked_at is not None


async def test_a_key_is_made_for_less_than_everything(on_database: CommandLine, database: Database) -> None:
    arguments = ("--scope", "publish", "--scope", "consume", "--rate", "0.5", "--burst", "3")
    made = await on_database.run("keys", "create", "worker", *arguments)
    key = made.output.splitlines()[0].removeprefix("BELLRINGER_API_KEY=")
    access = await Keys(database, SystemClock()).authenticate(key)
    assert access.scopes == {Scope.PUBLISH, Scope.CONSUME}
    assert access.rate_limit == RateLimit(requests_per_second=0.5, burst=3)
    (row,) = (await on_database.run("keys", "list")).output.splitlines()[1:]
    assert " consume,publish " in row
    assert " 0.5/s, burst 3 " in row


async def test_what_keys_cannot_do_is_one_line_and_exit_code_1(on_database: CommandLine) -> None:
    nobody = "01890a5d-ac96-774b-bcce-b302099a8057"
    refusals = {
        ("keys", "revoke", nobody): f"bellringer: there is no API key {nobody}\n",
        ("keys", "create", "", "--environment", "staging"): (
            "bellringer: the name of a key has 1 to 200 printable characters\n"
        ),
        ("keys", "create", "billing", "--rate", "0"): "bellringer: a rate is 0.001 to 1000000 requests per second\n",
        ("keys", "create", "billing", "--burst", "5"): "bellringer: a burst needs a rate\n",
        ("keys", "pair", "--key", "not-stored-here"): (
            "bellringer: this API key is not stored here, or was made before keys had pairs\n"
        ),
        ("keys", "create", "billing", "--environment", "a b"): (
            "bellringer: environment must be 1 to 63 letters, digits, dots, dashes or underscores, and start with a"
            " letter or digit\n"
        ),
    }
    ends = await asyncio.gather(*(on_database.run(*arguments) for arguments in refusals))
    assert ends == [Ended(code=1, output="", errors=errors) for errors in refusals.values()]
