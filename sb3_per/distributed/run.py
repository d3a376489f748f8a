"""
One run of ``learn()`` with actors: what they are told, and what becomes of their chunks.

A *tick* is as many transitions as there are environments, which SB3 counts as one step of all of them. Its transitions are
successive steps of an actor, or of several actors. Counters, callbacks and updates go by ticks.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sb3_per.distributed import model_copy, random_state, wrappers
from sb3_per.distributed.algorithm_state import AlgorithmState
from sb3_per.distributed.messages import Setup, map_obs
from sb3_per.distributed.metrics import Metrics
from sb3_per.distributed.received import Piece, ReceivedChunk
from sb3_per.distributed.storing import Storing
from sb3_per.distributed.worker import exploration_ladder

if TYPE_CHECKING:
    from sb3_per.distributed.vec_env import ActorVecEnv


@dataclass(frozen=True)
class LoopSettings:
    """
    What actors do, see :func:`~sb3_per.distributed.make.make_actors`.

    :param chunk: steps of a call, of each environment
    :param exploration: ``"ladder"`` or ``None``
    :param initial_priorities: ``"actor"`` or ``"max"``
    """

    chunk: int
    exploration: str | None
    initial_priorities: str


class Run:
    """
    Lead the actors through one run.

    :param env: the environments of the actors
    :param settings: what the actors do
    :param model: the algorithm that learns
    :param number: number of the run, from 1; it changes the seeds
    :param continues: whether the actors go on where the last run ended
    """

    def __init__(self, env: "ActorVecEnv", settings: LoopSettings, model: Any, number: int, continues: bool):
        self.env, self.crew, self.settings, self.model = env, env.crew, settings, model
        self.state = AlgorithmState(model)
        self.metrics = Metrics(env.crew, self.state.n_stale_updates)
        self._number, self._continues = number, continues
        self._storing = Storing(model, env.n_actors, env.envs_per_actor)
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
        n_steps = -(-self._n_transitions // env.envs_per_actor)
        self._num_timesteps_at_end = model.num_timesteps + n_steps * env.envs_per_actor
        self.crew.begin(n_steps, settings.chunk, self._get_ready, self._act, self._lose)

    # ---- what actors are told

    def _prepare_setups(self) -> None:
        """Prepare what all actors are told."""
        env, buffer = self.env, self.model.replay_buffer
        # With a single actor and no lag, the actor draws from the learner's random state, as in a synchronous run.
        self._shares_random_state = env.n_actors == 1 and self.crew.settings.in_flight == 1
        self._seed = self._seed_of_all()
        self._content = env.engine.put(model_copy.packed(self.model))
        self._wrappers = wrappers.recipes_of(self.model.env)
        self._buffer_kwargs = dict(
            n_steps=buffer.n_steps, gamma=buffer.gamma, handle_timeout_termination=buffer.handle_timeout_termination
        )
        self._epsilons: list[Any] = [None] * env.n_actors
        if self.settings.exploration == "ladder":
            self._epsilons = list(exploration_ladder(env.n_actors))

    def _seed_of_all(self) -> int:
        for seed in (self.model.seed, self.env.recipe.arguments.get("seed")):
            if seed is not None:
                return int(seed)
        if self._shares_random_state:
            return int(np.random.SeedSequence().entropy % 2**32)  # type: ignore[operator]
        return int(np.random.randint(2**31))

    def _wants_td_errors(self) -> bool:
        """Tell whether actors set the priorities of new transitions. An explicit ``initial_priority`` wins."""
        given = self.model.replay_buffer_kwargs.get("initial_priority", "td_error")
        is_asked_for = self.settings.initial_priorities == "actor" and given == "td_error"
        return is_asked_for and not self.model.replay_buffer.scheme.draws_uniformly

    def _get_ready(self, actor: int, is_restart: bool) -> Any:
        """Ask an actor to get ready."""
        env, start, columns = self.env, self.crew.starts[actor], self.env.columns_of(actor)
        both = (None, None) if is_restart else self.state.last_obs
        last_obs = [None if obs is None else map_obs(lambda part: np.array(part[columns]), obs) for obs in both]
        setup = Setup(
            actor=actor,
            start=start,
            seed=random_state.derived_seed(self._seed, actor, start, self._number, self.state.timesteps_at_start),
            chunk=self.settings.chunk,
            buffer_kwargs=self._buffer_kwargs,
            wrappers=self._wrappers,
            epsilon=self._epsilons[actor],
            wants_td_errors=self._wants_td_errors(),
            continues=self._continues and not is_restart,
            last_obs=last_obs[0],
            last_original_obs=last_obs[1],
            wrapper_states=[] if is_restart else wrappers.states_of(self.model.env, columns),
        )
        return env.engine.ask(actor, "begin", env.packed_recipe, self._content, setup)

    def _act(self, actor: int, n_steps: int, n_steps_left: int) -> Any:
        """Ask an actor to act with the newest weights."""
        n_updates, engine = self.state.n_updates, self.env.engine
        if self._published is None or self._published[0] != n_updates or self.state.normalize is not None:
            self._published = n_updates, engine.put(model_copy.published(self.model))
        num_timesteps = self._num_timesteps_at_end - n_steps_left * self.env.envs_per_actor
        shared = random_state.current(self.model.action_space) if self._shares_random_state else None
        return engine.ask(actor, "collect", self._published[1], n_steps, num_timesteps, shared)

    def _lose(self, actor: int) -> None:
        """Cut the episode of an actor after its newest chunk, because the chunk after it is lost."""
        if actor in self._newest:
            self._newest[actor].is_cut = True
        else:
            self._storing.cut(actor)

    # ---- what becomes of chunks

    def next_tick(self) -> tuple[list[Piece], int]:
        """
        Take the next tick, and wait for chunks if necessary.

        :return: its pieces, and the number of its transitions that count, which is smaller at the end of the run
        """
        pieces: list[Piece] = []
        n_steps = min(self.env.n_actors, -(-self._n_transitions // self.env.envs_per_actor))
        n = min(n_steps * self.env.envs_per_actor, self._n_transitions)
        while n_steps > 0:
            if self._current is None:
                self._current = self._next_chunk()
            piece = self._current.take(n_steps)
            n_steps -= piece.end - piece.first
            pieces.append(piece)
            if self._current.n_taken == self._current.n_steps:
                self.crew.done_with(self._current.data.actor)
                self._current = None
        self._n_transitions -= n
        self._is_whole = n % self.env.envs_per_actor == 0
        return pieces, n

    def _next_chunk(self) -> ReceivedChunk:
        chunk = ReceivedChunk(self.crew.next_chunk(), self._n_to_come)
        self._n_to_come -= chunk.n_wanted
        self._newest[chunk.data.actor] = chunk
        self.metrics.lag(self.state.n_updates - chunk.data.version)
        if chunk.data.random_state is not None:
            random_state.set_current(chunk.data.random_state, self.model.action_space)
        return chunk

    def store(self, pieces: list[Piece]) -> None:
        """
        Store the steps of a tick that are not stored yet.

        :param pieces: the pieces of the tick
        """
        for piece in pieces:
            chunk, actor = piece.chunk, piece.chunk.data.actor
            if piece.end > chunk.n_stored:
                self._storing.store(chunk, piece.end)
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
