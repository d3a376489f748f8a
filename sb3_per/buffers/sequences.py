"""
Prioritized replay of sequences, for recurrent agents (R2D2: Kapturowski et al. 2019, "Recurrent Experience Replay in
Distributed Reinforcement Learning").

Storage, ids and the draw are those of single transitions. A drawn id is the first step of a window of consecutive steps.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, NoReturn

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecNormalize
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per.buffers import inputs
from sb3_per.buffers.n_step import powers
from sb3_per.buffers.replay import PrioritizedDictReplayBuffer, PrioritizedReplayBuffer
from sb3_per.buffers.samples import SequenceReplayBufferSamples
from sb3_per.buffers.settings import SEQUENCE_ARGUMENTS
from sb3_per.buffers.slots import map_arrays, read_rewards_and_ends, read_slots
from sb3_per.buffers.state import BufferState
from sb3_per.buffers.window_targets import mix_over_time, n_step_targets
from sb3_per.buffers.windows import States, Windows, WindowTracker
from sb3_per.sampling.sampler import DrawSettings
from sb3_per.sampling.subsets import Candidates, MarkedSlots
from sb3_per.utils.checks import FRACTION, check_argument, integer
from sb3_per.utils.origin import is_overridden


class PrioritizedSequenceReplayBuffer(PrioritizedReplayBuffer):
    """
    Replay buffer that draws windows of consecutive steps of an episode, by the priority of the window (R2D2: Kapturowski et
    al. 2019). The recurrent agents :class:`~sb3_per.PERRecurrentDQN` and :class:`~sb3_per.PERRecurrentSAC` make one
    themselves.

    ::

        buffer = PrioritizedSequenceReplayBuffer(
            10_000, env.observation_space, env.action_space, sequence_length=40, burn_in=20, state_shapes=((1, 64), (1, 64))
        )

    Every ``sequence_period``-th step of an episode is an anchor: a window of ``sequence_length`` learned steps begins there.
    Up to ``burn_in`` steps before it warm up the recurrent state, fewer near the start of the episode. A window ends with
    its episode. So every step is learned, none twice if the period equals the length, and no window crosses a reset.
    A window can be drawn once ``sequence_length + n_steps`` observations from the anchor on are stored, or its episode has
    ended.

    :param args: SB3's arguments, see ``stable_baselines3.common.buffers.ReplayBuffer``; ``buffer_size`` counts transitions
    :param sequence_length: learned steps of a window, at least 1
    :param burn_in: steps before them, at least 0
    :param sequence_period: steps from one anchor to the next, from 1 to ``sequence_length``; ``None``: ``sequence_length``,
        so that windows do not overlap. With half of it, each step is in two windows (R2D2)
    :param eta: in [0, 1]; the error of a window is ``eta max|td| + (1 - eta) mean|td|``
    :param store_state: whether to store the recurrent states of the acting agent, from which windows are unrolled;
        otherwise every window starts from zeros
    :param state_shapes: (n_layers, hidden) of each recurrent state, e.g. ``((1, 64), (1, 64))`` for an LSTM
    :param kwargs: SB3's keyword arguments and those of :class:`~sb3_per.buffers.replay.PrioritizedReplayBuffer`
    :raises ValueError: for a setting outside of its range, before any memory is allocated
    :raises NotImplementedError: for what sequences do not support, before any memory is allocated: schemes with a
        loss of their own (LAP, PAL), hindsight, ``optimize_memory_usage``, ``recency``, ``initial_priority="td_error"``,
        ``actor_batch="uniform"``, demonstrations
    """

    extra_arguments = SEQUENCE_ARGUMENTS
    sized_parts = (*PrioritizedReplayBuffer.sized_parts, "windows")
    tracker_class = WindowTracker
    draws_all_rows = False
    follows_episodes = True
    kind_in_files = "sequences"
    row_state: ClassVar[dict[str, type[np.generic]]] = {**PrioritizedReplayBuffer.row_state, "windows_steps": np.int32}

    # Starts and states of the step that is being added.
    _given: tuple[np.ndarray | None, States | None] = (None, None)

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        device: th.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        sequence_length: int = 80,
        burn_in: int = 40,
        sequence_period: int | None = None,
        eta: float = 0.9,
        store_state: bool = True,
        state_shapes: Sequence[tuple[int, int]] = (),
        **settings: Any,
    ):
        check_argument("sequence_length", sequence_length, integer())
        check_argument("burn_in", burn_in, integer(0))
        check_argument("sequence_period", sequence_period, integer(), or_none=True)
        check_argument("eta", eta, FRACTION)
        if sequence_period is not None and sequence_period > sequence_length:
            raise ValueError(
                f"sequence_period must be at most sequence_length={sequence_length}, not {sequence_period}: otherwise some "
                "steps would never be learned"
            )
        self.sequence_length = sequence_length
        self.burn_in = burn_in
        self.sequence_period = sequence_period
        self.eta = eta
        self.store_state = store_state
        self.state_shapes: Any = tuple(tuple(shape) for shape in state_shapes)
        if not all(len(shape) == 2 and all(map(integer().contains, shape)) for shape in self.state_shapes):
            raise ValueError(f"state_shapes must be pairs (n_layers, hidden) of integers of at least 1, not {state_shapes!r}")
        super().__init__(
            buffer_size,
            observation_space,
            action_space,
            device,
            n_envs,
            optimize_memory_usage,
            handle_timeout_termination,
            **settings,
        )

    def _check_combinations(self, optimize_memory_usage: bool) -> None:
        super()._check_combinations(optimize_memory_usage)
        scheme = self.settings.make_scheme()
        if scheme.replaces_loss:
            raise NotImplementedError(
                f"scheme={scheme} with sequences is not supported: its loss and its priorities are defined for single "
                "transitions, not for windows"
            )
        if isinstance(self, HerReplayBuffer):
            raise NotImplementedError(
                "hindsight (HER) with sequences is not supported: a new goal would have to hold for the whole window, and the "
                "stored recurrent states belong to the old goal"
            )
        if optimize_memory_usage:
            raise NotImplementedError(
                "optimize_memory_usage=True with sequences is not supported: the observation after the last step of an "
                "episode is not stored, and a window ends with it"
            )
        if self.settings.recency != 1.0:
            raise NotImplementedError(
                f"recency={self.settings.recency} with sequences is not supported: windows of the newest transitions are not "
                "complete, and cannot be drawn"
            )
        if self.settings.initial_priority == "td_error":
            raise NotImplementedError(
                "initial_priority='td_error' with sequences is not supported: the error of a window is known once it is "
                "complete, not when its first step is added"
            )
        if self.settings.actor_batch == "uniform":
            raise NotImplementedError(
                "actor_batch='uniform' with sequences is not supported: observations of single transitions lack their past"
            )
        if self.settings.demonstration_fraction > 0.0:
            _refuse_demonstrations()

    def make_parts(self, draw_settings: DrawSettings | None = None) -> None:
        """See :meth:`PrioritizedReplayBuffer.make_parts`."""
        super().make_parts(draw_settings)
        n_recorded = self.sequence_length + self.n_steps - 1
        #: which windows can be drawn
        self.windows = Windows(
            self.buffer_size, self.n_envs, n_recorded, self.period, self.burn_in, self.state_shapes, self.store_state
        )

    @property
    def period(self) -> int:
        """Steps from one anchor to the next."""
        return self.sequence_length if self.sequence_period is None else self.sequence_period

    @property
    def mass_owner(self) -> str:
        """See :meth:`PrioritizedReplayBuffer.mass_owner`: here windows of these lengths."""
        windows = self.windows
        return f"windows every {windows.period} steps after {windows.burn_in}, {windows.n_recorded} recorded"

    def describe_for_files(self) -> dict[str, Any]:
        """See :meth:`PrioritizedReplayBuffer.describe_for_files`."""
        windows = {"period": self.period, "burn_in": self.burn_in, "state_shapes": self.state_shapes}
        return {**super().describe_for_files(), "sequences": windows}

    def empty_twin(self, n_rows: int) -> PrioritizedReplayBuffer:
        """
        Refuse demonstrations.

        :raises NotImplementedError: always
        """
        _refuse_demonstrations()

    def unknown_to_sb3(self) -> list[str]:  # noqa: D102 - inherited
        return [*super().unknown_to_sb3(), *(["recurrent states"] if self.windows.states else [])]

    # ---- write

    def add(
        self,
        obs: Any,
        next_obs: Any,
        action: np.ndarray,
        reward: np.ndarray,
        done: np.ndarray,
        infos: list[dict[str, Any]],
        td_errors: np.ndarray | th.Tensor | None = None,
        episode_starts: np.ndarray | None = None,
        states: Sequence[np.ndarray | th.Tensor] | None = None,
    ) -> None:
        """
        Store one step of every environment, see SB3.

        :param obs: observations, shape (n_envs, ...), or a dictionary of them
        :param next_obs: next observations, in the same form
        :param action: actions, shape (n_envs, action_dim)
        :param reward: rewards, shape (n_envs,)
        :param done: end of an episode, shape (n_envs,)
        :param infos: one dictionary per environment
        :param td_errors: refused, see the class
        :param episode_starts: whether ``obs`` is the first of an episode, shape (n_envs,). If the previous episode has not
            ended, its last step becomes a truncation, as with :meth:`end_episodes`. After a ``done``, and in an empty buffer,
            an episode always starts; ``None``: only there
        :param states: the agent's recurrent states **before** this step, when it received ``obs``: one for each of
            ``state_shapes``, of shape (n_layers, n_envs, hidden), as in ``th.nn.LSTM``. ``None``: zeros. At the start
            of an episode the state is always zero
        :raises ValueError: for starts or states of another shape, and as in the base class; nothing is stored then
        """
        starts = None if episode_starts is None else np.asarray(episode_starts, np.bool_)
        self.windows.require_fitting(starts, states)
        with self.lock:
            self._given = (starts, states)
            try:
                super().add(obs, next_obs, action, reward, done, infos, td_errors)
            finally:
                self._given = (None, None)

    def _before_row(self) -> None:
        """Number the step that is stored next, and keep the states before it, see :meth:`Windows.begin_row`."""
        self.windows.begin_row(self, *self._given)

    def end_episodes(self, envs: np.ndarray | None = None) -> None:
        """See :meth:`PrioritizedReplayBuffer.end_episodes`. Windows may become complete."""
        with self.lock:
            self.row_tracker.note_change(self)
            super().end_episodes(envs)

    # ---- save and load

    def state_to_save(self) -> BufferState:
        """See :meth:`PrioritizedReplayBuffer.state_to_save`."""
        numbers, by_row, arrays = super().state_to_save()
        of_windows = self.windows.state(self)
        return BufferState({**numbers, **of_windows.numbers}, {**by_row, **of_windows.by_row}, {**arrays, **of_windows.arrays})

    def restore_state(self, state: BufferState, keeps_masses: bool, is_whole: bool) -> None:
        """See :meth:`PrioritizedReplayBuffer.restore_state`."""
        self.windows.load(self, state, keeps_masses, is_whole)
        super().restore_state(state, keeps_masses, is_whole)
        self.row_tracker.note_change(self)  # some windows may be retired in a smaller buffer

    # ---- draw

    def sample(  # type: ignore[override]
        self,
        batch_size: int,
        env: VecNormalize | None = None,
        series_progress: float | None = None,
    ) -> SequenceReplayBufferSamples:
        """
        Draw windows, see :meth:`PrioritizedReplayBuffer.sample`.

        :param batch_size: number of windows
        :param env: associated VecNormalize, to normalize the observations and rewards
        :param series_progress: not used: ``recency`` is refused
        :return: exactly ``batch_size`` windows, with their weights and the ids of their first steps
        :raises ValueError: for a batch size below 1, or if no window can be drawn, or with ``unique`` not so many
        """
        check_argument("batch_size", batch_size, integer())
        with self.lock:
            self.insert_new_rows()
            slots, relative_probabilities = self.draw_slots(batch_size, series_progress)
            weights = self.scheme.weights(relative_probabilities, self.beta_schedule.value)
            batch: SequenceReplayBufferSamples = self.read_drawn(slots, env)._replace(weights=self.tensor_maker()(weights))
            self._note_draw(batch, weights)  # type: ignore[arg-type]
        return batch

    def sample_observations(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """
        Refuse to draw single observations.

        :raises NotImplementedError: always: a recurrent agent needs the past of an observation
        """
        raise NotImplementedError("Single observations lack their past, which a recurrent agent needs: use sample()")

    def _get_samples(self, batch_inds: np.ndarray, env: VecNormalize | None = None) -> Any:
        raise NotImplementedError("A sequence buffer cannot read single rows: draw windows with sample()")

    def draw_candidates(self) -> Candidates:
        """Return the anchors of windows that can be drawn."""
        return MarkedSlots(self.windows.is_drawable, self.windows.n_drawable)

    def _draw_without_masses(self, batch_size: int) -> np.ndarray:
        """Draw uniformly, see the base class. SB3 has no sequences, so these are not its random numbers."""
        slots = np.flatnonzero(self.windows.is_drawable)
        return np.asarray(slots[(np.random.random_sample(batch_size) * len(slots)).astype(np.int64)])

    def _empty_error(self) -> Exception:
        """Say why nothing can be drawn; a buffer may be too small for any window."""
        # Rows whose windows are retired, rows up to the next anchor, and its window.
        shortest = self.burn_in + 2 * (self.period - 1) + self.windows.n_recorded
        if self.full and self.buffer_size < shortest:
            return ValueError(
                f"Cannot sample: the buffer holds {self.buffer_size} steps of each environment, too few for a whole window. "
                f"Windows of sequence_length={self.sequence_length} need a buffer_size of at least {shortest * self.n_envs} "
                f"({self.n_envs} environments)"
            )
        return super()._empty_error()

    def read_drawn(self, slots: np.ndarray, env: VecNormalize | None = None) -> SequenceReplayBufferSamples:  # type: ignore[override]
        """
        Read windows, and compute the targets of their steps.

        :param slots: anchors of complete windows, int64 of shape (batch_size,)
        :param env: associated VecNormalize
        :return: the windows, with weights of 1
        """
        windows = self.windows.read(self, slots)
        step_slots = windows.slots.T
        rewards = np.empty(step_slots.shape, self.rewards.dtype)
        ends = np.empty((len(slots), 1), np.float32)
        read_rewards_and_ends(self.rewards, self.dones, self.timeouts, step_slots, windows.last_slots, rewards, ends)
        rewards = self._normalize_reward(rewards.T, env)
        sums, discounts, dones, next_steps, mask = n_step_targets(
            np.ascontiguousarray(rewards, np.float32),
            windows.lengths,
            ends,
            powers(self.gamma, self.n_steps),
            self.sequence_length,
        )
        # The observation before the first step, then the one after each step.
        observations = read_slots(self.next_observations, np.concatenate((slots[None], windows.slots)).reshape(-1))
        first_observations = read_slots(self.observations, slots)
        map_arrays(lambda array, first: np.copyto(array[: len(slots)], first), observations, first_observations)
        prefix = read_slots(self.observations, windows.prefix_slots.reshape(-1))
        observations = self._normalize_obs(observations, env)
        prefix = self._normalize_obs(prefix, env)
        if is_overridden(self, "_normalize_obs"):  # the padding below must not change arrays that a user keeps
            observations = map_arrays(np.array, observations)
            prefix = map_arrays(np.array, prefix)
        n_observations = len(windows.slots) + 1
        observations = map_arrays(lambda array: _time_first(array, windows.lengths + 1, n_observations), observations)
        prefix = map_arrays(lambda array: _time_first(array, windows.prefix_lengths, self.burn_in), prefix)
        actions = read_slots(self.actions, windows.slots[: self.sequence_length].reshape(-1))
        actions = actions.reshape(self.sequence_length, len(slots), -1)
        actions[~mask] = 0

        to_torch = self.tensor_maker()
        return SequenceReplayBufferSamples(
            observations=map_arrays(to_torch, observations),
            prefix=map_arrays(to_torch, prefix),
            prefix_lengths=to_torch(windows.prefix_lengths),
            states=tuple(to_torch(state) for state in windows.states),
            actions=to_torch(actions),
            rewards=to_torch(sums),
            discounts=to_torch(discounts),
            dones=to_torch(dones),
            next_steps=to_torch(next_steps),
            mask=to_torch(mask),
            weights=to_torch(np.ones((len(slots), 1), np.float32)),
            indices=self.numbering.in_slots(slots),
        )

    # ---- update

    def update_priorities(
        self, indices: np.ndarray, td_errors: np.ndarray | th.Tensor, mask: np.ndarray | th.Tensor | None = None
    ) -> int:
        """
        Set the priorities of windows from the newest TD errors of their steps, unweighted. The errors of several critics are
        reduced to one a step; ``eta max|td| + (1 - eta) mean|td|`` over the steps is the error of the window. Of repeated
        ids the last one counts; ids of overwritten windows are skipped.

        :param indices: transition ids from :meth:`sample`, integers of shape (batch_size,)
        :param td_errors: signed or absolute TD errors in units of the value function, time first as in a batch, a NumPy array
            or a tensor on any device, shape (sequence_length, batch_size) or (sequence_length, batch_size, n_critics);
            entries outside of the mask are ignored
        :param mask: which entries are steps, as in the batch, shape (sequence_length, batch_size); ``None``: looked up
        :return: how many were written, i.e. were not stale
        :raises IndexError: for an id that was never issued
        :raises ValueError: for TD errors or a mask of the wrong shape, TD errors of steps that are NaN or infinite, or a mask
            without a step. Nothing is changed in either case.
        """
        ids = inputs.checked_ids(indices)
        shape = (self.sequence_length, len(ids))
        errors = inputs.abs_td_errors(td_errors, shape, must_be_finite=False)
        with self.lock:
            is_step = self._steps_of(ids) if mask is None else _as_mask(mask, shape)
            errors[~is_step.reshape(-1)] = 0.0
            if not np.isfinite(errors).all():
                raise ValueError(f"td_errors must be finite, not {errors[~np.isfinite(errors)][0]}")
            of_steps = self.scheme.reduce(errors).reshape(shape)
            return super().update_priorities(ids, mix_over_time(of_steps, is_step, self.eta)[:, None])

    def _steps_of(self, ids: np.ndarray) -> np.ndarray:
        """
        Look up which entries of windows are steps.

        :param ids: of the first steps, int64 of shape (batch_size,)
        :return: bool of shape (sequence_length, batch_size); one step for ids without a window
        """
        self.insert_new_rows()
        slots, is_drawable = self._find_drawable(ids)
        lengths = np.where(is_drawable, self.windows.lengths_at(self, slots, self.sequence_length), 1)
        return np.arange(self.sequence_length)[:, None] < lengths

    def find_and_evaluate(self, ids: np.ndarray, abs_td_errors: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """See :meth:`PrioritizedReplayBuffer.find_and_evaluate`. Windows that have lost their beginning are stale, too."""
        _, is_drawable = self._find_drawable(ids)
        return super().find_and_evaluate(ids[is_drawable], abs_td_errors[is_drawable])

    def _find_drawable(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find the slots of ids, and which of them are anchors of windows that can be drawn."""
        slots, _ = self.numbering.find(ids)
        return slots, (self.numbering.in_slots(slots) == ids) & self.windows.is_drawable.reshape(-1)[slots]


