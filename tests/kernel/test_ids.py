from __future__ import annotations

import importlib.util
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from types import ModuleType, SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from bellringer.kernel.ids import uuid7


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
