"""PostgreSQL goes away under load and comes back: the server stays, says so meanwhile, and loses nothing."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.postgres import ExternalPostgres, external_postgres
from tests.support.server import EventStream, Server, serving, until
from tests.support.smtp import SmtpServer

pytestmark = pytest.mark.scenario

RESTARTS = 3
PEOPLE = [f"person-{number}@acme.example" for number in range(6)]
SETTINGS = {"BELLRINGER_DIGEST_WINDOW_SECONDS": "1", "BELLRINGER_VISIBILITY_TIMEOUT_SECONDS": "2"}


def make_event(number: int) -> dict[str, object]:
    audience = sorted(random.Random(number).sample(PEOPLE, 2))
    return {"type": "task.failed", "recipients": audience, "data": {"number": number}}


def check(server: Server, smtp: SmtpServer, stream: EventStream, process_id: int) -> None:
    """What must hold in the end, however often PostgreSQL was gone."""
    server.until_settled()
    expected = {notification_id: event["recipients"] for notification_id, event in stream.accepted.items()}
    smtp.check_arrivals(expected, exactly_once=False)
    overview = server.overview()
    assert (overview["events"], overview["failed"]) == (len(expected), 0)
    assert overview["emails"] == len({received.message_id for received in smtp.received})
    # While PostgreSQL was gone, the answer was "not available", and never an error that nobody foresaw.
    assert set(stream.refusals) <= {503}
    assert server.process_id == process_id  # it was never started again
    assert server.interrupt() == 0


@pytest.mark.parametrize(
    "stop", [ExternalPostgres.stop_fast, ExternalPostgres.stop_immediately], ids=["fast", "immediate"]
)
def test_an_external_postgres_is_restarted_under_load(stop: Callable[[ExternalPostgres], None]) -> None:
    with SmtpServer() as smtp, external_postgres() as postgres:
        own = {
            "BELLRINGER_DATABASE_URL": postgres.url,
            "BELLRINGER_API_KEY": "a-key-that-the-tests-set",
            "BELLRINGER_SMTP_URL": smtp.url,
        }
        with serving(SETTINGS | own) as server:
            process_id = server.process_id
            with EventStream(server, make_event) as stream:
                for _ in range(RESTARTS):
                    stream.until_accepted(100)
                    stop(postgres)
                    accepted, refused = len(stream.accepted), stream.refusals[503]
                    for _ in range(3):
                        assert server.readiness() == 503
                    assert server.request("GET", "/livez").status == 200
                    overview = server.request("GET", "/v1/overview")
                    assert (overview.status, overview.headers["retry-after"]) == (503, "1")
                    until(lambda refused=refused: stream.refusals[503] > refused + 8, "events are refused")
                    assert len(stream.accepted) == accepted  # none is accepted by a server that cannot store it
                    postgres.start()
                    until(lambda: server.readiness() == 200, "the server is ready again")
                stream.until_accepted(100)
            check(server, smtp, stream, process_id)


def test_the_embedded_postgres_is_killed_under_load() -> None:
    with SmtpServer() as smtp, serving(SETTINGS | {"BELLRINGER_SMTP_URL": smtp.url}) as server:
        process_id = server.process_id
        with EventStream(server, make_event) as stream:
            for _ in range(RESTARTS):
                stream.until_accepted(100)
                postmaster = server.postmaster()
                # While one of its processes lives on, PostgreSQL does not start again: time to look.
                with stopped(checkpointer(server)):
                    os.kill(postmaster, signal.SIGKILL)
                    until(lambda: server.readiness() == 503, "the server says that it is not ready")
                    for _ in range(3):
                        assert server.readiness() == 503
                until(lambda: server.readiness() == 200, "the server is ready again")
                assert server.postmaster() != postmaster
            stream.until_accepted(100)
        check(server, smtp, stream, process_id)
        assert "PostgreSQL ended; starting it again" in server.log()
        assert server.postgres_processes() == []


@contextmanager
def stopped(process_id: int) -> Iterator[None]:
    os.kill(process_id, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process_id, signal.SIGCONT)


def checkpointer(server: Server) -> int:
    """The id of that process of the embedded PostgreSQL; no client waits for it."""
    processes = server.postgres_processes()
    return next(pid for pid in processes if b"checkpointer" in Path(f"/proc/{pid}/cmdline").read_bytes())


def test_a_server_whose_postgres_is_gone_stops_in_order() -> None:
    with external_postgres() as postgres:
        own = {"BELLRINGER_DATABASE_URL": postgres.url, "BELLRINGER_API_KEY": "a-key-that-the-tests-set"}
        with serving(SETTINGS | own) as server:
            notification_id = server.tell(make_event(0))
            postgres.stop_immediately()
            until(lambda: server.readiness() == 503, "the server says that it is not ready")
            assert server.terminate() == 0
            refused = server.run("up", settings={"BELLRINGER_LOG_LEVEL": "warning"})
            assert refused.returncode == 1
            assert refused.stderr.startswith("bellringer: the database cannot be reached: ")
            assert refused.stderr.count("\n") == 1
            postgres.start()
            server.start()
            server.until_settled()
            assert server.outcomes(notification_id) == dict.fromkeys(make_event(0)["recipients"], "sent")  # type: ignore[call-overload]