class PrioritizedDictSequenceReplayBuffer(PrioritizedSequenceReplayBuffer, PrioritizedDictReplayBuffer):  # type: ignore[misc]
    """
    :class:`PrioritizedSequenceReplayBuffer` (R2D2: Kapturowski et al. 2019) for Dict observation spaces. With
    ``"MultiInputLstmPolicy"`` the recurrent algorithms choose it themselves.

    ::

        buffer = PrioritizedDictSequenceReplayBuffer(10_000, env.observation_space, env.action_space, sequence_length=40)

    :param args: SB3's arguments, see ``stable_baselines3.common.buffers.DictReplayBuffer``
    :param kwargs: SB3's keyword arguments and those of :class:`PrioritizedSequenceReplayBuffer`
    """

    kind_in_files = "dict sequences"


def _refuse_demonstrations() -> NoReturn:
    """Raise the error for demonstrations."""
    raise NotImplementedError(
        "Learning from demonstrations with sequences is not supported: they are single transitions, and have no recurrent "
        "states"
    )


def _time_first(array: np.ndarray, counts: np.ndarray, n_rows: int) -> np.ndarray:
    """
    Put time first, and padding in the rows that do not count.

    :param array: rows of a batch, shape (n_rows * batch_size, ...), changed
    :param counts: how many rows of each window count, shape (batch_size,)
    :param n_rows: rows of a window
    :return: the same, shape (n_rows, batch_size, ...), with 0 in the rows that do not count
    """
    array = array.reshape(n_rows, len(counts), *array.shape[1:])
    array[np.arange(n_rows)[:, None] >= counts] = 0
    return array


def _as_mask(mask: np.ndarray | th.Tensor, shape: tuple[int, ...]) -> np.ndarray:
    """
    Check a mask.

    :param mask: which entries are steps
    :param shape: (sequence_length, batch_size)
    :return: the same, bool
    :raises ValueError: for another shape, or a window without a step
    """
    is_step: np.ndarray = np.asarray(mask.detach().cpu() if isinstance(mask, th.Tensor) else mask) != 0
    if is_step.shape != shape:
        raise ValueError(f"A mask of shape {is_step.shape} does not fit TD errors of shape {shape}")
    if not is_step.any(axis=0).all():
        empty = int(is_step.any(axis=0).argmin())
        raise ValueError(f"Every window has at least one step, but the mask has none for window {empty}")
    return is_step
