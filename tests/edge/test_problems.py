from __future__ import annotations

import asyncpg
import msgspec
import pytest

from bellringer.edge.problems import CONTENT_TYPE, Problem, problem_of
from bellringer.kernel.errors import (
    BellringerError,
    Conflict,
    InvalidInput,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    Overloaded,
    RateLimited,
    StartupError,
    TooLarge,
    Unavailable,
    UnsupportedFormat,
)


class ReceiptLost(NotFound):
    """A subsystem's own kind of an error."""


STATUSES = [
    (InvalidInput("no", field="eggs[1]"), 400, "invalid-input"),
    (TooLarge("no", field="body"), 413, "too-large"),
    (UnsupportedFormat("no", field="Content-Type"), 415, "unsupported-format"),
    (NotAuthenticated("no"), 401, "not-authenticated"),
    (NotAllowed("no"), 403, "not-allowed"),
    (NotFound("no"), 404, "not-found"),
    (ReceiptLost("no"), 404, "not-found"),
    (Conflict("no"), 422, "conflict"),
    (RateLimited("no", wait_seconds=0.5), 429, "rate-limited"),
    (Overloaded("no"), 503, "overloaded"),
    (Unavailable("no"), 503, "unavailable"),
]


def members(problem: Problem) -> dict[str, object]:
    decoded: dict[str, object] = msgspec.json.decode(problem.body())
    return decoded


@pytest.mark.parametrize(("error", "status", "slug"), STATUSES)
def test_every_class_of_error_has_its_status_and_type(error: BellringerError, status: int, slug: str) -> None:
    problem = problem_of(error)
    body = members(problem)
    assert problem.status == body["status"] == status
    assert body["type"] == f"urn:bellringer:problem:{slug}"
    assert body["detail"] == "no"
    assert body["title"]
    assert body.get("field") == getattr(error, "field", None)
    assert problem.headers()["content-type"] == CONTENT_TYPE == "application/problem+json"


def test_a_problem_without_a_field_does_not_mention_one() -> None:
    assert set(members(problem_of(NotFound("no")))) == {"type", "title", "status", "detail"}


def test_who_is_not_known_is_told_how_to_say_who_they_are() -> None:
    assert problem_of(NotAuthenticated()).headers()["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("error", [Unavailable(), Overloaded()])
def test_who_may_try_again_is_told_when(error: Unavailable) -> None:
    assert problem_of(error).headers()["retry-after"] == "1"


@pytest.mark.parametrize(("wait_seconds", "told"), [(0.001, 1), (1.0, 1), (1.001, 2), (1000.0, 1000)])
def test_who_is_over_a_limit_is_told_when_to_try_again_in_whole_seconds(wait_seconds: float, told: int) -> None:
    problem = problem_of(RateLimited(wait_seconds=wait_seconds))
    assert problem.headers()["retry-after"] == str(told)
    assert members(problem)["retry_after_seconds"] == told


@pytest.mark.parametrize(
    "error",
    [
        KeyError("hunter2"),
        asyncpg.UndefinedTableError('relation "hunter2" does not exist'),
        StartupError("hunter2"),
        BellringerError("hunter2"),
        UnicodeDecodeError("utf-8", b"hunter2", 0, 1, "hunter2"),
    ],
)
def test_an_error_that_nobody_foresaw_is_an_internal_one_and_keeps_its_text(error: Exception) -> None:
    problem = problem_of(error)
    assert problem.status == 500
    assert b"hunter2" not in problem.body()


def test_an_error_without_words_says_what_its_class_says() -> None:
    assert members(problem_of(Overloaded()))["detail"] == Overloaded.__doc__
