"""When schedules fire: against an oracle, across changes of the clock, and what is refused."""

from __future__ import annotations

import itertools
import re
import struct
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from importlib import resources
from io import BytesIO
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.scheduler.cron_peers import UNEXPLAINED, Peer, differences, iterate_croniter, iterate_cronsim
from tests.scheduler.cron_sweep import DENSE, SPARSE, compare_around
from tests.support.cron_oracle import LocalMinutes, changes, every_minute, offsets_of

from bellringer.kernel.errors import InvalidInput
from bellringer.scheduler.cron import expression_of
from bellringer.scheduler.fire_times import check_schedule, fire_times_of
from bellringer.scheduler.model import Schedule
from bellringer.scheduler.zones import stretches_from, zone_of

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
DAY = timedelta(days=1)
START = int(datetime(2000, 1, 1, tzinfo=UTC).timestamp())
ODD_CLOCKS = {
    "Africa/Cairo": 2026,  # put on at midnight
    "Africa/Casablanca": 2026,  # put back for Ramadan
    "Africa/El_Aaiun": 2026,
    "Africa/Juba": 2021,  # changed its zone
    "America/Caracas": 2007,  # put back by half an hour
    "America/Havana": 2026,  # put back from one to midnight
    "America/New_York": 2026,
    "America/Nuuk": 2023,  # changed its zone and stayed on summer time
    "America/Sao_Paulo": 2018,  # put on at midnight
    "Antarctica/Troll": 2026,  # put on by two hours
    "Asia/Beirut": 2026,  # put on at midnight
    "Asia/Gaza": 2026,
    "Asia/Pyongyang": 2018,  # put on by half an hour
    "Australia/Lord_Howe": 2026,  # summer time is half an hour
    "Europe/Berlin": 2026,
    "Pacific/Apia": 2011,  # a day was left out
}

CHANGES = [
    (zone, change)
    for zone, start in ((zone, datetime(year, 1, 1, tzinfo=UTC)) for zone, year in ODD_CLOCKS.items())
    for change in changes(offsets_of(ZoneInfo(zone), start, start + 365 * DAY))
]


def fire_times(cron: str, zone: str, start: str, number: int) -> list[str]:
    """The first fire times after a local time, as the clock there shows them."""
    schedule = fire_times_of(Schedule(cron=cron, time_zone=zone), created_at=NOW)
    upcoming = schedule.upcoming(datetime.fromisoformat(start).replace(tzinfo=ZoneInfo(zone)))
    return [f"{at.astimezone(ZoneInfo(zone)):%d %H:%M%z}" for at in itertools.islice(upcoming, number)]


def after(schedule: Schedule, moment: datetime, *, created_at: datetime = NOW) -> datetime | None:
    return fire_times_of(schedule, created_at=created_at).after(moment)


def test_a_time_of_day_that_the_clock_leaves_out_runs_once_right_after() -> None:
    assert fire_times("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", 2) == ["29 03:00+0200", "30 02:30+0200"]


def test_several_times_that_the_clock_leaves_out_run_once_together() -> None:
    assert fire_times("0,30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", 2) == ["29 03:00+0200", "30 02:00+0200"]


def test_a_time_of_day_that_the_clock_shows_twice_runs_once() -> None:
    assert fire_times("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", 2) == ["25 02:30+0200", "26 02:30+0100"]


def test_a_rhythm_follows_real_time_when_the_clock_is_put_back() -> None:
    assert fire_times("*/30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", 5) == [
        "25 02:00+0200",
        "25 02:30+0200",
        "25 02:00+0100",
        "25 02:30+0100",
        "26 02:00+0100",
    ]


def test_a_rhythm_is_not_made_up_for_when_the_clock_is_put_on() -> None:
    assert fire_times("*/30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", 1) == ["30 02:00+0200"]


