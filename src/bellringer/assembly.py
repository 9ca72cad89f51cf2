"""Opens the resources, builds the services and wires every subscription: one list, without branches.

Start: embedded PostgreSQL, pool, migrations, queues, services. Stop, in the opposite order: intake, what it handed
in, the consumers and loops, the pool, PostgreSQL.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from uuid import UUID

import msgspec
from msgspec.structs import replace

from bellringer.broker import SYSTEM_ENVIRONMENT, Broker, Consumer, ConsumerConfig
from bellringer.broker.loops import Collector as BrokerCollector
from bellringer.broker.loops import InboxMover, Sweeper
from bellringer.broker.moves import Mover, Moves
from bellringer.broker.routes import broker_routes
from bellringer.broker.samples import Sampler as QueueSampler
from bellringer.broker.sqs.routes import sqs_routes
from bellringer.broker.wakeups import PendingWatcher
from bellringer.config import Config
from bellringer.console.routes import console_routes
from bellringer.edge.app import build_app
from bellringer.edge.keys import Keys
from bellringer.edge.server import HttpServer
from bellringer.kernel.clock import SystemClock
from bellringer.kernel.database import Database
from bellringer.kernel.embedded_postgres import EmbeddedPostgres, EmbeddedPostgresConfig, running_server
from bellringer.kernel.migrations import migrate
from bellringer.kernel.service import Service
from bellringer.kernel.tally import TallyFolder
from bellringer.notifications.calls import NotificationCaller
from bellringer.notifications.channels.capture import CapturedMailbox, CaptureServer
from bellringer.notifications.channels.sender import OUTBOUND_QUEUE, EmailSender
from bellringer.notifications.channels.smtp import SmtpTransport
from bellringer.notifications.digests.loops import CLOSED_QUEUE, DigestCloser, DigestsConfig, Grouper, Joiner
from bellringer.notifications.loops import Expirer
from bellringer.notifications.routes import notification_routes
from bellringer.notifications.service import ACCEPTED_QUEUE, Notifications
from bellringer.scheduler.application import make_known
from bellringer.scheduler.callers.function import FunctionCaller
from bellringer.scheduler.callers.http import HttpCaller
from bellringer.scheduler.callers.message import MessageCaller
from bellringer.scheduler.executor import Executor
from bellringer.scheduler.functions import Scheduler, load_application
from bellringer.scheduler.loops import Announcer, Collector, Replanner, Watcher
from bellringer.scheduler.metrics import scheduler_metrics
from bellringer.scheduler.orchestrator import OrchestratorConfig, orchestrator_of
from bellringer.scheduler.orchestrator.drivers import EXECUTOR_COMMAND
from bellringer.scheduler.picker import Dispatcher, Picker
from bellringer.scheduler.queues import executed_queues
from bellringer.scheduler.routes import scheduler_routes
from bellringer.scheduler.samples import Sampler as TaskSampler
from bellringer.scheduler.samples import Samples
from bellringer.scheduler.service import Tasks

_GONE_AFTER_SECONDS = 8.0
"""How long after the end of its runs a process that is told to stop is gone."""

SUBSYSTEMS = ("kernel", "edge", "broker", "scheduler", "notifications")
"""In layer order: the order in which migrations are applied."""


class Assembly(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a process of Bellringer may run, in the order of the start: what stands last stops first."""

    keys: Keys
    notifications: Notifications
    foundation: list[Service]
    upkeep: list[Service]
    workers: list[Service]
    pickers: list[Service]
    executors: list[Service]
    orchestrators: list[Service]
    api: list[HttpServer]


@asynccontextmanager
async def open_database(
    config: Config, *, watch: list[Service] | None = None, shared: bool = True
) -> AsyncIterator[Database]:
    """The migrated database: external, or the embedded one.

    `shared`: an embedded one that a live process runs already will do. One that is started here is kept up by a
    service, which is added to `watch`. Raises `StartupError`.
    """
    async with AsyncExitStack() as stack:
        arguments = None
        if config.database.url is None:
            embedded_config = EmbeddedPostgresConfig(data_directory=Path(config.data_directory))
            if shared:
                arguments = running_server(embedded_config)
            if arguments is None:
                server = EmbeddedPostgres(embedded_config)
                await server.start()
                stack.push_async_callback(server.stop)
                arguments = server.connect_arguments()
                if watch is not None:
                    watch.append(server)
        database = await Database.open(config.database, arguments)
        stack.push_async_callback(database.close)
        await migrate(database, SUBSYSTEMS)
        yield database


