"""Receipt handles: which attempt at which message, signed, so that only who claimed a message can name its attempt.

The code of a handle is a piece of a keyed stream (SHAKE128 over the secret and the block's number) that 64 neighbours
of one claim share: one hash for 64 handles took signing from 30 % of the time of a large claim to 6 %.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Iterable

import msgspec

from bellringer.broker.model import ReceiptHandle
from bellringer.kernel.errors import InvalidInput

_CONTENT = struct.Struct(">IQQI")
_BLOCK = struct.Struct(">IQIQ")
_CODE_BYTES = 9
_HANDLE_CHARACTERS = 2 * (_CONTENT.size + _CODE_BYTES)
_SEQS_PER_BLOCK = 64


class ReceiptInvalid(InvalidInput):
    """This is no receipt handle, or it is one of another queue."""


class Receipt(msgspec.Struct, frozen=True):
    """What a handle says. `claim_seq` is 0 for a message that is tracked by itself."""

    claim_seq: int
    seq: int
    attempts: int


class Receipts:
    """Issues and reads handles under one secret of the database."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def issue(
        self, queue_number: int, claim_seq: int, first_seq: int, number: int, attempts: int
    ) -> list[ReceiptHandle]:
        """The handles of an attempt at so many messages with consecutive seqs."""
        codes = _Codes(self._secret)
        return [
            ReceiptHandle(
                (
                    _CONTENT.pack(queue_number, claim_seq, seq, attempts)
                    + codes.code(queue_number, claim_seq, attempts, seq)
                ).hex()
            )
            for seq in range(first_seq, first_seq + number)
        ]

    def read(self, queue_number: int, handles: Iterable[str]) -> list[Receipt]:
        """What handles of this queue say. Raises `ReceiptInvalid`."""
        codes = _Codes(self._secret)
        receipts: list[Receipt] = []
        for handle in handles:
            try:
                raw = bytes.fromhex(handle) if len(handle) == _HANDLE_CHARACTERS else b""
            except ValueError:
                raw = b""
            # Shorter: there was white space among the digits.
            if 2 * len(raw) != _HANDLE_CHARACTERS:
                raise ReceiptInvalid("this is not a receipt handle", field="receipt_handle")
            queue, claim_seq, seq, attempts = _CONTENT.unpack_from(raw)
            if not hmac.compare_digest(raw[_CONTENT.size :], codes.code(queue, claim_seq, attempts, seq)):
                raise ReceiptInvalid("this is not a receipt handle", field="receipt_handle")
            if queue != queue_number:
                raise ReceiptInvalid("this receipt handle is of another queue", field="receipt_handle")
            receipts.append(Receipt(claim_seq, seq, attempts))
        return receipts


class _Codes:
    """The codes of one call; each block of the stream is made once."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._blocks: dict[tuple[int, int, int, int], bytes] = {}

    def code(self, queue_number: int, claim_seq: int, attempts: int, seq: int) -> bytes:
        """The code of a message in a claim."""
        number, place = divmod(seq, _SEQS_PER_BLOCK)
        key = (queue_number, claim_seq, attempts, number)
        block = self._blocks.get(key)
        if block is None:
            stream = hashlib.shake_128(self._secret + _BLOCK.pack(*key))
            block = self._blocks[key] = stream.digest(_SEQS_PER_BLOCK * _CODE_BYTES)
        return block[place * _CODE_BYTES : (place + 1) * _CODE_BYTES]
