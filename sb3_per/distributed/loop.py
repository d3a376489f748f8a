"""
Collect from actors in place of SB3's ``collect_rollouts``.

A *tick* has as many transitions as there are environments, which SB3 counts as one step of all environments. The transitions
are successive steps of one actor or of several. Counters, callbacks and updates advance by ticks.
"""

import time
import warnings
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import RolloutReturn, TrainFreq, TrainFrequencyUnit
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per.algorithms.base import PrioritizedAlgorithm
from sb3_per.buffers import IgnoredSettingWarning, PrioritizedSequenceReplayBuffer
from sb3_per.buffers.slots import map_arrays
from sb3_per.distributed import algorithm, random_state
from sb3_per.distributed.actor_pool import ActorPool
from sb3_per.distributed.algorithm import n_timesteps_left, n_updates
from sb3_per.distributed.chunks import ForCallbacks, for_callbacks, forget_returns, joined, some_of, store_chunk
from sb3_per.distributed.environments import wrappers_of
from sb3_per.distributed.worker import ActorWorker
from sb3_per.utils.origin import is_overridden

# A learner that waits for more than this share of its time gets faster with more actors.
_WAITS = 0.1


def exploration_ladder(n_actors: int, epsilon: float = 0.4, alpha: float = 7.0) -> list[float]:
    """
    Compute a share of random actions for each actor (Horgan et al. 2018, section 4.1).

    :param n_actors: number of actors N
    :param epsilon: share of the first actor
    :param alpha: exponent; the share of the last actor is ``epsilon ** (1 + alpha)``
    :return: ``epsilon ** (1 + alpha i / (N - 1))`` for i from 0 to N - 1
    """
    return [epsilon ** (1.0 + alpha * i / max(n_actors - 1, 1)) for i in range(n_actors)]


def check_supported(pool: ActorPool, model: PrioritizedAlgorithm) -> None:
    """
    Refuse algorithms and settings that do not work with actors.

    :param pool: the actors
    :param model: the algorithm that is to learn
    :raises NotImplementedError: for HER, sequences, ``optimize_memory_usage``, networks of SBX, ``train_freq`` in episodes,
        and a buffer with methods that actors would bypass
    :raises ValueError: for a buffer with a column for each environment, a ladder without random actions, and for
        wrappers that actors do not support
    :warns IgnoredSettingWarning: for TD errors of new transitions that actors are told not to send
    """
    buffer = model.replay_buffer
    name = type(model).__name__
    assert isinstance(model.train_freq, TrainFreq)
    refused = [
        (
            isinstance(buffer, HerReplayBuffer),
            "hindsight (HER) is not supported: actors send parts of episodes, and hindsight needs whole ones",
        ),
        (
            isinstance(buffer, PrioritizedSequenceReplayBuffer),
            "replay of sequences is not supported: windows and recurrent states would have to go with the chunks",
        ),
        (
            buffer.optimize_memory_usage,
            "optimize_memory_usage=True is not supported: rows of several environments follow one another, so the next "
            "observation is not that of the next row. Use replay_buffer_kwargs=dict(frames=1)",
        ),
        (
            not model.can_act_in_copies,
            "networks of SBX is not supported: actors act with copies of PyTorch's networks. Use the class of the same name "
            "from sb3_per",
        ),
        (
            model.train_freq.unit == TrainFrequencyUnit.EPISODE,
            f"train_freq={model.train_freq} is not supported: episodes of several actors end at any time. Count in steps",
        ),
    ]
    for is_refused, reason in refused:
        if is_refused:
            raise NotImplementedError(f"{name} with actors and {reason}")
    if buffer.n_envs != 1:
        raise ValueError(
            f"Actors append the steps of all environments to one column, and this {type(buffer).__name__} has n_envs="
            f"{buffer.n_envs}. Give the environments of make_actors() to the constructor of {name}, or to load(..., env=env)"
        )
    if pool.settings.exploration == "ladder" and not hasattr(model, "exploration_schedule"):
        raise ValueError(
            f"exploration='ladder' needs an algorithm that takes random actions (DQN, QR-DQN), but {name} explores with "
            "its policy or action_noise. Use exploration=None"
        )
    _require_called_methods(pool, model)
    wrappers_of(model.env, np.arange(model.n_envs))
    if pool.settings.initial_priorities == "max" and model.replay_buffer_kwargs.get("initial_priority") == "td_error":
        warnings.warn(
            "initial_priority='td_error' has no effect with make_actors(..., initial_priorities='max'): leave one of them out",
            IgnoredSettingWarning,
        )


