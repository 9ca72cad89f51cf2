"""What strikes a run: brokers, consumers and their PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from tests.support.fire import Fire
from tests.support.postgres import ExternalPostgres
from tests.support.server import Server, until
from tests.support.under_fire.processes import ConsumerProcess


class Faults(Fire):
    """The faults of one run. `pause_seconds` should be longer than any visibility timeout."""

    def __init__(
        self,
        postgres: ExternalPostgres,
        brokers: Sequence[Server],
        consumers: Sequence[ConsumerProcess],
        random: Random,
        *,
        pause_seconds: float,
    ) -> None:
        super().__init__(postgres, brokers, random, pause_seconds=pause_seconds)
        self._brokers = brokers
        self._consumers = consumers
        self.faults += [self._kill_a_broker, self._kill_a_consumer, self._stop_a_broker, self._stop_a_consumer]

    def mend(self, *, everything: bool = False) -> None:
        """As every fire; with `everything` return when the brokers are ready."""
        super().mend(everything=everything)
        if everything:
            until(self._are_all_ready, "the brokers are ready")

    def _kill_a_broker(self) -> None:
        broker = self.random.choice(self._brokers)
        self.kill(broker)
        broker.spawn()

    def _kill_a_consumer(self) -> None:
        consumer = self.random.choice(self._consumers)
        self.forget(consumer.process_id)
        consumer.kill_and_start()

    def _stop_a_broker(self) -> None:
        self.stop(self.random.choice(self._brokers).process_id)

    def _stop_a_consumer(self) -> None:
        self.stop(self.random.choice(self._consumers).process_id)

    def _are_all_ready(self) -> bool:
        # One whose connection was cut while it started ends, and is started again.
        return all(not self.start_again(broker) and broker.readiness() == 200 for broker in self._brokers)
