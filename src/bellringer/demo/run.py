"""Replays the sample into an empty environment, waits until its mail is sent, and says what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import msgspec
from rich.console import Console
from rich.text import Text

from bellringer.notifications.model import Overview
from bellringer.replay import Api, NoAnswer, Replay, ReplayError, open_api, progress_shown

SAMPLE = Path(__file__).parent / "task_events.jsonl"
SPEED = 300.0
DIGEST_WINDOW_SECONDS = 2

_RUN = "demo"
_GIVE_UP_AFTER_SECONDS = 60.0
_LARGEST_PAGE = 200

T = TypeVar("T")


class _Event(msgspec.Struct, frozen=True):
    type: str


class _Listed(msgspec.Struct, frozen=True):
    id: UUID
    type: str


class _Page(msgspec.Struct, frozen=True):
    notifications: list[_Listed]
    next: UUID | None


class _Step(msgspec.Struct, frozen=True):
    step: str


class _Notification(msgspec.Struct, frozen=True):
    recipients: list[str]
    timeline: list[_Step]


class _Interrupted(Exception):
    """The process is to stop."""


async def run_demo(url: str, key: str, console: Console, stopping: asyncio.Event, *, afresh: str) -> None:
    """Replay the sample, unless there are events already. Returns early when `stopping` is set.

    `afresh` says how to get rid of what is there. Raises `ReplayError`.
    """
    async with open_api(url, key) as api:
        with suppress(_Interrupted):
            await _Demo(api, console, stopping).run(afresh)


class _Demo:
    def __init__(self, api: Api, console: Console, stopping: asyncio.Event) -> None:
        self._api = api
        self._console = console
        self._stopping = stopping
        events = msgspec.json.Decoder(_Event).decode_lines(SAMPLE.read_bytes())
        self._types = sorted({event.type for event in events})
        self._total = len(events)

    async def run(self, afresh: str) -> None:
        self._latest = await self._overview()
        if self._latest.events:
            found = f"{self._latest.events:,} events and {self._latest.emails:,} emails"
            self._say(f"Found {found} from before: nothing is replayed.")
            self._say(f"To start afresh: {afresh}")
            return
        await self._shorten_digests()
        self._say("A night at a data platform, 45 minutes in 9 seconds: at 02:13 a credential expires.")
        replay = Replay(self._api, SAMPLE, _RUN, tell=self._say, speed=SPEED)
        async with (
            progress_shown(self._console, replay.counts, self._total, self._so_far, indent="  "),
            self._overview_watched(),
        ):
            if not await replay.run(self._stopping):
                return
            await self._until_sent()
        sum_ = await self._overview()
        self._say()
        self._say(f"{sum_.events:,} events -> {sum_.notifications:,} notifications -> {sum_.emails:,} emails", "bold")

    async def _shorten_digests(self) -> None:
        for event_type in self._types:
            body = msgspec.json.encode({"digest_window_seconds": DIGEST_WINDOW_SECONDS})
            answer = await self._api.request("PUT", f"/v1/workflows/{event_type}", body)
            if not answer.is_success:
                raise ReplayError(f"the digest window cannot be set: {answer.problem()[1]}")

    def _so_far(self) -> str:
        return f"{self._latest.notifications:,} notifications, {self._latest.emails:,} emails"

    @asynccontextmanager
    async def _overview_watched(self) -> AsyncIterator[None]:
        async def watch() -> None:
            while True:
                self._latest = await self._overview()
                await self._pause(0.4)

        watching = asyncio.create_task(watch())
        try:
            yield
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError, _Interrupted, ReplayError):
                await watching

    async def _until_sent(self) -> None:
        """Wait until every recipient of every event of the sample was told, for as long as that comes along."""
        loop = asyncio.get_running_loop()
        waiting = await self._notification_ids()
        moved_at = loop.time()
        while waiting:
            if await self._is_settled(waiting[-1]):
                waiting.pop()
                moved_at = loop.time()
            elif loop.time() - moved_at > _GIVE_UP_AFTER_SECONDS:
                self._say(f"The mail of {len(waiting):,} events is still on its way; see the console.")
                return
            else:
                await self._pause(0.1)

    async def _notification_ids(self) -> list[UUID]:
        """The notifications of the sample, newest first."""
        page = await self._get(f"/v1/notifications?limit={_LARGEST_PAGE}", _Page)
        listed = list(page.notifications)
        while page.next is not None:
            page = await self._get(f"/v1/notifications?limit={_LARGEST_PAGE}&before={page.next}", _Page)
            listed += page.notifications
        return [notification.id for notification in listed if notification.type in self._types]

    async def _is_settled(self, notification_id: UUID) -> bool:
        notification = await self._get(f"/v1/notifications/{notification_id}", _Notification)
        told = sum(step.step in {"sent", "failed"} for step in notification.timeline)
        return told >= len(notification.recipients)

    async def _overview(self) -> Overview:
        return await self._get("/v1/overview", Overview)

    async def _get(self, path: str, kind: type[T]) -> T:
        """What stands at a path. Bears with a server that is just starting or short of breath."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + _GIVE_UP_AFTER_SECONDS
        while True:
            try:
                answer = await self._api.request("GET", path)
            except NoAnswer as error:
                reason = str(error)
            else:
                if answer.is_success:
                    return msgspec.json.decode(answer.body, type=kind)
                reason = answer.problem()[1]
                if answer.status != 503:
                    raise ReplayError(f"GET {path}: {reason}")
            if loop.time() > give_up_at:
                raise ReplayError(f"GET {path}: {reason}")
            await self._pause(0.1)

    def _say(self, text: str = "", style: str = "") -> None:
        self._console.print(Text(f"  {text}" if text else "", style=style), soft_wrap=True)

    async def _pause(self, seconds: float) -> None:
        """Wait. Raises `_Interrupted` when the process is to stop."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)
        if self._stopping.is_set():
            raise _Interrupted
