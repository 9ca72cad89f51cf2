"""The error base, and one class per decision that a caller makes.

The docstring of a class is its default message. No HTTP codes here: `bellringer.edge.problems` maps classes to them.
"""

from __future__ import annotations

import math


class BellringerError(Exception):
    """Something went wrong inside Bellringer."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class InvalidInput(BellringerError):
    """The input is not valid. The caller must change it; nothing was stored."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class TooLarge(InvalidInput):
    """The input is larger than the limit."""


class UnsupportedFormat(InvalidInput):
    """The content type of the input is not one that is understood here."""


class NotAuthenticated(BellringerError):
    """A valid API key is needed."""


class NotAllowed(BellringerError):
    """The API key is valid and does not reach that far."""


class NotFound(BellringerError):
    """There is no such thing, or it belongs to another environment."""


class Conflict(BellringerError):
    """The request contradicts something that was stored before."""


class Unavailable(BellringerError):
    """The outcome is not known or the service cannot take the work now. The caller may try again."""

    retry_after_seconds = 1


class Overloaded(Unavailable):
    """Too much work is waiting already. Nothing was taken on; try again later."""


class RateLimited(Unavailable):
    """The caller is over a limit of its own. Nothing was taken on; try again later."""

    def __init__(self, message: str | None = None, *, wait_seconds: float) -> None:
        super().__init__(message)
        self.retry_after_seconds = max(1, math.ceil(wait_seconds))


class StartupError(BellringerError):
    """The process cannot start. The message is one line for the person who started it."""
