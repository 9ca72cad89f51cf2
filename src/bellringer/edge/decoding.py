"""JSON bodies into records, with errors that name the field."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from bellringer.kernel.errors import InvalidInput

T = TypeVar("T")

_PATH = re.compile(r" - at `(?P<key>key in )?\$(?P<path>[^`]*)`$")
_NAMED_FIELD = re.compile(r"(?:missing required|unknown) field `(?P<name>[^`]*)`")


def decode_json(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode a body. Raises `InvalidInput` with the path of the field at fault, such as `[2].recipients[0]`."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise invalid_input(str(error)) from None
    except msgspec.DecodeError as error:
        raise InvalidInput(f"the body is not valid JSON: {error}", field="body") from None
    except UnicodeDecodeError:
        raise InvalidInput("the body is not valid UTF-8", field="body") from None
    except RecursionError:
        raise InvalidInput("the body is nested too deeply", field="body") from None


def invalid_input(message: str) -> InvalidInput:
    """An error of msgspec's validation as `InvalidInput`, with the field taken out of the message."""
    path = ""
    if match := _PATH.search(message):
        message = message[: match.start()]
        path = match["path"].lstrip(".")
    if match := _NAMED_FIELD.search(message):
        path = f"{path}.{match['name']}" if path else match["name"]
    return InvalidInput(message, field=path or "body")
