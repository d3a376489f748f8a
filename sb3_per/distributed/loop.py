"""The learner's loop, in place of SB3's ``collect_rollouts``. The algorithm calls it while its environments are actors."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import RolloutReturn, TrainFreq, TrainFrequencyUnit
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per.buffers import PrioritizedSequenceReplayBuffer
from sb3_per.distributed import wrappers
from sb3_per.distributed.algorithm_state import AlgorithmState
from sb3_per.distributed.metrics import Metrics
from sb3_per.distributed.received import seen_in
from sb3_per.distributed.run import LoopSettings, Run

if TYPE_CHECKING:
    from sb3_per.distributed.vec_env import ActorVecEnv


class LearningLoop:
    """
    Collect transitions from actors for one algorithm after the other.

    :param env: the environments of the actors
    :param settings: what the actors do
    """

    def __init__(self, env: "ActorVecEnv", settings: LoopSettings):
        self.env, self.settings = env, settings
        #: the algorithm that learns now
        self.model: Any = None
        #: the algorithm whose episodes go on if it learns again
        self.continued_model: Any = None
        #: counts of the newest run
        self.metrics: Metrics | None = None
        # The run that goes on, once actors act.
        self._run: Run | None = None
        self._n_runs = 0

    @property
    def is_acting(self) -> bool:
        """Whether the actors step the environments now."""
        return self._run is not None

    def require_supported(self, model: Any) -> None:
        """
        Refuse algorithms and settings that do not work with actors.

        :param model: the algorithm that is to learn
        :raises NotImplementedError: for HER, sequences, and ``train_freq`` in episodes
        :raises ValueError: for a ladder without random actions, and for wrappers that actors cannot rebuild
        """
        buffer, name = model.replay_buffer, type(model).__name__
        train_freq = AlgorithmState(model).train_freq
        reasons = {
            "hindsight (HER)": isinstance(buffer, HerReplayBuffer)
            and "its episodes lie in consecutive rows, which all environments share",
            "replay of sequences": (model.learns_from_sequences or isinstance(buffer, PrioritizedSequenceReplayBuffer))
            and "windows and recurrent states would have to go with the chunks",
            f"train_freq={train_freq}": train_freq.unit == TrainFrequencyUnit.EPISODE
            and "episodes of several actors end at any time. Count in steps",
        }
        for what, reason in reasons.items():
            if reason:
                raise NotImplementedError(f"{name} with actors and {what} is not supported: {reason}")
        if self.settings.exploration == "ladder" and not hasattr(model, "exploration_schedule"):
            raise ValueError(
                f"exploration='ladder' needs an algorithm that takes random actions (DQN, QR-DQN), but {name} explores with "
                "its policy or action_noise. Use exploration=None"
            )
        wrappers.recipes_of(model.env)

    @contextlib.contextmanager
    def acting_for(self, model: Any) -> Iterator[None]:
        """
        Let the actors act for an algorithm while it learns.

        :param model: the algorithm
        :return: context; an exception in it stops the actors
        """
        self.env.require_open()
        self.require_supported(model)
        self.model = model
        self.env.crew.start_run()
        try:
            yield
            if self._run is not None:
                self.continued_model = model if self._run.end() else None
        except BaseException:
            self.env.close()
            raise
        finally:
            self.model = self._run = None

    def _begin(self) -> Run:
        self._n_runs += 1
        continues, self.continued_model = self.continued_model is self.model, None
        run = Run(self.env, self.settings, self.model, self._n_runs, continues)
        self.metrics = run.metrics
        return run

    def collect(
        self,
        callback: BaseCallback,
        train_freq: TrainFreq,
        replay_buffer: Any,
        action_noise: Any = None,
        learning_starts: int = 0,
        log_interval: int | None = None,
    ) -> RolloutReturn:
        """
        Store transitions of actors, like SB3's ``collect_rollouts``.

        :param callback: the user's callback
        :param train_freq: ticks until the next updates
        :param replay_buffer: the learner's buffer
        :param action_noise: unused, because actors have their own
        :param learning_starts: transitions before the first update
        :param log_interval: episodes from one line of the log to the next
        :return: see SB3
        """
        model = self.model
        model.policy.set_training_mode(False)
        run = self._run = self._run or self._begin()
        state = run.state
        run.count_samples()
        callback.on_rollout_start()
        n_collected = n_episodes = 0
        for _ in range(train_freq.frequency):
            if model.num_timesteps >= state.total_timesteps:
                break
            pieces, n = run.next_tick()
            model.num_timesteps += n
            n_collected += n
            seen = seen_in(pieces)
            callback.update_locals({"self": model, "env": model.env, **seen, "replay_buffer": replay_buffer})
            if not callback.on_step():
                return RolloutReturn(n_collected, n_episodes, continue_training=False)
            state.count_infos(seen["infos"], seen["dones"])
            run.store(pieces)
            run.metrics.admitted(n)
            state.count_step()
            for _ in range(np.count_nonzero(seen["dones"])):
                n_episodes += 1
                episode = state.count_episode()
                if log_interval is not None and episode % log_interval == 0:
                    model.dump_logs()
        callback.on_rollout_end()
        if model.num_timesteps > learning_starts:
            run.count_samples(n_due=n_collected)
        return RolloutReturn(n_collected, n_episodes, continue_training=True)

    def record_metrics(self) -> None:
        """Record the counts of the run. The algorithm calls it before it writes a line of the log."""
        if self._run is not None:
            self._run.metrics.record(self.model.logger, self._run.state.n_stale_updates)
