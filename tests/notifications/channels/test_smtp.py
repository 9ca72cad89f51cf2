"""Sending against real SMTP servers that take, refuse, stumble and go away."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.destination import Destination, hang_up
from tests.support.waiting import PATIENCE_SECONDS, until

from bellringer.notifications.channels.smtp import SmtpConfig, SmtpTransport, SmtpUnreachable, parse_smtp_url

ANN, BOB, CID = "ann@acme.example", "bob@acme.example", "cid@acme.example"
SENDER = "Bellringer <noreply@acme.example>"
MESSAGE = b"Subject: hello\r\n\r\nOne\r\n.dot\r\n..\r\n\r\nlast\r\n"


@pytest.fixture
async def destination() -> AsyncIterator[Destination]:
    opened = Destination()
    await opened.start()
    yield opened
    opened.gate.set()
    await opened.stop()


@asynccontextmanager
async def transport_to(
    destination: Destination, *, connections: int = 4, timeout_seconds: float = PATIENCE_SECONDS, idle: float = 60.0
) -> AsyncIterator[SmtpTransport]:
    config = SmtpConfig(connections=connections, timeout_seconds=timeout_seconds, idle_seconds=idle)
    transport = SmtpTransport(destination.url, SENDER, config)
    yield transport
    await transport.close()


@pytest.fixture
async def transport(destination: Destination) -> AsyncIterator[SmtpTransport]:
    async with transport_to(destination) as opened:
        yield opened


async def send(transport: SmtpTransport, *recipients: str) -> dict[str, tuple[str, str]]:
    """Send, and say per recipient what became of it and what the server said."""
    outcomes = await transport.send(recipients, MESSAGE)
    assert [outcome.address for outcome in outcomes] == list(recipients)
    return {outcome.address: (outcome.state, outcome.reply) for outcome in outcomes}


async def states(transport: SmtpTransport, *recipients: str) -> list[str]:
    return [state for state, _ in (await send(transport, *recipients)).values()]


async def test_a_message_arrives_byte_by_byte_with_all_its_recipients(
    destination: Destination, transport: SmtpTransport
) -> None:
    assert await send(transport, ANN, BOB) == {ANN: ("sent", "taken as 42"), BOB: ("sent", "taken as 42")}
    assert destination.received == [([ANN, BOB], MESSAGE)]


async def test_each_recipient_has_the_answer_that_was_its_own(
    destination: Destination, transport: SmtpTransport
) -> None:
    destination.script |= {BOB: "550 5.1.1 nobody here", CID: "450 4.2.1 mailbox busy"}
    assert await send(transport, ANN, BOB, CID) == {
        ANN: ("sent", "taken as 42"),
        BOB: ("failed", "550 5.1.1 nobody here"),
        CID: ("pending", "450 4.2.1 mailbox busy"),
    }
    assert destination.received == [([ANN], MESSAGE)]


async def test_nothing_is_sent_when_every_recipient_is_refused(
    destination: Destination, transport: SmtpTransport
) -> None:
    destination.script |= {ANN: "550 nobody", BOB: "451 later"}
    assert await states(transport, ANN, BOB) == ["failed", "pending"]
    assert destination.begun == 0


@pytest.mark.parametrize("stage", ["MAIL", "before DATA", "DATA"])
@pytest.mark.parametrize(
    ("said", "state"), [("451 later", "pending"), ("550 never", "failed"), ("421 closing", "pending")]
)
async def test_what_is_said_to_the_message_is_said_to_all_its_recipients(
    destination: Destination, transport: SmtpTransport, stage: str, said: str, state: str
) -> None:
    destination.script[stage] = said
    assert await send(transport, ANN, BOB) == {ANN: (state, said), BOB: (state, said)}
    assert destination.received == []
    destination.script.clear()
    assert await states(transport, ANN) == ["sent"]
    assert destination.received == [([ANN], MESSAGE)]


@pytest.mark.parametrize("said", ["nonsense", "299 perhaps", "399 go on"])
async def test_an_answer_that_is_none_leaves_the_outcome_open(
    destination: Destination, transport: SmtpTransport, said: str
) -> None:
    destination.script["DATA"] = said
    assert await states(transport, ANN) == ["pending"]
    destination.script.clear()
    assert await states(transport, ANN) == ["sent"]


@pytest.mark.parametrize("stage", ["MAIL", ANN, "before DATA", "DATA"])
async def test_a_server_that_hangs_up_leaves_the_outcome_open(
    destination: Destination, transport: SmtpTransport, stage: str
) -> None:
    destination.script[stage] = hang_up
    assert await states(transport, ANN, BOB) == ["pending", "pending"]
    destination.script.clear()
    assert await states(transport, ANN, BOB) == ["sent", "sent"]


async def test_an_answer_that_does_not_come_in_time_leaves_the_outcome_open(destination: Destination) -> None:
    destination.gate.clear()
    async with transport_to(destination, timeout_seconds=0.3) as transport:
        assert await states(transport, ANN) == ["pending"]
        destination.gate.set()
        assert await states(transport, ANN) == ["sent"]


async def test_a_server_that_is_down_is_unreachable(destination: Destination, transport: SmtpTransport) -> None:
    await destination.stop()
    with pytest.raises(SmtpUnreachable):
        await transport.send([ANN], MESSAGE)
    await destination.start()
    assert await states(transport, ANN) == ["sent"]


@pytest.mark.parametrize("stage", ["greeting", "EHLO"])
@pytest.mark.parametrize("said", ["554 go away", "421 too busy"])
async def test_a_server_that_does_not_let_us_in_refuses_us_and_no_recipient(
    destination: Destination, transport: SmtpTransport, stage: str, said: str
) -> None:
    destination.script[stage] = said
    with pytest.raises(SmtpUnreachable, match=said):
        await transport.send([ANN], MESSAGE)
    destination.script.clear()
    assert await states(transport, ANN) == ["sent"]


async def test_a_login_that_is_refused_is_no_recipients_fault(destination: Destination) -> None:
    url = destination.url.replace("smtp://", "smtp://user:secret@")
    transport = SmtpTransport(url, SENDER, SmtpConfig())
    with pytest.raises(SmtpUnreachable):
        await transport.send([ANN], MESSAGE)
    await transport.close()


async def test_what_the_server_says_is_kept_short_and_in_one_line(
    destination: Destination, transport: SmtpTransport
) -> None:
    destination.script["DATA"] = "550-first line\r\n550 second \x07" + "x" * 400
    ((state, reply),) = (await send(transport, ANN)).values()
    assert state == "failed"
    assert reply.isprintable()
    assert reply.startswith("550 first line second")
    destination.script["DATA"] = lambda: "550 " + "x" * 450
    ((_, reply),) = (await send(transport, ANN)).values()
    assert len(reply) <= 500


async def test_a_connection_is_kept_and_used_again(destination: Destination, transport: SmtpTransport) -> None:
    seen = set()
    for _ in range(5):
        assert await states(transport, ANN) == ["sent"]
        assert len(destination.connections) == 1
        seen.add(destination.connections[0])
    destination.script |= {BOB: "550 nobody", "DATA": "451 later"}
    await states(transport, BOB)
    await states(transport, ANN)
    destination.script.clear()
    await states(transport, ANN)
    assert set(destination.connections) == seen


async def test_no_more_connections_than_set_are_open_at_once(destination: Destination) -> None:
    destination.gate.clear()
    async with transport_to(destination, connections=3) as transport:
        sending = [asyncio.create_task(states(transport, ANN)) for _ in range(10)]

        async def three_have_begun() -> bool:
            return destination.begun == 3

        await until(three_have_begun)
        assert len(destination.connections) == 3
        destination.gate.set()
        assert await asyncio.gather(*sending) == [["sent"]] * 10
        assert destination.most_at_once <= 3
        assert len(destination.connections) <= 3


async def test_a_server_that_restarts_loses_no_message(destination: Destination, transport: SmtpTransport) -> None:
    assert await asyncio.gather(*(states(transport, ANN) for _ in range(4))) == [["sent"]] * 4
    await destination.stop()
    await destination.start()
    assert await asyncio.gather(*(states(transport, ANN) for _ in range(4))) == [["sent"]] * 4


async def test_a_connection_that_was_idle_for_too_long_is_not_used_again(destination: Destination) -> None:
    async with transport_to(destination, idle=0.0) as transport:
        await states(transport, ANN)
        (first,) = destination.connections
        assert await states(transport, ANN) == ["sent"]
        assert destination.connections != [first]


async def test_closing_closes_what_is_kept_open(destination: Destination, transport: SmtpTransport) -> None:
    await asyncio.gather(*(states(transport, ANN) for _ in range(3)))
    await transport.close()

    async def all_are_gone() -> bool:
        return not destination.connections

    await until(all_are_gone)


async def test_a_send_that_is_cancelled_frees_its_connection(destination: Destination) -> None:
    async with transport_to(destination, connections=1) as transport:
        destination.gate.clear()
        sending = asyncio.create_task(states(transport, ANN))

        async def it_has_begun() -> bool:
            return destination.begun == 1

        await until(it_has_begun)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        destination.gate.set()
        assert await asyncio.wait_for(states(transport, BOB), PATIENCE_SECONDS) == ["sent"]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for localhost that signs itself, with its key."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    subprocess.run(
        [*command.split(), "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", path, "-out", path.with_suffix(".crt")],
        check=True,
        capture_output=True,
    )
    with path.open("a") as both:
        both.write(path.with_suffix(".crt").read_text())
    return path


@pytest.mark.parametrize("is_trusted", [True, False])
async def test_a_server_that_offers_encryption_is_spoken_to_encrypted_if_it_is_trusted(
    certificate: Path, monkeypatch: pytest.MonkeyPatch, is_trusted: bool
) -> None:
    if is_trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    destination = Destination()
    await destination.start(context)
    async with transport_to(destination) as transport:
        if is_trusted:
            assert await states(transport, ANN) == ["sent"]  # the server takes no mail in the clear
            assert destination.received == [([ANN], MESSAGE)]
        else:
            with pytest.raises(SmtpUnreachable):
                await transport.send([ANN], MESSAGE)
            destination.connections.clear()  # nobody tells the server when a handshake fails
    await destination.stop()


@pytest.mark.parametrize(
    "url",
    ["smtp://mail.acme.example", "smtp://user:p%40ss@mail.acme.example:587", "smtps://mail.acme.example:465/"],
)
def test_a_url_of_a_server_is_taken(url: str) -> None:
    assert parse_smtp_url(url).hostname == "mail.acme.example"
    assert SmtpConfig(url=url).url == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "mail.acme.example",
        "http://mail.acme.example",
        "smtp://",
        "smtp://host:0",
        "smtp://host:99999",
        "smtp://host/path",
        "smtp://host?tls=yes",
        "smtp://host#part",
    ],
)
def test_what_is_no_url_of_a_server_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"SMTP URL|[Pp]ort"):
        SmtpConfig(url=url)
