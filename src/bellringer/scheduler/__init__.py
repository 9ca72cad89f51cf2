"""The scheduler: every task starts on time, and when it cannot, it says why.

A task is a row with its next fire time. Pickers make the fire times of the next two minutes occurrences, dispatchers
hand occurrences to the broker seconds before they are due, executors hold them to their moment and run them.
docs/scheduler.md draws the way.

Invariants:
- One occurrence per task and fire time: run, skipped with a reason, failed, crashed or cancelled, and never two.
- Nothing runs before its time by the database's clock, and nothing that was not recorded as started, once per attempt.
- What does not run again by a policy of its task runs again when a person says so.
- A start later than promised, a failure, a crash, a skip: each is an incident, and an event on `scheduler.events`.
- No process that dies or is stopped holds up the others: what it had is another's, or known as crashed.

Operations that take a `connection` join the caller's transaction.
"""

from bellringer.scheduler.config import SchedulerConfig
from bellringer.scheduler.functions import Scheduler, current
from bellringer.scheduler.model import (
    FunctionCall,
    HttpCall,
    MessageCall,
    MisfirePolicy,
    NotificationCall,
    Overlap,
    Retry,
    Schedule,
    TaskDefinition,
)
from bellringer.scheduler.service import Tasks

__all__ = [
    "FunctionCall",
    "HttpCall",
    "MessageCall",
    "MisfirePolicy",
    "NotificationCall",
    "Overlap",
    "Retry",
    "Schedule",
    "Scheduler",
    "SchedulerConfig",
    "TaskDefinition",
    "Tasks",
    "current",
]
