"""Delayed jobs: schedule them at a `dq serve`, and run them in workers."""

from .client import AsyncClient, Client, DqError, Scheduled
from .worker import Again, Dead, Job, Outcome, Release, Retry, Skip, Snooze, Throttle, Worker

__all__ = ["AsyncClient", "Client", "DqError", "Job", "Outcome", "Scheduled", "Worker"]
__all__ += ["Again", "Dead", "Release", "Retry", "Skip", "Snooze", "Throttle"]