def _require_called_methods(pool: ActorPool, model: PrioritizedAlgorithm) -> None:
    """Refuse a user's methods of the buffer that are never called while actors act, see :func:`check_supported`."""
    buffer = model.replay_buffer
    if is_overridden(buffer, "add") and not is_overridden(buffer, "append_rows"):
        raise NotImplementedError(
            f"{type(buffer).__name__} overrides add(), and actors do not call it: override append_rows() too, e.g. change its "
            "arguments and call super().append_rows()"
        )
    for method in ("to_torch", "_normalize_obs", "_normalize_reward"):
        if is_overridden(buffer, method) and _sends_td_errors(pool, model):
            raise NotImplementedError(
                f"{type(buffer).__name__} overrides {method}(), which actors do not call when they compute TD errors: set "
                "make_actors(..., initial_priorities='max')"
            )


class Run:
    """
    Direct the actors in one run, a call of ``learn``.

    :param pool: the actors
    :param model: the algorithm that learns
    :param continues: whether the actors continue where the last run ended
    """

    def __init__(self, pool: ActorPool, model: PrioritizedAlgorithm, continues: bool):
        self.pool = pool
        self.model = model
        self.metrics = RunMetrics(pool, model)
        self._continues = continues
        # Stored transitions that callbacks have not seen yet.
        self._unseen: ForCallbacks = {}
        # The number of updates of the weights that were sent last, and a reference to these weights.
        self._sent_version = -1
        self._sent_weights: Any = None
        n_steps = -(-n_timesteps_left(model) // pool.n_envs)
        self._num_timesteps_at_end = model.num_timesteps + n_steps * pool.n_envs
        # In a small buffer, larger chunks would overwrite transitions before they were counted.
        rows_of_env = model.replay_buffer.buffer_size // (pool.n_actors * pool.n_envs)
        self._chunk = min(pool.settings.chunk, max(1, rows_of_env // 4))
        self._content = pool.engine.put(algorithm.packed(model, self._chunk))
        # With a single actor and no lag, the actor draws from the learner's random state, as in a synchronous run.
        self._shares_random_state = pool.n_actors == 1 and pool.settings.in_flight == 1
        self._seed = random_state.derived_seed(random_state.next_seed(), pool.n_runs, model.num_timesteps)
        self._with_td_errors = _sends_td_errors(pool, model)
        pool.begin(n_steps, self._get_ready)

    def collect(self, callback: BaseCallback, log_interval: int | None) -> RolloutReturn:
        """
        Take transitions of actors. It stands in for ``collect_rollouts``: the actors call SB3's own, the learner only counts.

        The learner cannot call SB3's: it would draw each action from the learner's policy, with its random numbers, and would
        end a run only at a multiple of the number of environments.

        :param callback: the user's callback
        :param log_interval: episodes from one line of the log to the next
        :return: see SB3
        """
        model = self.model
        metrics = self.metrics
        assert isinstance(model.train_freq, TrainFreq)
        model.policy.set_training_mode(False)
        callback.on_rollout_start()
        n_collected = 0
        n_episodes = 0
        for _ in range(model.train_freq.frequency):
            if n_timesteps_left(model) == 0:
                break
            seen = self.next_tick()
            n = len(seen["dones"])
            model.num_timesteps += n
            n_collected += n
            callback.update_locals({"self": model, "env": model.env, **seen, "replay_buffer": model.replay_buffer})
            if not callback.on_step():
                return RolloutReturn(n_collected, n_episodes, continue_training=False)
            algorithm.count_step(model, seen["infos"], seen["dones"])
            for _ in range(np.count_nonzero(seen["dones"])):
                n_episodes += 1
                episode_num = algorithm.count_episode(model)
                if log_interval is not None and episode_num % log_interval == 0:
                    metrics.record()
                    model.dump_logs()
        callback.on_rollout_end()
        if model.num_timesteps > model.learning_starts:
            metrics.n_inserted += n_collected
        return RolloutReturn(n_collected, n_episodes, continue_training=True)

    def _get_ready(self, actor: int, is_restart: bool) -> Any:
        """Ask an actor to get ready."""
        pool = self.pool
        columns = pool.columns_of(actor)
        first_obs = None
        if is_restart:  # its pending chunks are lost
            forget_returns(self.model, columns)
        else:
            first_obs = tuple(
                None if obs is None else map_arrays(lambda part: part[columns], obs) for obs in algorithm.last_obs(self.model)
            )
        seed = random_state.derived_seed(self._seed, actor, pool.n_restarts_ever[actor])
        wraps = None if self._continues and not is_restart else wrappers_of(self.model.env, columns)
        epsilon = exploration_ladder(pool.n_actors)[actor] if pool.settings.exploration == "ladder" else None
        return pool.engine.ask(actor, ActorWorker.begin, self._content, seed, wraps, epsilon, first_obs)

    def _act(self, actor: int, n_steps: int, n_steps_left: int) -> Any:
        """Ask an actor to act with the newest weights."""
        model = self.model
        engine = self.pool.engine
        version = n_updates(model)
        if self._sent_version != version or model.get_vec_normalize_env() is not None:
            self._sent_version = version
            self._sent_weights = engine.put(algorithm.weights_of(model))
        num_timesteps = self._num_timesteps_at_end - n_steps_left * self.pool.n_envs
        state = random_state.current(model.action_space) if self._shares_random_state else None
        collect = ActorWorker.collect
        return engine.ask(actor, collect, self._sent_weights, n_steps, num_timesteps, self._with_td_errors, state)

    def next_tick(self) -> ForCallbacks:
        """
        Take the next tick. Wait for chunks if necessary, and store them as they come.

        :return: as many transitions as there are environments, fewer at the end of the run
        """
        n_left = n_timesteps_left(self.model)
        n = min(self.pool.n_actors * self.pool.n_envs, n_left)
        while (n_unseen := len(self._unseen.get("dones", ()))) < n:
            actor, chunk = self.pool.next_chunk(self._act, self._chunk)
            self.metrics.add_lag(n_updates(self.model) - chunk.version)
            if chunk.random_state is not None:
                random_state.set_current(chunk.random_state, self.model.action_space)
            n_new = min(chunk.steps["rewards"].size, n_left - n_unseen)
            store_chunk(self.model, self.pool.columns_of(actor), chunk, n_new)
            new = some_of(for_callbacks(chunk), slice(n_new))
            # A copy in any case: the arrays of a chunk may lie in Ray's object store, which must become free.
            self._unseen = joined([self._unseen, new] if n_unseen else [new])
        seen = some_of(self._unseen, slice(n))
        self._unseen = some_of(self._unseen, slice(n, None))
        return seen

    def end(self) -> bool:
        """End the run. Return whether the environments are where the buffer ends, so that a run can continue from there."""
        # At the end, the last step of every environment counts.
        is_complete = self.pool.end() and self.model.num_timesteps == self._num_timesteps_at_end
        if not is_complete:
            algorithm.set_last_obs(self.model, (None, algorithm.last_obs(self.model)[1]))
        self.model.logger.info(self.metrics.line)
        return is_complete


class RunMetrics:
    """
    Count transitions, lags and seconds of a run, and log them.

    :param pool: the actors of the run
    :param model: the algorithm that learns
    """

    def __init__(self, pool: ActorPool, model: PrioritizedAlgorithm):
        self._pool = pool
        self._model = model
        self._began = time.monotonic()
        self._waited_before = pool.seconds_waited
        self._updates_before = n_updates(model)
        self._stale_before = model.n_stale_updates
        #: transitions that updates were due for
        self.n_inserted = 0
        # Since the last line of the log.
        self._line_began = self._began
        self._timesteps_before = model.num_timesteps
        self._lags: list[int] = []

    def add_lag(self, lag: int) -> None:
        """Record the lag of a chunk: the updates between the weights that it was collected with and its arrival."""
        self._lags.append(lag)

    @property
    def share_waited(self) -> float:
        """Share of the time that the learner has waited for actors."""
        return (self._pool.seconds_waited - self._waited_before) / max(time.monotonic() - self._began, 1e-9)

    @property
    def bound(self) -> str:
        """Side that limits the speed of the run so far: ``"environment-bound"`` or ``"learner-bound"``."""
        return "environment-bound" if self.share_waited > _WAITS else "learner-bound"

    @property
    def line(self) -> str:
        """Sentence on whether more actors help."""
        advice = "more actors help" if self.bound == "environment-bound" else "more actors will not help"
        return f"{self.bound}: {advice} (the learner waited for actors for {self.share_waited:.0%} of the time)"

    def record(self) -> None:
        """Write the counts to the log and begin the next line."""
        logger = self._model.logger
        now = time.monotonic()
        n_timesteps = self._model.num_timesteps
        logger.record("actors/alive", self._pool.n_alive)
        logger.record("actors/restarts", self._pool.n_restarts_in_run)
        logger.record("actors/lost_transitions", self._pool.lost_transitions)
        if self._lags:
            logger.record("actors/lag_mean", sum(self._lags) / len(self._lags))
            logger.record("actors/lag_max", max(self._lags))
        logger.record("actors/fps", int((n_timesteps - self._timesteps_before) / max(now - self._line_began, 1e-9)))
        logger.record("actors/bound", self.bound, exclude="tensorboard")
        logger.record("time/learner_idle", self.share_waited)
        if self.n_inserted > 0:
            n_sampled = (n_updates(self._model) - self._updates_before) * int(self._model.batch_size)
            logger.record("replay/samples_per_insert", n_sampled / self.n_inserted)
        logger.record("replay/stale_updates", self._model.n_stale_updates - self._stale_before)
        self._line_began = now
        self._timesteps_before = n_timesteps
        self._lags = []


def _sends_td_errors(pool: ActorPool, model: PrioritizedAlgorithm) -> bool:
    """Say whether actors send TD errors with their transitions. An explicit ``initial_priority`` of the buffer wins."""
    given = model.replay_buffer_kwargs.get("initial_priority", "td_error")
    is_asked_for = pool.settings.initial_priorities == "actor" and given == "td_error"
    return is_asked_for and not model.replay_buffer.scheme.draws_uniformly
