from __future__ import annotations

import importlib.util
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from types import ModuleType, SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from bellringer.kernel.ids import first_uuid7_at, time_of_uuid7, uuid7

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
MOMENTS = st.datetimes(
    min_value=EPOCH.replace(tzinfo=None), max_value=EPOCH.replace(tzinfo=None, year=9999), timezones=st.just(UTC)
)


def ids_of_a_process(*clock_readings: int) -> ModuleType:
    """The module as a new process has it, on a host whose clock shows these nanoseconds, one per id."""
    specification = importlib.util.find_spec("bellringer.kernel.ids")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    readings = iter(clock_readings)
    vars(module)["time"] = SimpleNamespace(time_ns=lambda: next(readings))
    return module


def test_an_id_has_the_bits_of_rfc_9562() -> None:
    made = uuid7()
    assert made.version == 7
    assert made.variant == uuid.RFC_4122


def test_an_id_tells_when_it_was_made() -> None:
    before = time.time_ns() // 1_000_000
    made = uuid7()
    assert before <= made.int >> 80 <= time.time_ns() // 1_000_000 + 1


def test_the_example_of_rfc_9562_is_read_as_the_rfc_reads_it() -> None:
    example = uuid.UUID("017F22E2-79B0-7CC3-98C4-DC0C0C07398F")  # appendix A.6
    assert time_of_uuid7(example) == datetime(2022, 2, 22, 19, 22, 22, tzinfo=UTC)


def test_ids_of_one_process_are_strictly_ascending() -> None:
    made = [uuid7() for _ in range(10_000)]  # more than the counter holds in one millisecond
    assert all(first < second for first, second in pairwise(made))


def test_threads_get_different_ids_and_each_its_own_in_ascending_order() -> None:
    with ThreadPoolExecutor(4) as threads:
        lots = list(threads.map(lambda _: [uuid7() for _ in range(2000)], range(4)))
    assert all(lot == sorted(lot) for lot in lots)
    assert len({made for lot in lots for made in lot}) == 4 * 2000


def test_a_clock_that_steps_back_does_not_turn_the_order_round() -> None:
    hour = 3600 * 10**9
    process = ids_of_a_process(10 * hour, 9 * hour, 9 * hour + 10**6, 10 * hour + 10**7)
    first, during, later, after = (process.uuid7() for _ in range(4))
    assert first < during < later < after
    assert first.int >> 80 == during.int >> 80 == 10 * 3600 * 1000  # borrowed, until the clock has caught up
    assert after.int >> 80 == 10 * 3600 * 1000 + 10


@given(st.lists(st.integers(min_value=0, max_value=2**48 * 10**6 - 1), min_size=2, max_size=50))
def test_whatever_the_clock_shows_ids_are_ascending_and_well_formed(clock_readings: list[int]) -> None:
    process = ids_of_a_process(*clock_readings)
    made = [process.uuid7() for _ in clock_readings]
    assert all(first < second for first, second in pairwise(made))
    assert all(one.version == 7 and one.variant == uuid.RFC_4122 for one in made)


@given(MOMENTS)
def test_the_first_id_of_a_moment_stands_between_the_millisecond_before_and_every_id_of_its_own(
    moment: datetime,
) -> None:
    first = first_uuid7_at(moment)
    nanoseconds = (moment - EPOCH) // timedelta(microseconds=1) * 1000
    own = ids_of_a_process(nanoseconds).uuid7()
    assert first <= own
    assert time_of_uuid7(first) == time_of_uuid7(own)
    assert first.version == 7
    if nanoseconds >= 10**6:
        before = ids_of_a_process(nanoseconds - 10**6).uuid7()
        assert before < first


@given(MOMENTS)
def test_a_moment_survives_its_id_to_the_millisecond(moment: datetime) -> None:
    to_the_millisecond = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    assert time_of_uuid7(first_uuid7_at(moment)) == to_the_millisecond
    assert first_uuid7_at(to_the_millisecond) == first_uuid7_at(moment)
    assert first_uuid7_at(to_the_millisecond + MILLISECOND) > first_uuid7_at(moment)
