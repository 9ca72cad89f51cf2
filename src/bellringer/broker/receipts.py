"""Receipt handles: which attempt at which message, signed, so that only who claimed a message can name its attempt."""

from __future__ import annotations

import base64
import hashlib
import hmac
import struct

import msgspec

from bellringer.broker.model import ReceiptHandle
from bellringer.kernel.errors import InvalidInput

_CONTENT = struct.Struct(">IQQI")
_CODE_BYTES = 9
_HANDLE_BYTES = _CONTENT.size + _CODE_BYTES
_HANDLE_CHARACTERS = _HANDLE_BYTES * 4 // 3


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

    def issue(self, queue_number: int, claim_seq: int, seq: int, attempts: int) -> ReceiptHandle:
        """The handle of an attempt."""
        content = _CONTENT.pack(queue_number, claim_seq, seq, attempts)
        return ReceiptHandle(base64.urlsafe_b64encode(content + self._code(content)).decode())

    def read(self, queue_number: int, handle: str) -> Receipt:
        """What a handle of this queue says. Raises `ReceiptInvalid`."""
        try:
            raw = base64.b64decode(handle.encode(), altchars=b"-_", validate=True)
        except ValueError:
            raw = b""
        # The length of the text too: more padding than needed would decode to the same.
        content, code = raw[: _CONTENT.size], raw[_CONTENT.size :]
        if (
            len(raw) != _HANDLE_BYTES
            or len(handle) != _HANDLE_CHARACTERS
            or not hmac.compare_digest(code, self._code(content))
        ):
            raise ReceiptInvalid("this is not a receipt handle", field="receipt_handle")
        queue, claim_seq, seq, attempts = _CONTENT.unpack(content)
        if queue != queue_number:
            raise ReceiptInvalid("this receipt handle is of another queue", field="receipt_handle")
        return Receipt(claim_seq, seq, attempts)

    def _code(self, content: bytes) -> bytes:
        return hashlib.blake2b(content, key=self._secret, digest_size=_CODE_BYTES).digest()
