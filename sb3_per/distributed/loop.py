"""
The learner's side: what stands in the place of SB3's ``collect_rollouts`` where environments act by themselves. Replay,
updates and callbacks stay with the algorithm.

A *tick* is as many transitions as there are environments: what SB3 counts as one step of all of them. The transitions of a
tick are consecutive steps of an actor, or of several. Counters, callbacks and updates go by ticks; a chunk is written into the
buffer as a whole, at the first of its ticks.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import RolloutReturn, TrainFreq, TrainFrequencyUnit
from stable_baselines3.common.vec_env import VecNormalize
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per.buffers import PrioritizedSequenceReplayBuffer
from sb3_per.distributed import model_copy, streams, wrappers
from sb3_per.distributed.messages import Chunk, Setup, map_obs
from sb3_per.distributed.metrics import Metrics
from sb3_per.distributed.worker import exploration_ladder

if TYPE_CHECKING:
    from sb3_per.distributed.vec_env import ActorVecEnv


@dataclass(frozen=True)
class LoopSettings:
    """
    See :func:`~sb3_per.distributed.make.make_actors`.

    :param chunk: steps of a call, of each environment
    :param exploration: ``"ladder"`` or ``None``
    :param initial_priorities: ``"actor"`` or ``"max"``
    """

    chunk: int
    exploration: str | None
    initial_priorities: str


class _Piece:
    """
    Steps of a chunk, from one to another.

    :param chunk: that they are from
    :param first: the first
    :param end: behind the last
    """

    __slots__ = ("chunk", "end", "first")

    def __init__(self, chunk: "_Received", first: int, end: int):
        self.chunk, self.first, self.end = chunk, first, end


# Of a chunk, what goes into the buffer.
_STEPS = ("obs", "next_obs", "actions", "rewards", "dones", "timeouts", "td_errors")


class _Received:
    """
    A chunk that has come in, a copy.

    :param chunk: as it came: its arrays may lie in a store that has no room for them for long
    :param n_left: transitions that the run has room for; if that is less than the chunk has, its last ones do not count
    """

    def __init__(self, chunk: Chunk, n_left: int):
        self.data = chunk = _copied_chunk(chunk)
        self.n_steps, self.n_envs = chunk.rewards.shape
        #: transitions that count: of so many whole steps, and so many environments of the next one
        self.n_wanted = min(n_left, self.n_steps * self.n_envs)
        self.n_whole, self.n_rest = divmod(self.n_wanted, self.n_envs)
        #: steps that are part of a tick, and those that are in the buffer
        self.n_taken = self.n_stored = 0
        # Whether nothing follows its last step: what was to come is lost.
        self.is_cut = False
        # By transition, as callbacks see them.
        self._seen = {
            "buffer_actions": _rows(chunk.actions),
            "new_obs": map_obs(_rows, chunk.next_obs),
            "rewards": _rows(chunk.rewards),
            "dones": _rows(chunk.dones).astype(bool),
        }
        self._infos = {step * self.n_envs + env: info for step, env, info in cloudpickle.loads(chunk.infos)}

    def steps(self, first: int, end: int) -> dict[str, Any]:
        """
        :param first: step
        :param end: step behind the last
        :return: arguments of ``add_steps``, but for the columns
        """
        named = ((name, getattr(self.data, name)) for name in _STEPS)
        return {name: map_obs(lambda part: part[first:end], steps) for name, steps in named if steps is not None}

    def take(self, n_steps: int) -> _Piece:
        """
        :param n_steps: at most
        :return: as many of the next steps as there are
        """
        first = self.n_taken
        self.n_taken = min(first + n_steps, self.n_steps)
        return _Piece(self, first, self.n_taken)

    def seen(self, first: int, end: int) -> dict[str, Any]:
        """
        :param first: step
        :param end: step behind the last
        :return: what callbacks find in ``locals``, one entry for each transition that counts, in the order of the steps
        """
        first, end = first * self.n_envs, min(end * self.n_envs, self.n_wanted)
        seen: dict[str, Any] = {name: map_obs(lambda part: part[first:end], all_) for name, all_ in self._seen.items()}
        said = self._infos.get
        seen["infos"] = [said(i) or {"TimeLimit.truncated": False} for i in range(first, end)]
        return seen


class LearningLoop:
    """
    One learner, and actors that are ahead of it by as much as they may.

    :param env: that actors belong to
    :param settings: what they do
    """

    def __init__(self, env: "ActorVecEnv", settings: LoopSettings):
        self.env, self.crew, self.settings = env, env.crew, settings
        #: the algorithm that learns now
        self.model: Any = None
        #: the algorithm whose episodes go on, if it learns again
        self.continued_model: Any = None
        self.metrics: Metrics | None = None
        self._begun = False
        # For seeds: another run explores in another way.
        self._n_runs = 0

    # ---- what an algorithm asks for

    def require_supported(self, model: Any) -> None:
        """
        :param model: that is to learn with these actors
        :raises NotImplementedError: if that cannot be
        :raises ValueError: for settings that contradict each other
        """
        buffer, name = model.replay_buffer, type(model).__name__
        reasons = {
            "hindsight (HER)": isinstance(buffer, HerReplayBuffer)
            and "its episodes lie in consecutive rows, which all environments share",
            "replay of sequences": (model.learns_from_sequences or isinstance(buffer, PrioritizedSequenceReplayBuffer))
            and "windows and recurrent states would have to go with the chunks",
            f"train_freq={_train_freq_of(model)}": _train_freq_of(model).unit == TrainFrequencyUnit.EPISODE
            and "episodes of several actors end at any time. Count in steps",
        }
        for what, reason in reasons.items():
            if reason:
                raise NotImplementedError(f"{name} with actors and {what} is not supported: {reason}")
        if self.settings.exploration == "ladder" and not hasattr(model, "exploration_schedule"):
            raise ValueError(
                f"exploration='ladder' needs an algorithm that takes random actions (DQN, QR-DQN); {name} explores by its "
                "policy or by action_noise: exploration=None"
            )
        wrappers.recipes_of(model.env)

    @contextlib.contextmanager
    def acting_for(self, model: Any) -> Iterator[None]:
        """
        While an algorithm learns.

        :param model: the algorithm
        :return: context; an exception in it stops the actors
        """
        self.env.require_open()
        self.require_supported(model)
        self.model, self._begun = model, False
        self.crew.start_run()
        try:
            yield
            self._end()
        except BaseException:
            self.env.close()
            raise
        finally:
            self.model, self._begun = None, False

    @property
    def is_acting(self) -> bool:
        """Whether actors step the environments for an algorithm that learns."""
        return self._begun

    def _wants_td_errors(self, model: Any) -> bool:
        """Whether new transitions get the priorities that actors have for them; what the buffer was told counts more."""
        told = model.replay_buffer_kwargs.get("initial_priority", "td_error")
        is_asked_for = self.settings.initial_priorities == "actor" and told == "td_error"
        return is_asked_for and not model.replay_buffer.scheme.draws_uniformly

    # ---- a run

    def _begin(self) -> None:
        model, env, crew = self.model, self.env, self.crew
        self._begun = True
        self._n_runs += 1
        self._current: _Received | None = None
        self._all_columns = np.arange(env.num_envs)
        # Of each actor, the chunk that came last, until it is stored.
        self._newest: dict[int, _Received] = {}
        # Transitions that are left to the ticks, and those that chunks are to come for.
        self._n_transitions = self._n_to_come = model._total_timesteps - model.num_timesteps
        # Whether all environments of the last step count.
        self._is_whole = True
        self._published: tuple[int, Any] | None = None
        self._shares_streams = env.n_actors == 1 and crew.settings.in_flight == 1
        self._continues = self.continued_model is model
        self.continued_model = None
        seed = self._seed()
        content = env.engine.put(model_copy.packed(model))
        recipes = wrappers.recipes_of(model.env)
        buffer = model.replay_buffer
        recorder = dict(
            n_steps=buffer.n_steps, gamma=buffer.gamma, handle_timeout_termination=buffer.handle_timeout_termination
        )
        ladder: list[Any] = [None] * env.n_actors
        if self.settings.exploration == "ladder":
            ladder = list(exploration_ladder(env.n_actors))

        def get_ready(actor: int, is_restart: bool) -> Any:
            columns = env.columns_of(actor)
            setup = Setup(
                actor=actor,
                start=crew.starts[actor],
                seed=streams.derived_seed(seed, actor, crew.starts[actor], self._n_runs, model._num_timesteps_at_start),
                chunk=self.settings.chunk,
                recorder=recorder,
                wrappers=recipes,
                epsilon=ladder[actor],
                wants_td_errors=self._wants_td_errors(model),
                continues=self._continues and not is_restart,
                last_obs=None if is_restart else _copied(model._last_obs, columns),
                last_original_obs=None if is_restart else _copied(model._last_original_obs, columns),
                wrapper_states=[] if is_restart else wrappers.states_of(model.env, columns),
            )
            return env.engine.ask(actor, "begin", env.packed_recipe, content, setup)

        self.metrics = Metrics(crew, model._n_stale_updates)
        # Updates that are counted, and transitions that the next ones are for.
        self._n_updates_seen, self._n_due = model._n_updates, 0
        n_steps = -(-self._n_transitions // env.envs_per_actor)
        self._num_timesteps_at_end = model.num_timesteps + n_steps * env.envs_per_actor
        crew.begin(n_steps, self.settings.chunk, get_ready, self._act, self._lose)

    def _seed(self) -> int:
        """Of all actors' random numbers."""
        for seed in (self.model.seed, self.env.recipe.arguments.get("seed")):
            if seed is not None:
                return int(seed)
        if self._shares_streams:
            return int(np.random.SeedSequence().entropy % 2**32)  # type: ignore[operator]
        return int(np.random.randint(2**31))

    def _act(self, actor: int, n_steps: int, n_steps_left: int) -> Any:
        model = self.model
        if self._published is None or self._published[0] != model._n_updates or model._vec_normalize_env is not None:
            self._published = model._n_updates, self.env.engine.put(model_copy.published(model))
        num_timesteps = self._num_timesteps_at_end - n_steps_left * self.env.envs_per_actor
        random_state = streams.current(model.action_space) if self._shares_streams else None
        return self.env.engine.ask(actor, "collect", self._published[1], n_steps, num_timesteps, random_state)

    def _lose(self, actor: int) -> None:
        """The steps of an actor that come next do not follow those that came last."""
        if actor in self._newest:
            self._newest[actor].is_cut = True
        else:
            self._cut(actor)

    def _cut(self, actor: int) -> None:
        columns = self._columns(actor)
        self.model.replay_buffer.cut_columns(columns)
        if self.model._vec_normalize_env is not None:
            self.model._vec_normalize_env.returns[columns] = 0.0

    def _columns(self, actor: int) -> np.ndarray:
        return self._all_columns[actor * self.env.envs_per_actor : (actor + 1) * self.env.envs_per_actor]

    def _end(self) -> None:
        """The environments are where the buffer ends, or the next run resets them."""
        if not self._begun:
            return
        self._count_samples()
        is_complete = self.crew.end() and self._current is None and self._n_transitions == 0 and self._is_whole
        if is_complete:
            self.continued_model = self.model
        else:
            self.model._last_obs = None
        assert self.metrics is not None
        self.model.logger.info(self.metrics.line)

    # ---- in the place of SB3's collect_rollouts

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
        Store what actors have collected, see SB3.

        :param callback: of the user
        :param train_freq: ticks until the next updates
        :param replay_buffer: of the learner
        :param action_noise: actors have their own
        :param learning_starts: actors know it
        :param log_interval: episodes from one line of the log to the next
        :return: as SB3
        """
        self.model.policy.set_training_mode(False)
        if not self._begun:
            self._begin()
        model, metrics = self.model, self.metrics
        assert metrics is not None
        self._count_samples()
        callback.on_rollout_start()
        n_collected = n_episodes = 0
        for _ in range(train_freq.frequency):
            if model.num_timesteps >= model._total_timesteps:
                break
            pieces, n = self._next_tick()
            model.num_timesteps += n
            n_collected += n
            seen = _locals_of(pieces)
            callback.update_locals({"self": model, "env": model.env, **seen, "replay_buffer": replay_buffer})
            if not callback.on_step():
                return RolloutReturn(n_collected, n_episodes, continue_training=False)
            model._update_info_buffer(seen["infos"], seen["dones"])
            for piece in pieces:
                if piece.end > piece.chunk.n_stored:
                    self._store(piece, replay_buffer)
            metrics.admitted(n)
            model._update_current_progress_remaining(model.num_timesteps, model._total_timesteps)
            model._on_step()
            for _ in range(np.count_nonzero(seen["dones"])):
                n_episodes += 1
                model._episode_num += 1
                if log_interval is not None and model._episode_num % log_interval == 0:
                    model.dump_logs()
        callback.on_rollout_end()
        if model.num_timesteps > learning_starts:
            self._n_due = n_collected  # these are what SB3 updates for, next
        return RolloutReturn(n_collected, n_episodes, continue_training=True)

    def _count_samples(self) -> None:
        """Of the updates since the last rollout."""
        n_updates = self.model._n_updates
        if self.metrics is not None:
            self.metrics.n_sampled += (n_updates - self._n_updates_seen) * self.model.batch_size
            self.metrics.n_inserted += self._n_due
        self._n_updates_seen, self._n_due = n_updates, 0

    def record_metrics(self) -> None:
        """Before a line of the log is written."""
        if self.metrics is not None:
            self.metrics.record(self.model.logger, self.model._n_stale_updates)

    def _next_tick(self) -> tuple[list[_Piece], int]:
        """
        :return: steps, as many as there are actors, and how many transitions of them count: at the end of the run, fewer
        """
        pieces: list[_Piece] = []
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

    def _next_chunk(self) -> _Received:
        chunk = _Received(self.crew.next_chunk(), self._n_to_come)
        self._n_to_come -= chunk.n_wanted
        self._newest[chunk.data.actor] = chunk
        assert self.metrics is not None
        self.metrics.lag(self.model._n_updates - chunk.data.version)
        if chunk.data.random_state is not None:
            streams.take_on(chunk.data.random_state, self.model.action_space)
        return chunk

    def _store(self, piece: _Piece, buffer: Any) -> None:
        """
        Store the steps of a tick and, ahead of their own ticks, those of the same chunk: one write costs as much as another.

        :param piece: of the tick
        :param buffer: of the learner
        """
        chunk, data = piece.chunk, piece.chunk.data
        columns, first = self._columns(data.actor), chunk.n_stored
        # A small buffer would have forgotten the first of them before their tick.
        ahead = max(1, buffer.buffer_size // 4)
        chunk.n_stored = end = min(max(piece.end, first + ahead), chunk.n_steps)
        end_of_whole = min(end, chunk.n_whole)
        for begin in range(first, end_of_whole, buffer.buffer_size):  # in a tiny one, more than a lap
            _add(buffer, columns, chunk.steps(begin, min(begin + buffer.buffer_size, end_of_whole)))
        if chunk.n_rest > 0 and first <= chunk.n_whole < end:  # of the last step of a run, the environments that are left
            last = chunk.steps(chunk.n_whole, chunk.n_whole + 1)
            rest = {name: map_obs(lambda part: part[:, : chunk.n_rest], steps) for name, steps in last.items()}
            _add(buffer, columns[: chunk.n_rest], rest)
        self._learn_statistics(data, columns, first, end_of_whole)
        if end == chunk.n_steps:
            self._note_last(data, columns)
            if chunk.is_cut:
                self._cut(data.actor)
            if self._newest.get(data.actor) is chunk:
                del self._newest[data.actor]

    def _learn_statistics(self, data: Chunk, columns: np.ndarray, first: int, end: int) -> None:
        """For ``VecNormalize``, which is the learner's; actors go on from what it publishes."""
        normalize: VecNormalize | None = self.model._vec_normalize_env
        if normalize is None or end <= first:
            return

        def behind(steps: np.ndarray, last: np.ndarray) -> np.ndarray:
            # In a buffer, discrete observations have one more dimension.
            return np.concatenate((steps[first + 1 : end + 1], last.reshape(1, *steps.shape[1:])))[: end - first]

        if isinstance(data.obs, dict):
            new_obs: Any = {key: behind(data.obs[key], data.last_original_obs[key]) for key in data.obs}
        else:
            new_obs = behind(data.obs, data.last_original_obs)
        wrappers.update_statistics(normalize, columns, new_obs, data.rewards[first:end], data.dones[first:end])

    def _note_last(self, data: Chunk, columns: np.ndarray) -> None:
        """What SB3 knows of the environments' present, for whoever looks, and for a run that continues."""
        model = self.model
        for name, last in (("_last_obs", data.last_obs), ("_last_original_obs", data.last_original_obs)):
            present = getattr(model, name)
            if present is None or last is None:
                continue
            if isinstance(present, dict):
                for key, part in present.items():
                    part[columns] = last[key]
            else:
                present[columns] = last


