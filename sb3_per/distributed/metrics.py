"""Log the metrics of a run with actors."""

import time

from sb3_per.algorithms.acting import ActingMixin
from sb3_per.distributed.algorithm_state import n_updates
from sb3_per.distributed.crew import Crew

# A learner that waits for more than this share of its time gets faster with more actors.
_WAITS = 0.1


class Metrics:
    """
    Count transitions, lags and seconds of a run.

    :param crew: the actors of the run
    :param model: the algorithm that learns
    """

    def __init__(self, crew: Crew, model: ActingMixin):
        self._crew, self._model = crew, model
        self._began, self._waited_before = time.monotonic(), crew.seconds_waited
        self._updates_before, self._stale_before = n_updates(model), model.n_stale_updates
        #: transitions that updates were due for
        self.n_inserted = 0
        # Since the last line of the log.
        self._line_began, self._timesteps_before = self._began, model.num_timesteps
        self._lags: list[int] = []

    def lag(self, n_updates: int) -> None:
        """
        Record the age of the weights of a chunk.

        :param n_updates: updates between these weights and the arrival of the chunk
        """
        self._lags.append(n_updates)

    @property
    def n_sampled(self) -> int:
        """Transitions drawn for updates."""
        return (n_updates(self._model) - self._updates_before) * int(self._model.batch_size)

    @property
    def share_waited(self) -> float:
        """Share of the time that the learner has waited for actors."""
        return (self._crew.seconds_waited - self._waited_before) / max(time.monotonic() - self._began, 1e-9)

    @property
    def line(self) -> str:
        """Sentence on what limits the speed of the run so far: the environments, so that more actors help, or the learner."""
        share = self.share_waited
        if share > _WAITS:
            return f"environment-bound: the learner waited for actors for {share:.0%} of the time, and more actors help"
        return f"learner-bound: more actors will not help (the learner waited for {share:.0%} of the time)"

    def record(self) -> None:
        """Write the counts to the log and begin the next line."""
        logger, now, n = self._model.logger, time.monotonic(), self._model.num_timesteps
        logger.record("actors/alive", self._crew.n_alive)
        logger.record("actors/restarts", self._crew.restarts)
        logger.record("actors/lost_transitions", self._crew.lost_transitions)
        if self._lags:
            logger.record("actors/lag_mean", sum(self._lags) / len(self._lags))
            logger.record("actors/lag_max", max(self._lags))
        logger.record("actors/fps", int((n - self._timesteps_before) / max(now - self._line_began, 1e-9)))
        logger.record("actors/bound", self.line.partition(":")[0], exclude="tensorboard")
        logger.record("time/learner_idle", self.share_waited)
        if self.n_inserted > 0:
            logger.record("replay/samples_per_insert", self.n_sampled / self.n_inserted)
        logger.record("replay/stale_updates", self._model.n_stale_updates - self._stale_before)
        self._line_began, self._timesteps_before, self._lags = now, n, []