def test_a_day_that_the_calendar_left_out_runs_as_the_next_one_begins() -> None:
    assert fire_times("30 2 * * *", "Pacific/Apia", "2011-12-29T01:00", 3) == [
        "29 02:30-1000",
        "31 00:00+1400",
        "31 02:30+1400",
    ]


DOCUMENTED = re.findall(
    r"^\| `(.+)` \| (\w+/\w+) \| (\d{4}-\d\d-\d\d \d\d:\d\d) \| (.+) \|$",
    Path(__file__).parents[2].joinpath("docs", "cron.md").read_text(),
    re.MULTILINE,
)


@pytest.mark.parametrize(("cron", "zone", "start", "shown"), DOCUMENTED)
def test_the_documented_table_is_true(cron: str, zone: str, start: str, shown: str) -> None:
    assert fire_times(cron, zone, start, len(shown.split(", "))) == shown.split(", ")


def test_a_process_that_starts_within_the_repeated_hour_does_not_repeat_what_ran() -> None:
    schedule = Schedule(cron="30 2 * * *", time_zone="Europe/Berlin")
    second_time = datetime(2026, 10, 25, 1, 10, tzinfo=UTC)
    assert second_time.astimezone(ZoneInfo("Europe/Berlin")).strftime("%H:%M fold %Z") == "02:10 fold CET"
    assert after(schedule, second_time) == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


@pytest.mark.parametrize("zone", ["Australia/Lord_Howe", "Pacific/Apia", "America/Havana"])
def test_the_oracle_counts_as_it_would_minute_by_minute(zone: str) -> None:
    start = datetime(ODD_CLOCKS[zone], 1, 1, tzinfo=UTC)
    offsets = offsets_of(ZoneInfo(zone), start, start + 365 * DAY)
    for change in changes(offsets):
        first, last = change - DAY, change + DAY
        for expression in ("*/20 0-2 * * *", "10-50/20 0-3 * * *"):
            table = LocalMinutes(expression, start, start + 365 * DAY).fire_table(offsets)
            assert table.between(first, last) == every_minute(expression, ZoneInfo(zone), first, last)


@pytest.mark.parametrize("zone", ODD_CLOCKS)
def test_fire_times_are_those_of_the_oracle_however_the_clock_is_changed(zone: str) -> None:
    start = datetime(ODD_CLOCKS[zone], 1, 1, tzinfo=UTC)
    offsets = offsets_of(ZoneInfo(zone), start, start + 365 * DAY)
    assert len(offsets) > 1
    for expression in (*SPARSE, *DENSE):
        oracle = LocalMinutes(expression, start, start + 365 * DAY).fire_table(offsets)
        assert sum(compare_around(expression, zone, change, oracle) for change in changes(offsets)) >= 0