def _add(buffer: Any, columns: np.ndarray, steps: dict[str, Any]) -> None:
    if "td_errors" not in steps:
        buffer.add_steps(columns, **steps)
        return
    # TD errors need this setting. Outside of this call the buffer keeps its own, for whoever saves it.
    own, buffer.initial_priority = buffer.initial_priority, "td_error"
    try:
        buffer.add_steps(columns, **steps)
    finally:
        buffer.initial_priority = own


def _copied_chunk(chunk: Chunk) -> Chunk:
    arrays = {name: value for name, value in vars(chunk).items() if isinstance(value, (np.ndarray, dict))}
    return replace(chunk, **{name: map_obs(np.array, value) for name, value in arrays.items()})


def _copied(obs: Any, columns: slice) -> Any:
    return None if obs is None else map_obs(lambda part: np.array(part[columns]), obs)


def _train_freq_of(model: Any) -> TrainFreq:
    model._convert_train_freq()
    return model.train_freq  # type: ignore[no-any-return]


def _locals_of(pieces: list[_Piece]) -> dict[str, Any]:
    """
    :param pieces: of a tick
    :return: what callbacks find in ``locals``, one entry for each transition
    """
    first, *others = (piece.chunk.seen(piece.first, piece.end) for piece in pieces)
    for other in others:
        for name, part in other.items():
            if isinstance(part, dict):
                first[name] = {key: np.concatenate((first[name][key], part[key])) for key in part}
            else:
                first[name] = first[name] + part if name == "infos" else np.concatenate((first[name], part))
    return first


def _rows(steps: np.ndarray) -> np.ndarray:
    return steps.reshape(-1, *steps.shape[2:])
