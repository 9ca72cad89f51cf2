from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bellringer.config import VARIABLES, Config, read_config
from bellringer.kernel.errors import StartupError


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where settings are looked for when no other file is named."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "bellringer.toml"


def refusal(environ: dict[str, str], file: Path | None = None) -> str:
    with pytest.raises(StartupError) as raised:
        read_config(environ, file)
    message = str(raised.value)
    assert "\n" not in message
    return message


def test_without_any_setting_the_defaults_hold(file: Path) -> None:
    assert not file.exists()
    assert read_config({}) == Config()


def test_settings_are_read_from_the_file(file: Path) -> None:
    file.write_text("""
        organisation = "acme"
        [edge]
        port = 9090
        [notifications.smtp]
        url = "smtp://mail.acme.example"
        [broker.batcher]
        max_batch_items = 50
    """)
    config = read_config({})
    assert config.organisation == "acme"
    assert config.edge.port == 9090
    assert config.notifications.smtp.url == "smtp://mail.acme.example"
    assert config.broker.batcher.max_batch_items == 50
    assert config.environment == Config().environment


def test_another_file_may_be_named(file: Path, tmp_path: Path) -> None:
    file.write_text("organisation = 'acme'")
    other = tmp_path / "other.toml"
    other.write_text("organisation = 'umbrella'")
    assert read_config({}, other).organisation == "umbrella"


def test_the_environment_wins_over_the_file(file: Path) -> None:
    file.write_text("organisation = 'acme'\nenvironment = 'staging'\n[edge]\nport = 9090\nhost = '::1'")
    config = read_config({"BELLRINGER_ORGANISATION": "umbrella", "BELLRINGER_PORT": "7070"})
    assert (config.organisation, config.environment) == ("umbrella", "staging")
    assert (config.edge.port, config.edge.host) == (7070, "::1")


def test_numbers_in_the_environment_are_text_that_is_read_as_numbers(file: Path) -> None:  # noqa: ARG001
    config = read_config(
        {"BELLRINGER_VISIBILITY_TIMEOUT_SECONDS": "2.5", "BELLRINGER_DIGEST_WINDOW_SECONDS": "0", "UNRELATED": "x"}
    )
    assert config.notifications.visibility_timeout_seconds == 2.5
    assert config.notifications.digest_window_seconds == 0


VALUES = {
    "BELLRINGER_DATA_DIRECTORY": "/srv/bell", "BELLRINGER_API_KEY": "0123456789abcdef",
    "BELLRINGER_ORGANISATION": "acme", "BELLRINGER_ENVIRONMENT": "staging",
    "BELLRINGER_LOG_LEVEL": "debug", "BELLRINGER_LOG_FORMAT": "json",
    "BELLRINGER_DATABASE_URL": "postgresql:///bell", "BELLRINGER_DATABASE_POOL_SIZE": "5", "BELLRINGER_HOST": "0.0.0.0",
    "BELLRINGER_ORCHESTRATOR_DRIVER": "processes", "BELLRINGER_ORCHESTRATOR_WEBHOOK_URL": "https://scale.acme.example",
    "BELLRINGER_SMTP_URL": "smtp://mail", "BELLRINGER_EMAIL_FROM": "bell@acme.example",
    "BELLRINGER_MAX_BODY_BYTES": "4096", "BELLRINGER_RETENTION_SECONDS": "7200",
    "BELLRINGER_QUEUE_RETENTION_SECONDS": "7200", "BELLRINGER_TASK_RETENTION_SECONDS": "7200",
    "BELLRINGER_SQS_VERIFY_SIGNATURES": "False",
}  # fmt: skip


@pytest.mark.parametrize("variable", VARIABLES)
def test_every_variable_sets_what_it_says(file: Path, variable: str) -> None:  # noqa: ARG001
    value = VALUES.get(variable, "7")
    found: object = read_config({variable: value})
    for name in VARIABLES[variable].split("."):
        found = getattr(found, name)
    assert value in {str(found), f"{found:g}" if isinstance(found, float) else ""}


def test_no_setting_has_two_variables() -> None:
    assert len(set(VARIABLES.values())) == len(VARIABLES)


