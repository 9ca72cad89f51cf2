"""Plots as geometry: what stands where. Nothing here knows of queues, and nothing of SVG but its path syntax.

A plot is 1,000 units wide, whatever its window is; its height is in pixels. Time runs in equal buckets to the right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby

import msgspec

WIDTH = 1000
HEIGHT = 150
_HEADROOM = 6  # the highest line is not cut in half
_MOST_LABELS = 4


class Buckets(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of time in equal parts that begin at round moments; the last of them has begun and is not over."""

    first: datetime
    seconds: int
    count: int

    @classmethod
    def until(cls, now: datetime, seconds: int, count: int) -> Buckets:
        """So many buckets, of which the last has `now` in it."""
        last = math.floor(now.timestamp() / seconds) * seconds
        return cls(
            first=datetime.fromtimestamp(last - (count - 1) * seconds, UTC),
            seconds=seconds,
            count=count,
        )

    def bounds(self, index: int) -> tuple[datetime, datetime]:
        """The beginning and the end of a bucket."""
        begin = self.first + timedelta(seconds=index * self.seconds)
        return begin, begin + timedelta(seconds=self.seconds)


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """A value per bucket, None where there is none; `kind` is the name of its colour."""

    kind: str
    name: str
    values: Sequence[float | None]


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """A path to fill or to stroke."""

    kind: str
    fill: str
    stroke: str


class Label(msgspec.Struct, frozen=True, kw_only=True):
    """A mark on an axis: in hundredths of the width from the left, or in pixels from the top."""

    at: float
    text: str


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket: where it stands, when it began, and its values in the order of the series."""

    x: float
    width: float
    begin: datetime
    values: tuple[float | None, ...]

    @property
    def is_known(self) -> bool:
        """Whether there is anything to say of it."""
        return any(value is not None for value in self.values)


class Plot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a template needs to draw series, and to tell them in a table."""

    name: str
    unit: str
    series: tuple[Series, ...]
    shapes: tuple[Shape, ...]
    x_labels: tuple[Label, ...]
    y_labels: tuple[Label, ...]
    rows: tuple[Row, ...]

    @property
    def known(self) -> list[Row]:
        """The rows that have values, the newest first."""
        return [row for row in reversed(self.rows) if row.is_known]

    @property
    def most(self) -> float:
        """The largest value."""
        return max((value for row in self.rows for value in row.values if value is not None), default=0.0)


def draw(
    name: str, unit: str, buckets: Buckets, series: Sequence[Series], *, stacked: bool, label_seconds: int
) -> Plot:
    """Lay out series of one unit, as areas on top of each other or as lines, the times marked in UTC."""
    levels = _stack(series) if stacked else [list(one.values) for one in series]
    top, step = _scale(max((level for line in levels for level in line if level is not None), default=0.0))
    floors: list[list[float | None]] = [[0.0] * buckets.count, *levels[:-1]] if stacked else []
    shapes = [
        Shape(
            kind=one.kind,
            fill=_area(levels[index], floors[index], top) if stacked else "",
            stroke=_line(levels[index], top),
        )
        for index, one in enumerate(series)
    ]
    width = WIDTH / buckets.count
    return Plot(
        name=name,
        unit=unit,
        series=tuple(series),
        shapes=tuple(shapes),
        x_labels=tuple(_time_labels(buckets, label_seconds)),
        y_labels=tuple(
            Label(at=_height(value, top), text=compact(value))
            for value in (step * index for index in range(round(top / step) + 1))
        ),
        rows=tuple(
            Row(
                x=round(index * width, 2),
                width=round(width, 2),
                begin=buckets.bounds(index)[0],
                values=tuple(one.values[index] for one in series),
            )
            for index in range(buckets.count)
        ),
    )


def compact(value: float) -> str:
    """A number for an axis: 1.5k, 20M."""
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{sign}"
    return f"{value:g}"


def _scale(most: float) -> tuple[float, float]:
    """The top of an axis and the distance of its marks, both round and at least 1."""
    wanted = max(1.0, most / _MOST_LABELS)
    power = 10.0 ** math.floor(math.log10(wanted))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= wanted)
    return max(step, math.ceil(most / step) * step), step


def _stack(series: Sequence[Series]) -> list[list[float | None]]:
    levels: list[list[float | None]] = []
    below: Sequence[float | None] = [0.0] * len(series[0].values)
    for one in series:
        level = [
            None if value is None else (base or 0.0) + value for base, value in zip(below, one.values, strict=True)
        ]
        levels.append(level)
        below = level
    return levels


def _height(value: float, top: float) -> float:
    return round(HEIGHT - (HEIGHT - _HEADROOM) * value / top, 1)


def _runs(values: Sequence[float | None]) -> list[list[int]]:
    """The indexes that have values, in unbroken runs."""
    return [
        [index for index, _ in run]
        for is_known, run in groupby(enumerate(values), key=lambda item: item[1] is not None)
        if is_known
    ]


def _points(values: Sequence[float | None], run: Sequence[int], top: float) -> list[str]:
    """A run as points: each value stands in the middle of its bucket, the outer ones reach the edges of theirs."""
    width = WIDTH / len(values)
    heights = [_height(values[index] or 0.0, top) for index in run]
    middles = [(index + 0.5) * width for index in run]
    places = [run[0] * width, *middles, (run[-1] + 1) * width]
    return [
        f"{place:.4g} {height:g}" for place, height in zip(places, [heights[0], *heights, heights[-1]], strict=True)
    ]


def _line(values: Sequence[float | None], top: float) -> str:
    return "".join("M" + "L".join(_points(values, run, top)) for run in _runs(values))


def _area(values: Sequence[float | None], floor: Sequence[float | None], top: float) -> str:
    return "".join(
        "M" + "L".join([*_points(values, run, top), *reversed(_points(floor, run, top))]) + "Z" for run in _runs(values)
    )


def _time_labels(buckets: Buckets, every_seconds: int) -> list[Label]:
    begin = buckets.first.timestamp()
    length = buckets.count * buckets.seconds
    first = math.ceil(begin / every_seconds) * every_seconds
    return [
        Label(at=round(100 * (moment - begin) / length, 2), text=f"{datetime.fromtimestamp(moment, UTC):%H:%M}")
        for moment in range(first, int(begin) + length + 1, every_seconds)
    ]
