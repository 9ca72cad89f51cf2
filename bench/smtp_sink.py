"""An SMTP server that takes everything and keeps nothing: counts messages, recipients and their arrival."""

from __future__ import annotations

import asyncio
import sys
import time


class Sink(asyncio.Protocol):
    """One connection. The state is a buffer of bytes and whether they belong to a message."""

    messages = 0
    recipients = 0
    last_arrival = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._buffer = b""
        self._in_data = False
        transport.write(b"220 sink\r\n")

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while True:
            end = self._buffer.find(b"\r\n.\r\n" if self._in_data else b"\r\n")
            if end < 0:
                return
            if self._in_data:
                self._buffer = self._buffer[end + 5 :]
                self._in_data = False
                Sink.messages += 1
                Sink.last_arrival = time.time()
                self._transport.write(b"250 taken\r\n")
            else:
                line, self._buffer = self._buffer[:end], self._buffer[end + 2 :]
                self._answer(line[:4].upper())

    def _answer(self, verb: bytes) -> None:
        if verb == b"RCPT":
            Sink.recipients += 1
        self._in_data = verb == b"DATA"
        if verb == b"STAT":  # not SMTP: how the benchmark reads the counts
            answer = f"250 {Sink.messages} {Sink.recipients} {Sink.last_arrival}"
        else:
            answer = "354 go on" if self._in_data else "250 ok"
        self._transport.write(answer.encode() + b"\r\n")


async def main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Sink, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
