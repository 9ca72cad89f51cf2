"""Several senders and receivers on one queue at once, each with a client of its own."""

from __future__ import annotations

from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import pytest
from tests.broker.sqs.conftest import Queues, client_of
from tests.support.server import Server

SENDERS, RECEIVERS, BATCHES = 4, 4, 20
TOTAL = SENDERS * BATCHES * 10


class Crowd:
    """Sends and receives from many threads; remembers what was received, in order."""

    def __init__(self, server: Server, pair: dict[str, str], url: str) -> None:
        self._clients = [client_of(server, pair) for _ in range(SENDERS + RECEIVERS)]
        self._url = url
        self._lock = Lock()
        self._is_fifo = url.endswith(".fifo")
        self.received: list[str] = []

    def work(self) -> None:
        """Send everything, and receive until everything was received."""
        with ThreadPoolExecutor(SENDERS + RECEIVERS) as threads:
            works = [threads.submit(self._send, number) for number in range(SENDERS)]
            works += [threads.submit(self._receive, number) for number in range(RECEIVERS)]
        for work in works:
            work.result()

    def _send(self, sender: int) -> None:
        for batch in range(BATCHES):
            places = range(batch * 10, batch * 10 + 10)
            group = {"MessageGroupId": str(sender)} if self._is_fifo else {}
            entries = [{"Id": str(place), "MessageBody": f"{sender} {place}", **group} for place in places]
            answer = self._clients[sender].send_message_batch(QueueUrl=self._url, Entries=entries)
            assert len(answer["Successful"]) == 10

    def _receive(self, receiver: int) -> None:
        client = self._clients[SENDERS + receiver]
        while len(self.received) < TOTAL:
            found = client.receive_message(QueueUrl=self._url, MaxNumberOfMessages=10, WaitTimeSeconds=1)
            messages = found.get("Messages", [])
            with self._lock:
                self.received += [message["Body"] for message in messages]
            if messages:
                entries = [
                    {"Id": str(place), "ReceiptHandle": message["ReceiptHandle"]}
                    for place, message in enumerate(messages)
                ]
                answer = client.delete_message_batch(QueueUrl=self._url, Entries=entries)
                assert len(answer["Successful"]) == len(messages)


@pytest.mark.parametrize("is_fifo", [False, True])
def test_every_message_comes_once_and_in_the_order_of_its_group(
    server: Server, pair: dict[str, str], queues: Queues, *, is_fifo: bool
) -> None:
    url = queues.fifo(ContentBasedDeduplication="true") if is_fifo else queues.make()
    crowd = Crowd(server, pair, url)
    crowd.work()
    expected = Counter(f"{sender} {place}" for sender in range(SENDERS) for place in range(BATCHES * 10))
    assert Counter(crowd.received) == expected
    if is_fifo:
        places = defaultdict(list)
        for body in crowd.received:
            sender, _, place = body.partition(" ")
            places[sender].append(int(place))
        assert all(found == sorted(found) for found in places.values())
    assert queues.attribute(url, "ApproximateNumberOfMessages") == "0"
    assert queues.attribute(url, "ApproximateNumberOfMessagesNotVisible") == "0"
