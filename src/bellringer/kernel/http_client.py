"""What went wrong with an HTTP request, in words."""

from __future__ import annotations

import re

from pyreqwest.exceptions import PyreqwestError

_OS_ERROR = re.compile(r" \(os error \d+\)$")


def reason_of(error: PyreqwestError) -> str:
    """The innermost cause of an error, which is the one that a person can act on."""
    causes = (getattr(error, "details", None) or {}).get("causes") or []
    message = str(causes[-1]["message"]) if causes else error.message
    message = _OS_ERROR.sub("", message)
    return message if message[:2].isupper() else message[:1].lower() + message[1:]
