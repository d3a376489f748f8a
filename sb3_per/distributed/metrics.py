"""Metrics of a run with actors, for the log."""

import time
from typing import Any

from sb3_per.distributed.crew import Crew

# A learner that waits for more than this share of its time gets faster with more actors.
_WAITS = 0.1


class Metrics:
    """
    Count transitions, lags and seconds from one line of the log to the next.

    :param crew: the actors of the run
    :param n_stale: priorities that came too late before this run
    """

    def __init__(self, crew: Crew, n_stale: int):
        self._crew = crew
        self._began = self._since = time.monotonic()
        self._waited_at_start = self._waited_before = crew.seconds_waited
        self._lags: list[int] = []
        self._n_admitted = 0
        self._stale_before = n_stale
        #: transitions admitted since learning began, and transitions drawn
        self.n_inserted, self.n_sampled = 0, 0

    def admitted(self, n: int) -> None:
        """
        Count transitions that callbacks have seen.

        :param n: number of transitions
        """
        self._n_admitted += n

    def lag(self, n_updates: int) -> None:
        """
        Record the age of the weights of a chunk.

        :param n_updates: updates between these weights and the arrival of the chunk
        """
        self._lags.append(n_updates)

    @property
    def bound(self) -> str:
        """``"environment-bound"`` or ``"learner-bound"``: the part that limits the speed of the run so far."""
        return "environment-bound" if self._share_waited > _WAITS else "learner-bound"

    @property
    def _share_waited(self) -> float:
        return (self._crew.seconds_waited - self._waited_at_start) / max(time.monotonic() - self._began, 1e-9)

    @property
    def line(self) -> str:
        """One sentence on whether more actors help, for the end of a run."""
        share = self._share_waited
        if self.bound == "environment-bound":
            return f"environment-bound: the learner waited for actors for {share:.0%} of the time, and more actors help"
        return f"learner-bound: more actors will not help (the learner waited for {share:.0%} of the time)"

    def record(self, logger: Any, n_stale: int) -> None:
        """
        Write the counts to the log and begin the next line.

        :param logger: logger of the algorithm
        :param n_stale: priorities that came too late, so far
        """
        seconds = max(time.monotonic() - self._since, 1e-9)
        waited = self._crew.seconds_waited - self._waited_before
        logger.record("actors/alive", len(self._crew.alive))
        logger.record("actors/restarts", self._crew.restarts)
        logger.record("actors/lost_transitions", self._crew.lost_transitions)
        if self._lags:
            logger.record("actors/lag_mean", sum(self._lags) / len(self._lags))
            logger.record("actors/lag_max", max(self._lags))
        logger.record("actors/fps", int(self._n_admitted / seconds))
        logger.record("actors/bound", self.bound, exclude="tensorboard")
        logger.record("time/learner_idle", min(waited / seconds, 1.0))
        if self.n_inserted > 0:
            logger.record("replay/samples_per_insert", self.n_sampled / self.n_inserted)
        logger.record("replay/stale_updates", n_stale - self._stale_before)
        self._since, self._waited_before = time.monotonic(), self._crew.seconds_waited
        self._lags, self._n_admitted = [], 0
