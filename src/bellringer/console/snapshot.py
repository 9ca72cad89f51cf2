"""What the console shows of an environment at one moment, read through the services."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bellringer.broker import SYSTEM_ENVIRONMENT, Broker, Queue, QueueCounts
from bellringer.broker.model import MoveState, MoveTask
from bellringer.broker.moves import Moves
from bellringer.console.depth import Period, plots_of
from bellringer.console.plot import Plot
from bellringer.edge.model import Environment
from bellringer.kernel.clock import Clock
from bellringer.kernel.errors import NotFound
from bellringer.notifications.channels.capture import CapturedMailbox
from bellringer.notifications.channels.model import CapturedMail
from bellringer.notifications.channels.sender import OUTBOUND_QUEUE
from bellringer.notifications.digests.loops import CLOSED_QUEUE
from bellringer.notifications.model import NotificationSummary, Overview
from bellringer.notifications.service import ACCEPTED_QUEUE, Notifications

PAGE_SIZE = 50

_MOVES_SHOWN = 5

_PIPELINE = (ACCEPTED_QUEUE, CLOSED_QUEUE, OUTBOUND_QUEUE)


class QueueState(msgspec.Struct, frozen=True, kw_only=True):
    """A queue and how it stands."""

    queue: Queue
    counts: QueueCounts

    @property
    def depth(self) -> int:
        """How many messages still have to be worked on, now or later."""
        return self.counts.pending + self.counts.in_flight + self.counts.delayed


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How fast things go, over the last seconds in which somebody looked."""

    events_per_second: float = 0.0
    sent_per_second: float = 0.0


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """An environment's counts, its queues by name, and its newest notifications and mail (one page and one more).

    `pipeline` has the queues of Bellringer's own, which all environments share, in the order of the way.
    """

    overview: Overview
    queues: list[QueueState]
    pipeline: list[QueueState]
    notifications: list[NotificationSummary]
    mail: list[CapturedMail]
    pace: Pace = Pace()

    @property
    def is_new(self) -> bool:
        """Whether nothing has happened yet."""
        return self.overview.events == 0


class QueueDetails(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one queue beyond its counts: how it stood over time, and the newest moves out of it."""

    plots: tuple[Plot, ...]
    moves: tuple[MoveTask, ...]

    @property
    def running(self) -> MoveTask | None:
        """The move that is under way: the newest, if any."""
        return self.moves[0] if self.moves and self.moves[0].state is MoveState.RUNNING else None


class SnapshotReader:
    """Reads snapshots, and the details of single queues."""

    def __init__(
        self, broker: Broker, moves: Moves, notifications: Notifications, mailbox: CapturedMailbox, clock: Clock
    ) -> None:
        self._broker = broker
        self._moves = moves
        self._notifications = notifications
        self._mailbox = mailbox
        self._clock = clock

    async def read(self, environment: Environment) -> Snapshot:
        """How an environment stands. Raises `Unavailable`."""
        own, pipeline = await self.read_queues(environment)
        return Snapshot(
            overview=await self._notifications.overview(environment.id),
            queues=own,
            pipeline=pipeline,
            notifications=await self._notifications.list_summaries(environment.id, limit=PAGE_SIZE + 1),
            mail=await self._mailbox.list_mail(environment.id, limit=PAGE_SIZE + 1),
        )

    async def read_queues(self, environment: Environment) -> tuple[list[QueueState], list[QueueState]]:
        """The queues of an environment, and those of the pipeline."""
        queues = await self._broker.list_queues([environment.id, SYSTEM_ENVIRONMENT])
        counts = await self._broker.counts(queues)
        states = [QueueState(queue=queue, counts=counts[queue.id]) for queue in queues]
        system = {state.queue.name: state for state in states if state.queue.environment_id == SYSTEM_ENVIRONMENT}
        return (
            [state for state in states if state.queue.environment_id == environment.id],
            [system[name] for name in _PIPELINE],
        )

    async def read_plots(self, state: QueueState, period: Period) -> tuple[Plot, ...]:
        """How a queue stood over a period. Raises `Unavailable`."""
        samples = await self._broker.samples(state.queue, period.seconds)
        return plots_of(state.queue, samples, state.counts, period, self._clock.now())

    async def read_moves(self, queue: Queue) -> tuple[MoveTask, ...]:
        """The newest moves out of a queue. Raises `Unavailable`."""
        return tuple(await self._moves.list(queue, _MOVES_SHOWN))


def sources_of(states: Sequence[QueueState], name: str) -> list[str]:
    """The queues whose dead letters go to that one."""
    return [state.queue.name for state in states if state.queue.settings.dead_letter_queue == name]


def state_of(states: Sequence[QueueState], name: str) -> QueueState:
    """The queue of that name. Raises `NotFound`."""
    for state in states:
        if state.queue.name == name:
            return state
    raise NotFound(f"There is no queue {name}.")
