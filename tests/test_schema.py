"""The schema of the migrated database, as it stands in schema.sql: what a migration changes is seen in review."""

from __future__ import annotations

import difflib
import os
import re
import subprocess
from pathlib import Path

import pytest
from tests.support.postgres import Cluster

from bellringer.kernel.embedded_postgres import binary

SCHEMA = Path(__file__).with_name("schema.sql")
UPDATE = "UPDATE_SCHEMA"


def schema_of(cluster: Cluster, database: str) -> str:
    """What pg_dump says of a database's schema, without what says nothing about it."""
    arguments = cluster.arguments(database)
    command = [str(binary("pg_dump")), "--schema-only", "--no-owner", "--no-privileges"]
    target = [f"--host={arguments['host']}", f"--port={arguments['port']}", f"--username={arguments['user']}"]
    dumped = subprocess.check_output([*command, *target, database], text=True, timeout=60)
    dumped = re.sub(r"\$(_?)\$.*?\$\1\$", "$$ … $$", dumped, flags=re.DOTALL)  # the bodies stand in the migrations
    paragraphs = []
    for paragraph in dumped.split("\n\n"):
        lines = [line for line in paragraph.splitlines() if line and not is_noise(line)]
        if lines:
            paragraphs.append("\n".join(lines))
    return "\n\n".join(paragraphs) + "\n"


def is_noise(line: str) -> bool:
    """Whether a line is about the dump: a comment, a setting of the session, a restriction of psql."""
    return line.startswith(("--", "SET ", "SELECT pg_catalog.set_config(", "\\restrict ", "\\unrestrict "))


@pytest.mark.parametrize("cluster", ["postgres18"], indirect=True)
async def test_the_schema_is_the_one_that_was_reviewed(cluster: Cluster) -> None:
    schema = schema_of(cluster, "template1")
    if os.environ.get(UPDATE):
        SCHEMA.write_text(schema)
    difference = difflib.unified_diff(
        SCHEMA.read_text().splitlines(), schema.splitlines(), "tests/schema.sql", "the migrated database", lineterm=""
    )
    if difference := "\n".join(difference):
        pytest.fail(
            f"{difference}\n\nIf that is what the migrations are meant to do, write it down and have it reviewed:\n"
            f"{UPDATE}=1 .venv/bin/pytest tests/test_schema.py"
        )