@pytest.mark.parametrize("variable", ["BELLRINGER_PROT", "BELLRINGER_", "BELLRINGER_port", "BELLRINGER_DATABASE"])
def test_an_unknown_variable_is_named(file: Path, variable: str) -> None:  # noqa: ARG001
    assert refusal({variable: "1"}).startswith(f"unknown setting {variable};")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("prot = 5", "`prot`"),
        ("[database]\npool_sise = 5", "database: object contains unknown field `pool_sise`"),
        ("[notifications.smtp]\nuri = ''", "notifications.smtp: object contains unknown field `uri`"),
        ("[broker.batcher]\nmax_batch_items = 0", "broker.batcher.max_batch_items"),
        ("edge = 5", "edge"),
        ("edge = []", "edge"),
        ("[edge]\nport = '80a'", "edge.port"),
        ("[edge]\nport = 70000", "edge.port"),
        ("[edge]\nhost = 'localhost'", "host must be an IP address"),
        ("[notifications]\nvisibility_timeout_seconds = nan", "notifications.visibility_timeout_seconds"),
        ("[log]\nlevel = 'loud'", "log.level"),
        ("api_key = 12345678901234567", "api_key"),
        ("organisation = 'a b'", "organisation"),
        ("data_directory = ''", "data_directory"),
        ("= 5", "bellringer.toml cannot be read"),
        ("a = 1\na = 2", "bellringer.toml cannot be read"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_the_setting_at_fault(file: Path, text: str, named: str) -> None:
    file.write_text(text)
    assert named in refusal({})


def test_a_file_that_is_not_text_is_refused(file: Path) -> None:
    file.write_bytes(b"organisation = '\xff'")
    assert refusal({}).startswith("bellringer.toml cannot be read: ")


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    assert "nowhere.toml cannot be read" in refusal({}, tmp_path / "nowhere.toml")
    assert "cannot be read" in refusal({}, tmp_path)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("BELLRINGER_PORT", "eighty"),
        ("BELLRINGER_PORT", ""),
        ("BELLRINGER_PORT", "0"),
        ("BELLRINGER_PORT", "8080.5"),
        ("BELLRINGER_DATABASE_POOL_SIZE", "3"),
        ("BELLRINGER_MAX_BODY_BYTES", "1000"),
        ("BELLRINGER_VISIBILITY_TIMEOUT_SECONDS", "nan"),
        ("BELLRINGER_VISIBILITY_TIMEOUT_SECONDS", "inf"),
        ("BELLRINGER_QUEUE_VISIBILITY_TIMEOUT_SECONDS", "0"),
        ("BELLRINGER_DIGEST_WINDOW_SECONDS", "-1"),
        ("BELLRINGER_LOG_LEVEL", "loud"),
        ("BELLRINGER_LOG_FORMAT", "xml"),
        ("BELLRINGER_ORGANISATION", "a b"),
        ("BELLRINGER_ENVIRONMENT", ""),
        ("BELLRINGER_API_KEY", "too short"),
        ("BELLRINGER_API_KEY", "sixteen characters with spaces"),
        ("BELLRINGER_API_KEY", "schlüsselschlüssel"),
        ("BELLRINGER_DATA_DIRECTORY", ""),
    ],
)
def test_a_value_that_cannot_work_is_refused_with_its_variable(file: Path, variable: str, value: str) -> None:  # noqa: ARG001
    assert refusal({variable: value}).startswith(f"{variable}: ")


def test_a_variable_inside_what_is_no_table_is_refused(file: Path) -> None:
    file.write_text("database = 5")
    assert refusal({"BELLRINGER_DATABASE_URL": "postgresql:///bell"}) == "database must be a table"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("BELLRINGER_API_KEY", "hunter2"),
        ("BELLRINGER_API_KEY", "hunter2 hunter2 hunter2"),
        ("BELLRINGER_SMTP_URL", "imap://bell:hunter2@mail.acme.example"),
        ("BELLRINGER_SMTP_URL", "smtp://bell:hunter2@mail.acme.example/path"),
        ("BELLRINGER_SMTP_URL", "smtp://bell:hunter2#@mail.acme.example"),
        ("BELLRINGER_DATABASE_URL", "mysql://bell:hunter2@db.acme.example/bell"),
        ("BELLRINGER_DATABASE_URL", "hunter2"),
    ],
)
def test_a_secret_that_is_refused_is_not_shown(file: Path, variable: str, value: str) -> None:  # noqa: ARG001
    assert "hunter2" not in refusal({variable: value})


def test_settings_do_not_change_once_they_are_read(file: Path) -> None:  # noqa: ARG001
    config = read_config({})
    with pytest.raises(AttributeError):
        config.organisation = "umbrella"  # type: ignore[misc]
    assert isinstance(config, msgspec.Struct)
