"""
The learner's loop, which replaces SB3's ``collect_rollouts``. The algorithm calls it while its environments are actors.

A *tick* is as many transitions as there are environments, which SB3 counts as one step of all of them. Its transitions are
successive steps of an actor, or of several actors. Counters, callbacks and updates go by ticks.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import RolloutReturn, TrainFreq, TrainFrequencyUnit
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per.buffers import PrioritizedSequenceReplayBuffer
from sb3_per.distributed import model_copy, random_state
from sb3_per.distributed.algorithm_state import AlgorithmState
from sb3_per.distributed.chunks import Piece, ReceivedChunk, Storing, seen_in
from sb3_per.distributed.crew import Crew
from sb3_per.distributed.environments import wrappers_of
from sb3_per.distributed.metrics import Metrics
from sb3_per.distributed.worker import Setup, exploration_ladder
from sb3_per.storage.arrays import tree_map


class LearningLoop:
    """
    Collect transitions from actors for one algorithm after the other.

    :param crew: the actors
    """

    def __init__(self, crew: Crew):
        self.crew = crew
        #: the algorithm that learns now
        self.model: Any = None
        #: the algorithm whose episodes continue if it learns again
        self.continued_model: Any = None
        #: counts of the newest run
        self.metrics: Metrics | None = None
        #: the current run, while actors act
        self.run: Run | None = None
        self._n_runs = 0

    def require_supported(self, model: Any) -> None:
        """
        Refuse algorithms and settings that do not work with actors.

        :param model: the algorithm that is to learn
        :raises NotImplementedError: for HER, sequences, and ``train_freq`` in episodes
        :raises ValueError: for a ladder without random actions, and for wrappers that actors cannot rebuild
        """
        buffer, name = model.replay_buffer, type(model).__name__
        reasons = {
            "hindsight (HER)": isinstance(buffer, HerReplayBuffer)
            and "its episodes lie in consecutive rows, which all environments share",
            "replay of sequences": isinstance(buffer, PrioritizedSequenceReplayBuffer)
            and "windows and recurrent states would have to go with the chunks",
            f"train_freq={model.train_freq}": model.train_freq.unit == TrainFrequencyUnit.EPISODE
            and "episodes of several actors end at any time. Count in steps",
        }
        for what, reason in reasons.items():
            if reason:
                raise NotImplementedError(f"{name} with actors and {what} is not supported: {reason}")
        if self.crew.settings.exploration == "ladder" and not hasattr(model, "exploration_schedule"):
            raise ValueError(
                f"exploration='ladder' needs an algorithm that takes random actions (DQN, QR-DQN), but {name} explores with "
                "its policy or action_noise. Use exploration=None"
            )
        wrappers_of(model.env)

    @contextlib.contextmanager
    def acting_for(self, model: Any) -> Iterator[None]:
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

    def _begin(self) -> "Run":
        self._n_runs += 1
        continues, self.continued_model = self.continued_model is self.model, None
        self.run = Run(self.crew, self.model, self._n_runs, continues)
        self.metrics = self.run.metrics
        return self.run

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
        run = self.run or self._begin()
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
            run.store(pieces)
            run.metrics.admitted(n)
            state.count_step(seen["infos"], seen["dones"])
            for _ in range(np.count_nonzero(seen["dones"])):
                n_episodes += 1
                episode = state.count_episode()
                if log_interval is not None and episode % log_interval == 0:
                    run.metrics.record(model.logger, model.n_stale_updates)
                    model.dump_logs()
        callback.on_rollout_end()
        if model.num_timesteps > learning_starts:
            run.count_samples(n_due=n_collected)
        return RolloutReturn(n_collected, n_episodes, continue_training=True)


class Run:
    """
    Lead the actors through one run.

    :param crew: the actors
    :param model: the algorithm that learns
    :param number: number of the run, from 1; it changes the seeds
    :param continues: whether the actors go on where the last run ended
    """

    def __init__(self, crew: Crew, model: Any, number: int, continues: bool):
        self.crew, self.settings, self.model = crew, crew.settings, model
        self.state = AlgorithmState(model)
        self.metrics = Metrics(crew, model.n_stale_updates)
        self._number, self._continues = number, continues
        self._storing = Storing(model, crew.n_actors, crew.n_envs)
        # The chunk that ticks are taken from, and the newest chunk of each actor until it is stored.
        self._current: ReceivedChunk | None = None
        self._newest: dict[int, ReceivedChunk] = {}
        # Transitions that are left for ticks, and transitions that have not arrived yet.
        self._n_transitions = self._n_to_come = self.state.total_timesteps - model.num_timesteps
        # Whether all environments of the last step count.
        self._is_whole = True
        # The published weights, and the number of updates that they had.
        self._published: tuple[int, Any] | None = None
        # Updates that are counted, and transitions that the next updates are for.
        self._n_updates_seen, self._n_due = self.state.n_updates, 0
        self._prepare_setups()
        n_steps = -(-self._n_transitions // crew.n_envs)
        self._num_timesteps_at_end = model.num_timesteps + n_steps * crew.n_envs
        self.crew.begin(n_steps, self._get_ready, self._act, self._lose)

    # ---- messages to actors

    def _prepare_setups(self) -> None:
        """Prepare what is the same for all actors."""
        crew, model, buffer = self.crew, self.model, self.model.replay_buffer
        # With a single actor and no lag, the actor draws from the learner's random state, as in a synchronous run.
        self._shares_random_state = crew.n_actors == 1 and self.settings.in_flight == 1
        self._seed = self._seed_of_all()
        self._num_timesteps_at_start = model.num_timesteps
        self._content = crew.engine.put(model_copy.packed(model))
        self._buffer_kwargs = dict(
            n_steps=buffer.n_steps, gamma=buffer.gamma, handle_timeout_termination=buffer.handle_timeout_termination
        )
        has_ladder = self.settings.exploration == "ladder"
        self._epsilons: list[Any] = list(exploration_ladder(crew.n_actors)) if has_ladder else [None] * crew.n_actors
        # An explicit `initial_priority` of the buffer wins.
        given = model.replay_buffer_kwargs.get("initial_priority", "td_error")
        is_asked_for = self.settings.initial_priorities == "actor" and given == "td_error"
        self._wants_td_errors = is_asked_for and not buffer.scheme.draws_uniformly

    def _seed_of_all(self) -> int:
        for seed in (self.model.seed, self.crew.recipe.arguments.get("seed")):
            if seed is not None:
                return int(seed)
        if self._shares_random_state:  # which a draw would change
            return int(np.random.SeedSequence().entropy % 2**32)  # type: ignore[operator]
        return int(np.random.randint(2**31))

    def _get_ready(self, actor: int, is_restart: bool) -> Any:
        """Ask an actor to get ready."""
        crew, start, columns = self.crew, self.crew.starts[actor], self.crew.columns_of(actor)

        def own(obs: Any) -> Any:
            return None if obs is None else tree_map(lambda part: np.array(part[columns]), obs)

        last_obs, last_original_obs = self.state.last_obs
        setup = Setup(
            actor=actor,
            start=start,
            seed=random_state.derived_seed(self._seed, actor, start, self._number, self._num_timesteps_at_start),
            chunk=self.settings.chunk,
            buffer_kwargs=self._buffer_kwargs,
            wrappers=wrappers_of(self.model.env, None if is_restart else columns),
            epsilon=self._epsilons[actor],
            wants_td_errors=self._wants_td_errors,
            continues=self._continues and not is_restart,
            last_obs=None if is_restart else (own(last_obs), own(last_original_obs)),
        )
        return crew.engine.ask(actor, "begin", crew.packed_recipe, self._content, setup)

    def _act(self, actor: int, n_steps: int, n_steps_left: int) -> Any:
        """Ask an actor to act with the newest weights."""
        n_updates, engine = self.state.n_updates, self.crew.engine
        if self._published is None or self._published[0] != n_updates or self.model.get_vec_normalize_env() is not None:
            self._published = n_updates, engine.put(model_copy.published(self.model))
        num_timesteps = self._num_timesteps_at_end - n_steps_left * self.crew.n_envs
        shared = random_state.current(self.model.action_space) if self._shares_random_state else None
        return engine.ask(actor, "collect", self._published[1], n_steps, num_timesteps, shared)

    def _lose(self, actor: int) -> None:
        """Cut the episode of an actor after its newest chunk, because the chunk after it is lost."""
        if actor in self._newest:
            self._newest[actor].is_cut = True
        else:
            self._storing.cut(actor)

    # ---- chunks from actors

    def next_tick(self) -> tuple[list[Piece], int]:
        """
        Take the next tick, and wait for chunks if necessary.

        :return: its pieces, and the number of its transitions that count, which is smaller at the end of the run
        """
        pieces: list[Piece] = []
        n_steps = min(self.crew.n_actors, -(-self._n_transitions // self.crew.n_envs))
        n = min(n_steps * self.crew.n_envs, self._n_transitions)
        while n_steps > 0:
            if self._current is None:
                self._current = self._next_chunk()
            chunk, first = self._current, self._current.n_taken
            chunk.n_taken = min(first + n_steps, chunk.n_steps)
            n_steps -= chunk.n_taken - first
            pieces.append((chunk, first, chunk.n_taken))
            if chunk.n_taken == chunk.n_steps:
                self.crew.done_with(chunk.actor)
                self._current = None
        self._n_transitions -= n
        self._is_whole = n % self.crew.n_envs == 0
        return pieces, n

    def _next_chunk(self) -> ReceivedChunk:
        answer = self.crew.next_chunk()
        self.metrics.lag(self.state.n_updates - answer.version)
        if answer.random_state is not None:
            random_state.set_current(answer.random_state, self.model.action_space)
        chunk = self._newest[answer.actor] = ReceivedChunk(answer, self._n_to_come)
        self._n_to_come -= chunk.n_wanted
        return chunk

    def store(self, pieces: list[Piece]) -> None:
        """
        Store the steps of a tick that are not stored yet.

        :param pieces: the pieces of the tick
        """
        for chunk, _, end in pieces:
            actor = chunk.actor
            if end > chunk.n_stored:
                self._storing.store(chunk, end)
                if chunk.n_stored == chunk.n_steps and self._newest.get(actor) is chunk:
                    del self._newest[actor]

    # ---- the end

    def count_samples(self, n_due: int = 0) -> None:
        """
        Count the updates since the last call, and the transitions that they were for.

        :param n_due: transitions that the next updates are for
        """
        n_updates = self.state.n_updates
        self.metrics.n_sampled += (n_updates - self._n_updates_seen) * self.model.batch_size
        self.metrics.n_inserted += self._n_due
        self._n_updates_seen, self._n_due = n_updates, n_due

    def end(self) -> bool:
        """
        End the run.

        :return: whether the environments are where the buffer ends, so that another run may go on from there
        """
        self.count_samples()
        is_complete = self.crew.end() and self._current is None and self._n_transitions == 0 and self._is_whole
        if not is_complete:
            self.state.last_obs = None, self.state.last_obs[1]
        self.model.logger.info(self.metrics.line)
        return is_complete