def _terms(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    spans = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    steps = st.tuples(spans | st.just("*"), st.integers(1, high)).map(lambda pair: f"{pair[0]}/{pair[1]}")
    return st.lists(st.just("*") | number.map(str) | spans | steps, min_size=1, max_size=3).map(",".join)


EXPRESSIONS = st.tuples(_terms(0, 59), _terms(0, 23), _terms(1, 28), _terms(1, 12), _terms(0, 7)).map(" ".join)


@given(EXPRESSIONS, st.sampled_from(CHANGES))
@example("*/5 0-3 5-5/3 * 0-0/2", ("Africa/Cairo", datetime(2026, 4, 23, 22, tzinfo=UTC)))
def test_any_expression_fires_as_the_oracle_says(expression: str, at: tuple[str, datetime]) -> None:
    zone, change = at
    start = change.replace(hour=0, minute=0) - 2 * DAY
    try:
        expression_of(expression)
    except InvalidInput:
        return
    oracle = LocalMinutes(expression, start, start + 5 * DAY).fire_table(
        offsets_of(ZoneInfo(zone), start, start + 5 * DAY)
    )
    assert compare_around(expression, zone, change, oracle) >= 0


@pytest.mark.parametrize("expression", [*SPARSE, *DENSE[1:]])
@pytest.mark.parametrize("peer", [iterate_cronsim, iterate_croniter])
def test_what_other_libraries_do_otherwise_is_known(expression: str, peer: Peer) -> None:
    for zone, change in CHANGES[::2]:
        assert UNEXPLAINED not in differences(peer, expression, ZoneInfo(zone), change)


def test_every_change_in_the_zone_data_is_found() -> None:
    """Against the changes as they stand in the files, by a reader of our own; two in a row lie days apart."""
    root = resources.files("tzdata")
    names = root.joinpath("zones").read_text().split()
    files = {root.joinpath("zoneinfo", *name.split("/")).read_bytes() for name in names}
    assert len(files) > 300
    for content in files:
        recorded = [change for change in recorded_changes(content) if change >= START]
        assert all(later - earlier > 2 * 24 * 3600 for earlier, later in itertools.pairwise(recorded))
        if recorded:
            stretches = stretches_from(ZoneInfo.from_file(BytesIO(content)), START, years=100)
            known = itertools.takewhile(lambda stretch, last=recorded[-1]: stretch.start <= last, stretches)
            pairs = itertools.pairwise(known)
            assert [after.start for before, after in pairs if before.offset != after.offset] == recorded


def recorded_changes(content: bytes) -> list[int]:
    """The seconds at which a TZif file (RFC 9636) says that the offset from UTC changes."""
    at = 0
    for size in (4, 8):  # the first block has times of four bytes; the second says the same in eight
        is_utc, is_standard, leaps, times, types, characters = struct.unpack_from(">6l", content, at + 20)
        at += 44
        kinds = at + times * size
        offsets = [struct.unpack_from(">l", content, kinds + times + place * 6)[0] for place in range(types)]
        moments = struct.unpack_from(f">{times}{'l' if size == 4 else 'q'}", content, at)
        shown = [offsets[kind] for kind in content[kinds : kinds + times]]
        at = kinds + times + types * 6 + characters + leaps * (size + 4) + is_standard + is_utc
    return [at for at, (old, new) in zip(moments, itertools.pairwise([offsets[0], *shown]), strict=True) if old != new]


@pytest.mark.parametrize(
    ("cron", "fault"),
    [
        ("0 0 31 2 *", "names a time that never comes"),
        ("0 0 31 4,6,9,11 *", "names a time that never comes"),
        ("0 0 */31 * MON#5", "names a time that never comes"),
        ("* 2 * 3 SUN#2", "names a time that never comes"),
        ("0 * * * * *", "6 fields; it takes five, there is no field for seconds"),
        ("* * * *", "4 fields"),
        ("", "0 fields"),
        ("@reboot", "@reboot names no time"),
        ("@every 5m", "is no alias; there are @yearly"),
        ("60 * * * *", "the minute field '60'"),
        ("* 24 * * *", "the hour field '24'"),
        ("* * 0 * *", "the day-of-month field '0'"),
        ("* * * FOO *", "the month field 'FOO'"),
        ("* * * * 8", "the day-of-week field '8'"),
        ("* * * * FRI-MON", "the day-of-week field 'FRI-MON'"),
        ("* * * * 5L/2", "the day-of-week field '5L/2'"),
        ("* * L/2 * *", "the day-of-month field 'L/2'"),
        ("*/0 * * * *", r"the minute field '\*/0'"),
        ("1" * 400 + " * * * *", "the minute field '1111"),
        ("0 0 ? * *", "characters other than"),
        ("\0 * * * *", "characters other than"),
        ("٣ * * * *", "characters other than"),
        ("* * * * \u017fun", "characters other than"),
        ("*\n* * * *", "characters other than"),
        ("1," * 1_000_000, "longer than 500 characters"),
    ],
)
def test_an_expression_that_names_no_time_is_refused_with_its_fault(cron: str, fault: str) -> None:
    with pytest.raises(InvalidInput, match=fault) as refusal:
        check_schedule(Schedule(cron=cron, time_zone="America/New_York"), now=NOW)
    assert refusal.value.field == "schedule.cron"
    assert len(str(refusal.value)) < 300


@pytest.mark.parametrize(
    "zone",
    [
        "",
        "Europe",
        "europe/berlin",
        "Europe/Bielefeld",
        "../etc/passwd",
        "/etc/localtime",
        "localtime",
        "Factory",
        "right/UTC",
        "posixrules",
        "tzdata.zi",
        "CEST",
        "+02:00",
        "UTC\0",
        "\ud800",
        "x" * 1_000_000,
    ],
)
def test_a_zone_that_is_none_is_refused(zone: str) -> None:
    with pytest.raises(InvalidInput, match="is no time zone") as refusal:
        check_schedule(Schedule(cron="@daily", time_zone=zone), now=NOW)
    assert refusal.value.field == "schedule.time_zone"
    assert len(str(refusal.value)) < 500


@pytest.mark.parametrize(
    ("schedule", "field"),
    [
        (Schedule(), "schedule"),
        (Schedule(cron="@daily", every_seconds=60), "schedule"),
        (Schedule(at=NOW - timedelta(microseconds=1)), "schedule.at"),
        (Schedule(at=NOW.replace(tzinfo=None)), "schedule.at"),
        (Schedule(at=datetime.max.replace(tzinfo=timezone(-DAY / 2))), "schedule.at"),
        (Schedule(at=datetime.min.replace(tzinfo=timezone(DAY / 2))), "schedule.at"),
        (Schedule(at=NOW, time_zone="Europe/Berlin"), "schedule.time_zone"),
        (Schedule(at=NOW, starting_at=NOW), "schedule.starting_at"),
        (Schedule(delay_seconds=-0.001), "schedule.delay_seconds"),
        (Schedule(delay_seconds=float("nan")), "schedule.delay_seconds"),
        (Schedule(delay_seconds=1e300), "schedule.delay_seconds"),
        (Schedule(every_seconds=0.999), "schedule.every_seconds"),
        (Schedule(every_seconds=1.0005), "schedule.every_seconds"),
        (Schedule(every_seconds=float("inf")), "schedule.every_seconds"),
        (Schedule(every_seconds=1, starting_at=NOW.replace(year=1999)), "schedule.starting_at"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(schedule: Schedule, field: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        check_schedule(schedule, now=NOW)
    assert refusal.value.field == field


def refused_field(schedule: Schedule) -> str | None:
    """The field for which it is refused, if it is."""
    try:
        check_schedule(schedule, now=NOW)
    except InvalidInput as refusal:
        return refusal.field or ""
    return None


ANY_MOMENT = st.datetimes(
    timezones=st.none() | st.timezones() | st.just(timezone(-DAY / 2)) | st.just(timezone(DAY / 2))
)
ANY_SCHEDULE = st.builds(
    Schedule,
    at=st.none() | ANY_MOMENT,
    delay_seconds=st.none() | st.floats(),
    cron=st.none() | st.text() | st.text("0123456789*,-/#LWJANMON@ \t", max_size=30) | EXPRESSIONS,
    time_zone=st.just("UTC") | st.text() | st.sampled_from(["Europe/Berlin", "../UTC", "Etc", "\0", "a/" * 2000]),
    every_seconds=st.none() | st.floats(),
    starting_at=st.none() | ANY_MOMENT,
)


@given(ANY_SCHEDULE)
@example(Schedule(cron="1/1/1 * * * *"))
@example(Schedule(cron="* * * * 1#2/3"))
@example(Schedule(cron="*/99999 * * * *"))
def test_whatever_is_asked_for_is_taken_or_refused_in_words(schedule: Schedule) -> None:
    field = refused_field(schedule)
    if field is None:
        first = fire_times_of(schedule, created_at=NOW).first_from(NOW)
        assert first is not None
        assert first >= NOW
    else:
        assert field.startswith("schedule")


@given(st.text("0123456789*,-/#LWJANMON \t", max_size=30).map(lambda fields: f"{fields} * * * *"))
def test_no_parser_error_gets_out(cron: str) -> None:
    if refused_field(Schedule(cron=cron)) is None:
        assert expression_of(cron).words
    else:
        assert refused_field(Schedule(cron=cron)) == "schedule.cron"


@pytest.mark.parametrize(
    ("alias", "cron"),
    [("@hourly", "0 * * * *"), ("@Daily", "0 0 * * *"), (" @weekly ", "0 0 * * sun"), ("@annually", "0 0 1 jan *")],
)
def test_an_alias_is_short_for_an_expression(alias: str, cron: str) -> None:
    assert fire_times(alias, "UTC", "2026-11-20T12:00", 5) == fire_times(cron, "UTC", "2026-11-20T12:00", 5)


def test_a_leap_day_on_a_given_weekday_is_found_forty_years_on() -> None:
    monday = Schedule(cron="0 0 * 2 MON#5")
    assert after(monday, datetime(2072, 3, 1, tzinfo=UTC)) == datetime(2112, 2, 29, tzinfo=UTC)


def test_cron_ends_with_the_calendar() -> None:
    assert after(Schedule(cron="0 0 * * *"), datetime(9998, 12, 31, tzinfo=UTC)) is None
    assert after(Schedule(cron="0 0 * * *"), datetime.max.replace(tzinfo=UTC)) is None


def test_an_expression_is_parsed_once_and_a_zone_read_once() -> None:
    assert expression_of("*/5 * * * *") is expression_of("*/5 * * * *")
    assert zone_of("Europe/Berlin") is zone_of("Europe/Berlin")


def test_one_time_and_a_delay_fire_once() -> None:
    assert after(Schedule(at=NOW), NOW - DAY) == NOW
    assert after(Schedule(at=NOW), NOW) is None
    assert fire_times_of(Schedule(delay_seconds=0), created_at=NOW).first_from(NOW) == NOW
    assert after(Schedule(delay_seconds=1.5), NOW) == NOW + timedelta(seconds=1.5)


def test_an_interval_counts_from_its_start_and_never_drifts() -> None:
    start = datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=1)))
    schedule = Schedule(every_seconds=0.1 * 3 * 100, starting_at=start)
    assert after(schedule, datetime(2020, 1, 1, tzinfo=UTC)) == start
    assert after(schedule, start) == start + timedelta(seconds=30)
    assert after(schedule, start + timedelta(days=9, seconds=29)) == start + timedelta(days=9, seconds=30)
    assert after(Schedule(every_seconds=1.001), datetime.max.replace(tzinfo=UTC)) is None


def test_an_interval_without_a_start_counts_from_when_the_task_was_made() -> None:
    made = NOW - timedelta(seconds=50)
    assert after(Schedule(every_seconds=60), NOW, created_at=made) == made + timedelta(seconds=60)


def test_fire_times_hang_neither_on_the_zone_of_the_machine_nor_on_that_of_the_question() -> None:
    moment = datetime(2026, 6, 1, tzinfo=UTC)
    asked = Schedule(cron="30 2 * * *", time_zone="Asia/Tehran")
    answers = {after(asked, moment.astimezone(ZoneInfo(zone))) for zone in ODD_CLOCKS}
    program = (
        "from datetime import UTC, datetime;"
        "from bellringer.scheduler.fire_times import fire_times_of;"
        "from bellringer.scheduler.model import Schedule;"
        "moment = datetime(2026, 6, 1, tzinfo=UTC);"
        "schedule = Schedule(cron='30 2 * * *', time_zone='Asia/Tehran');"
        "print(fire_times_of(schedule, created_at=moment).after(moment).isoformat())"
    )
    elsewhere = subprocess.check_output(
        [sys.executable, "-c", program], env={"TZ": "Pacific/Apia", "PYTHONPATH": ":".join(sys.path)}, text=True
    )
    assert {answer.isoformat() for answer in answers if answer} == {elsewhere.strip()}
