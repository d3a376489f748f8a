"""
Prioritized replay of sequences, for recurrent agents (R2D2: Kapturowski et al. 2019, "Recurrent Experience Replay in
Distributed Reinforcement Learning").

Storage, ids and the draw are those of single transitions. A drawn id is the first step of a window of consecutive steps.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.vec_env import VecNormalize
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per.buffers.complete_windows import CompleteWindows
from sb3_per.buffers.inputs import checked_row
from sb3_per.buffers.recurrent_states import RecurrentStates
from sb3_per.buffers.replay import PrioritizedDictReplayBuffer, PrioritizedReplayBuffer
from sb3_per.buffers.samples import SequenceReplayBufferSamples
from sb3_per.buffers.settings import SEQUENCE_ARGUMENTS
from sb3_per.buffers.transition_set import checked_ids, require_finite, td_error_matrix
from sb3_per.buffers.window_kernels import mix_over_time, n_step_targets
from sb3_per.buffers.window_set import WindowBatch, WindowSet
from sb3_per.storage.nested import map_arrays
from sb3_per.storage.ring import Ring
from sb3_per.storage.storage import Storage
from sb3_per.utils.checks import FRACTION, check_argument, integer


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
    add_steps_refusal = "with sequences: one cursor decides for all of them which windows are complete"

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
        self.state_shapes = tuple(tuple(shape) for shape in state_shapes)
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
        settings = self.settings
        scheme = settings.make_scheme()
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
        if settings.recency != 1.0:
            raise NotImplementedError(
                f"recency={settings.recency} with sequences is not supported: windows of the newest transitions are not "
                "complete, and cannot be drawn"
            )
        if settings.initial_priority == "td_error":
            raise NotImplementedError(
                "initial_priority='td_error' with sequences is not supported: the error of a window is known once it is "
                "complete, not when its first step is added"
            )
        if settings.actor_batch == "uniform":
            raise NotImplementedError(
                "actor_batch='uniform' with sequences is not supported: observations of single transitions lack their past"
            )
        super()._check_combinations(optimize_memory_usage)

    def _check_demonstrations(self, optimize_memory_usage: bool) -> None:
        raise NotImplementedError(
            "Learning from demonstrations with sequences is not supported: they are single transitions, and have no recurrent "
            "states"
        )

    @property
    def period(self) -> int:
        """Steps from one anchor to the next."""
        return self.sequence_length if self.sequence_period is None else self.sequence_period

    def _make_experience(self, ring: Ring, storage: Storage) -> WindowSet:
        states = RecurrentStates(
            ring.n_rows, ring.n_envs, self.period, self.burn_in, self.state_shapes, are_kept=self.store_state
        )
        windows = CompleteWindows(ring, storage, states, self.sequence_length + self.n_steps - 1)
        n_step_returns = self._make_n_step_returns()
        return WindowSet(ring, storage, self._make_sampler(windows), n_step_returns, windows, states, self.sequence_length)

    @property
    def complete_windows(self) -> CompleteWindows:
        """Which windows can be drawn."""
        return self._window_set.complete_windows

    @property
    def states(self) -> RecurrentStates:
        """Recurrent states at the starts of the prefixes of windows."""
        return self._window_set.states

    @property
    def _window_set(self) -> WindowSet:
        return self.experience  # type: ignore[return-value]

    def left_out_of(self, sb3_class: type[ReplayBuffer]) -> list[str]:  # noqa: D102 - inherited
        left_out = super().left_out_of(sb3_class)
        if self.store_state and self.state_shapes:
            left_out.append("recurrent states")
        return left_out

    # ---- writing

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
        if starts is not None and starts.shape != (self.n_envs,):
            raise ValueError(f"episode_starts of shape {starts.shape} do not fit {self.n_envs} environments")
        self.states.require_fitting(states)
        steps = checked_row(self.storage, obs, next_obs, action, reward, done, infos)
        if td_errors is not None:
            self._evaluate(td_errors, (self.n_envs,), self.settings.initial_priority)  # raises
        with self.lock:
            self._window_set.write_row(steps, None, starts, states)

    # ---- drawing

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
        return super().sample(batch_size, env, series_progress)  # type: ignore[return-value]

    def sample_observations(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """
        Refuse to draw single observations.

        :raises NotImplementedError: always: a recurrent agent needs the past of an observation
        """
        raise NotImplementedError("Single observations lack their past, which a recurrent agent needs: use sample()")

    def _get_samples(self, batch_inds: np.ndarray, env: VecNormalize | None = None) -> Any:
        raise NotImplementedError("A sequence buffer cannot read single rows: draw windows with sample()")

    def _to_batch(  # type: ignore[override]
        self, windows: WindowBatch, weights: np.ndarray, env: VecNormalize | None
    ) -> SequenceReplayBufferSamples:
        """
        Normalize windows, compute the targets of their steps, and make tensors.

        :param windows: that were read
        :param weights: importance-sampling weights, float32 of shape (batch_size, 1)
        :param env: associated VecNormalize
        :return: the windows
        """
        rewards = self._normalize_reward(windows.rewards, env)
        factors = self.experience.n_step_returns.discounts
        sums, discounts, dones, next_steps, mask = n_step_targets(
            rewards.T, windows.lengths, windows.dones, factors, self.sequence_length
        )
        observations = self._normalize_obs(windows.observations, env)
        prefix = self._normalize_obs(windows.prefix, env)
        if self._user_changes_batches:  # the padding below must not change arrays that a user keeps
            observations = map_arrays(np.array, observations)
            prefix = map_arrays(np.array, prefix)
        n_observations = self.complete_windows.n_recorded + 1
        observations = map_arrays(lambda array: _time_first(array, windows.lengths + 1, n_observations), observations)
        prefix = map_arrays(lambda array: _time_first(array, windows.prefix_lengths, self.burn_in), prefix)
        windows.actions[~mask] = 0

        to_torch = self._tensor_maker()
        return SequenceReplayBufferSamples(
            observations=map_arrays(to_torch, observations),
            prefix=map_arrays(to_torch, prefix),
            prefix_lengths=to_torch(windows.prefix_lengths),
            states=tuple(to_torch(state) for state in windows.states),
            actions=to_torch(windows.actions),
            rewards=to_torch(sums),
            discounts=to_torch(discounts),
            dones=to_torch(dones),
            next_steps=to_torch(next_steps),
            mask=to_torch(mask),
            weights=to_torch(weights),
            indices=windows.ids,
        )

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
        ids = checked_ids(indices)
        shape = (self.sequence_length, len(ids))
        errors = np.abs(td_error_matrix(td_errors, shape), dtype=np.float64)
        with self.lock:
            is_step = self._window_set.steps_of(ids) if mask is None else _as_mask(mask, shape)
            errors[~is_step.reshape(-1)] = 0.0
            require_finite(errors)
            of_steps = self.scheme.reduce(errors).reshape(shape)
            return super().update_priorities(ids, mix_over_time(of_steps, is_step, self.eta)[:, None])


class PrioritizedDictSequenceReplayBuffer(PrioritizedSequenceReplayBuffer, PrioritizedDictReplayBuffer):  # type: ignore[misc]
    """
    :class:`PrioritizedSequenceReplayBuffer` (R2D2: Kapturowski et al. 2019) for Dict observation spaces. With
    ``"MultiInputLstmPolicy"`` the recurrent algorithms choose it themselves.

    ::

        buffer = PrioritizedDictSequenceReplayBuffer(10_000, env.observation_space, env.action_space, sequence_length=40)

    :param args: SB3's arguments, see ``stable_baselines3.common.buffers.DictReplayBuffer``
    :param kwargs: SB3's keyword arguments and those of :class:`PrioritizedSequenceReplayBuffer`
    """


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