@asynccontextmanager
async def assemble(
    config: Config, *, shared: bool = False, executor_arguments: Sequence[str] = ()
) -> AsyncIterator[Assembly]:
    """Build everything; on exit write what is still in memory and close what was opened. Raises `StartupError`.

    `shared`: use the embedded database of another process, if one runs it. `executor_arguments`: what an executor that
    is started from here is told on its command line.
    """
    watch: list[Service] = []
    async with open_database(config, watch=watch, shared=shared) as database, AsyncExitStack() as stack:
        settings = config.notifications
        keys = Keys(database, SystemClock())
        broker = Broker(database, config.broker)
        stack.push_async_callback(broker.drain)
        accepted = await broker.ensure_queue(SYSTEM_ENVIRONMENT, ACCEPTED_QUEUE)
        closed = await broker.ensure_queue(SYSTEM_ENVIRONMENT, CLOSED_QUEUE)
        outbound = await broker.ensure_queue(SYSTEM_ENVIRONMENT, OUTBOUND_QUEUE)

        notifications = Notifications(database, broker, accepted, batcher=config.broker.batcher)
        stack.push_async_callback(notifications.drain)
        capture = CaptureServer(database)
        stack.push_async_callback(capture.close)
        smtp_url = settings.smtp.url or await capture.start()
        sender = EmailSender(
            database,
            broker,
            outbound,
            keys,
            SmtpTransport(smtp_url, settings.email_from, settings.smtp),
            email_from=settings.email_from,
            give_up_after_seconds=settings.give_up_after_seconds,
            concurrency=2 * settings.smtp.connections,
        )
        stack.push_async_callback(sender.drain)
        digests = DigestsConfig(
            window_seconds=settings.digest_window_seconds,
            recipients_per_email=settings.recipients_per_email,
            events_per_email=settings.events_per_email,
        )
        joiner = Joiner(database, broker, accepted, digests)
        grouper = Grouper(database, broker, closed, outbound, digests)

        dispatcher = Dispatcher(database, broker, config.scheduler)
        picker = Picker(database, dispatcher, config.scheduler)
        tasks = Tasks(database, broker, on_change=picker.wake)
        samples = Samples(database, pick_ahead_seconds=config.scheduler.pick_ahead_seconds)
        application, home = await _open_application(config, keys, tasks, database)
        functions = FunctionCaller(application)
        stack.callback(functions.close)
        http = HttpCaller()
        stack.push_async_callback(http.close)
        executor = Executor(
            database,
            broker,
            await executed_queues(broker, home),
            {
                "http": http,
                "message": MessageCaller(broker),
                "notification": NotificationCaller(notifications),
                "function": functions,
            },
            config.scheduler,
            environment_id=home,
        )

        stopping = asyncio.Event()

        def end_waits() -> None:
            stopping.set()
            broker.wakeups.close()

        mailbox = CapturedMailbox(database)
        moves = Moves(database, broker)
        app = build_app(
            config.edge,
            database,
            keys,
            [
                broker_routes(broker, moves),
                sqs_routes(broker, moves, keys, SystemClock(), config.sqs),
                scheduler_routes(tasks),
                notification_routes(notifications, mailbox),
                scheduler_metrics(samples),
                console_routes(keys, broker, moves, notifications, mailbox, tasks, samples, config.scheduler, stopping),
            ],
        )
        http_server = HttpServer(config.edge, app, end_waits=end_waits)
        visibility = settings.visibility_timeout_seconds
        yield Assembly(
            keys=keys,
            notifications=notifications,
            foundation=[*watch, PendingWatcher(database, broker.wakeups), InboxMover(database, broker)],
            upkeep=[
                TallyFolder(database),
                Sweeper(database, broker),
                BrokerCollector(database, broker),
                QueueSampler(database),
                TaskSampler(database, samples),
                Announcer(database, broker),
                Watcher(database, config.scheduler),
                Collector(database, config.scheduler),
                Replanner(database, config.scheduler),
            ],
            workers=[
                Mover(database, broker),
                Expirer(database, settings),
                Consumer(broker, outbound, sender.handle, _take(100, visibility)),
                Consumer(broker, closed, grouper.handle, _take(10, visibility)),
                DigestCloser(database, broker, closed),
                Consumer(broker, accepted, joiner.handle, _take(1000, visibility)),
            ],
            pickers=[dispatcher, picker],
            executors=[executor],
            orchestrators=[
                orchestrator_of(database, _orchestration(config), command=[*EXECUTOR_COMMAND, *executor_arguments])
            ],
            api=[http_server],
        )


async def _open_application(
    config: Config, keys: Keys, tasks: Tasks, database: Database
) -> tuple[Scheduler, UUID | None]:
    """The functions that tasks can call here, and the environment that they belong to, if there are any."""
    if config.scheduler.tasks is None:
        return Scheduler(), None
    application = load_application(config.scheduler.tasks)
    home = await keys.ensure_environment(config.organisation, config.environment)
    await make_known(database, tasks, home.id, application)
    return application, home.id


def _orchestration(config: Config) -> OrchestratorConfig:
    """The settings of the orchestrator, with what it has to know of executors: their slots, and when they are gone."""
    processes = config.orchestrator.processes
    gone_after_seconds = max(processes.stop_timeout_seconds, config.scheduler.finish_seconds + _GONE_AFTER_SECONDS)
    return replace(
        config.orchestrator,
        concurrency=config.scheduler.concurrency,
        processes=replace(processes, stop_timeout_seconds=gone_after_seconds),
    )


def _take(batch_items: int, visibility_timeout_seconds: float) -> ConsumerConfig:
    return ConsumerConfig(batch_items=batch_items, visibility_timeout_seconds=visibility_timeout_seconds)
