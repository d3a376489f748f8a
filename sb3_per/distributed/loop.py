"""
Collect from actors in place of SB3's ``collect_rollouts``.

A *tick* has as many transitions as there are environments, which SB3 counts as one step of all environments. The transitions
are successive steps of one actor or of several. Counters, callbacks and updates advance by ticks.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import RolloutReturn, TrainFreq, TrainFrequencyUnit
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per.algorithms.acting import ActingMixin
from sb3_per.buffers import PrioritizedSequenceReplayBuffer, hooks
from sb3_per.distributed import model_copy, random_state
from sb3_per.distributed.algorithm_state import count_episode, count_step, last_obs, n_timesteps_left, n_updates, set_last_obs
from sb3_per.distributed.chunks import Transitions, cut, joined, some_of, store, transitions_of
from sb3_per.distributed.crew import Crew
from sb3_per.distributed.environments import wrappers_of
from sb3_per.distributed.metrics import Metrics
from sb3_per.distributed.worker import exploration_ladder
from sb3_per.storage.arrays import tree_map
from sb3_per.utils.checks import Reasons, refuse


class LearningLoop:
    """
    Collect transitions from actors for one algorithm after the other.

    :param crew: the actors
    """

    def __init__(self, crew: Crew):
        self.crew = crew
        #: the algorithm that learns now
        self.model: ActingMixin | None = None
        #: the algorithm whose episodes continue if it learns again
        self.continued_model: ActingMixin | None = None
        #: metrics of the newest run
        self.metrics: Metrics | None = None
        #: the current run, while actors act
        self.run: Run | None = None

    def require_supported(self, model: ActingMixin) -> None:
        """
        Refuse algorithms and settings that do not work with actors.

        :param model: the algorithm that is to learn
        :raises NotImplementedError: for HER, sequences, networks of SBX, ``train_freq`` in episodes, and a buffer with methods
            that actors would bypass
        :raises ValueError: for a ladder without random actions, and for wrappers that actors cannot rebuild
        """
        buffer, name = model.replay_buffer, type(model).__name__
        assert isinstance(model.train_freq, TrainFreq)
        reasons: Reasons = {
            "hindsight (HER)": isinstance(buffer, HerReplayBuffer)
            and "its episodes lie in consecutive rows, which all environments share",
            "replay of sequences": isinstance(buffer, PrioritizedSequenceReplayBuffer)
            and "windows and recurrent states would have to go with the chunks",
            "networks of SBX": not model.can_act_in_copies
            and "actors act with copies of PyTorch's networks. Use the class of the same name from sb3_per",
            f"train_freq={model.train_freq}": model.train_freq.unit == TrainFrequencyUnit.EPISODE
            and "episodes of several actors end at any time. Count in steps",
        }
        refuse({f"{name} with actors and {what}": reason for what, reason in reasons.items()})
        if self.crew.settings.exploration == "ladder" and not hasattr(model, "exploration_schedule"):
            raise ValueError(
                f"exploration='ladder' needs an algorithm that takes random actions (DQN, QR-DQN), but {name} explores with "
                "its policy or action_noise. Use exploration=None"
            )
        hooks.require_own(buffer, "add_steps")
        for method in ("to_torch", "_normalize_obs", "_normalize_reward"):
            if hooks.is_overridden(buffer, method) and _sends_td_errors(self.crew, model):
                raise NotImplementedError(
                    f"{type(buffer).__name__} overrides {method}(), which actors do not call when they compute TD errors: set "
                    "make_actors(..., initial_priorities='max')"
                )
        wrappers_of(model.env, np.arange(model.n_envs))

    @contextlib.contextmanager
    def acting_for(self, model: ActingMixin) -> Iterator[None]:
        """
        Let the actors act for an algorithm while it learns.

        :param model: the algorithm
        :return: context; an exception in it stops the actors
        """
        self.crew.require_open()
        self.require_supported(model)
        self.model = model
        self.crew.start_run()
        try:
            yield
            if self.run is not None:
                self.continued_model = model if self.run.end() else None
        except BaseException:
            self.crew.close()
            raise
        finally:
            self.model = self.run = None

    def collect(self, callback: BaseCallback, log_interval: int | None = None, **_: Any) -> RolloutReturn:
        """
        Store transitions of actors, like SB3's ``collect_rollouts``, whose other arguments are attributes of the algorithm.

        :param callback: the user's callback
        :param log_interval: episodes from one line of the log to the next
        :return: see SB3
        """
        model = self.model
        assert model is not None and isinstance(model.train_freq, TrainFreq), "collect() is called within acting_for()"
        model.policy.set_training_mode(False)
        if self.run is None:
            self.run = Run(self.crew, model, continues=self.continued_model is model)
            self.continued_model, self.metrics = None, self.run.metrics
        run = self.run
        callback.on_rollout_start()
        n_collected = n_episodes = 0
        for _ in range(model.train_freq.frequency):
            if n_timesteps_left(model) == 0:
                break
            seen = run.next_tick()
            n = len(seen["dones"])
            model.num_timesteps += n
            n_collected += n
            callback.update_locals({"self": model, "env": model.env, **seen, "replay_buffer": model.replay_buffer})
            if not callback.on_step():
                return RolloutReturn(n_collected, n_episodes, continue_training=False)
            count_step(model, seen["infos"], seen["dones"])
            for _ in range(np.count_nonzero(seen["dones"])):
                n_episodes += 1
                episode_num = count_episode(model)
                if log_interval is not None and episode_num % log_interval == 0:
                    run.metrics.record()
                    model.dump_logs()
        callback.on_rollout_end()
        if model.num_timesteps > model.learning_starts:
            run.metrics.n_inserted += n_collected
        return RolloutReturn(n_collected, n_episodes, continue_training=True)


class Run:
    """
    Direct the actors in one run, a call of ``learn``.

    :param crew: the actors
    :param model: the algorithm that learns
    :param continues: whether the actors continue where the last run ended
    """

    def __init__(self, crew: Crew, model: ActingMixin, continues: bool):
        self.crew, self.settings, self.model = crew, crew.settings, model
        self.metrics = Metrics(crew, model)
        self._continues = continues
        # Stored transitions that callbacks have not seen yet.
        self._unseen: Transitions = {}
        # The number of updates of the published weights, and the weights.
        self._published: tuple[int, Any] = -1, None
        n_steps = -(-n_timesteps_left(model) // crew.n_envs)
        self._num_timesteps_at_end = model.num_timesteps + n_steps * crew.n_envs
        # In a small buffer, a larger chunk would overwrite transitions before they were counted.
        chunk = min(self.settings.chunk, max(1, model.replay_buffer.buffer_size // 4))
        self._content = crew.engine.put(model_copy.packed(model, chunk))
        # With a single actor and no lag, the actor draws from the learner's random state, as in a synchronous run.
        self._shares_random_state = crew.n_actors == 1 and self.settings.in_flight == 1
        space = model.action_space
        with random_state.RandomNumbers(random_state.current(space), space).drawing():  # does not change that state
            self._seed = np.random.randint(2**31), crew.n_runs, model.num_timesteps
        self._with_td_errors = _sends_td_errors(crew, model)
        crew.begin(n_steps, chunk, self._get_ready, self._act)

    # ---- messages to actors

    def _get_ready(self, actor: int, is_restart: bool) -> Any:
        """Ask an actor to get ready."""
        crew, columns = self.crew, self.crew.columns_of(actor)
        if is_restart:  # its pending chunks are lost, so its next step does not follow the last one that is stored
            cut(self.model, columns)
        seed = random_state.derived_seed(*self._seed, actor, crew.starts[actor])
        wrappers = None if self._continues and not is_restart else wrappers_of(self.model.env, columns)
        epsilon = exploration_ladder(crew.n_actors)[actor] if self.settings.exploration == "ladder" else None
        own_obs = tuple(tree_map(lambda part: part[columns], obs) for obs in last_obs(self.model))
        first_obs = None if is_restart else own_obs
        return crew.engine.ask(actor, "begin", self._content, seed, wrappers, epsilon, first_obs)

    def _act(self, actor: int, n_steps: int, n_steps_left: int) -> Any:
        """Ask an actor to act with the newest weights."""
        version, engine = n_updates(self.model), self.crew.engine
        if self._published[0] != version or self.model.get_vec_normalize_env() is not None:
            self._published = version, engine.put(model_copy.published(self.model))
        num_timesteps = self._num_timesteps_at_end - n_steps_left * self.crew.n_envs
        shared = random_state.current(self.model.action_space) if self._shares_random_state else None
        return engine.ask(actor, "collect", self._published[1], n_steps, num_timesteps, self._with_td_errors, shared)

    # ---- chunks from actors

    def next_tick(self) -> Transitions:
        """
        Take the next tick. Wait for chunks if necessary, and store them as they come.

        :return: as many transitions as there are environments, fewer at the end of the run
        """
        n_left = n_timesteps_left(self.model)
        n = min(self.crew.n_actors * self.crew.n_envs, n_left)
        while (n_unseen := len(self._unseen.get("dones", ()))) < n:
            actor, chunk = self.crew.next_chunk()
            self.metrics.lag(n_updates(self.model) - chunk.version)
            if chunk.random_state is not None:
                random_state.set_current(chunk.random_state, self.model.action_space)
            n_new = min(chunk.steps["rewards"].size, n_left - n_unseen)
            store(self.model, self.crew.columns_of(actor), chunk, n_new)
            new = some_of(transitions_of(chunk), slice(n_new))
            # A copy in any case: the arrays of a chunk may lie in Ray's object store, which must become free.
            self._unseen = joined([self._unseen, new] if n_unseen else [new])
        seen, self._unseen = some_of(self._unseen, slice(n)), some_of(self._unseen, slice(n, None))
        return seen

    def end(self) -> bool:
        """
        End the run.

        :return: whether the environments are where the buffer ends, so that another run can continue from there
        """
        # At the end, the last step of every environment counts.
        is_complete = self.crew.end() and self.model.num_timesteps == self._num_timesteps_at_end
        if not is_complete:
            set_last_obs(self.model, (None, last_obs(self.model)[1]))
        self.model.logger.info(self.metrics.line)
        return is_complete


def _sends_td_errors(crew: Crew, model: ActingMixin) -> bool:
    """Say whether actors send TD errors with their transitions. An explicit ``initial_priority`` of the buffer wins."""
    given = model.replay_buffer_kwargs.get("initial_priority", "td_error")
    is_asked_for = crew.settings.initial_priorities == "actor" and given == "td_error"
    return is_asked_for and not model.replay_buffer.scheme.draws_uniformly
