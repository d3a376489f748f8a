"""
Prioritized replay of sequences, for agents with memory (R2D2: Kapturowski et al. 2019, "Recurrent Experience Replay in
Distributed Reinforcement Learning").

SB3's arrays, ids and leaves stay as they are, and so does the draw; what is drawn is a window of consecutive steps. It knows
no networks: recurrent states are arrays that come with a step and go with a window.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch as th
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.vec_env import VecNormalize
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per.buffers.dict import PrioritizedDictReplayBuffer
from sb3_per.buffers.drawable import as_matrix
from sb3_per.buffers.replay import SCHEME_SETTINGS, PrioritizedReplayBuffer
from sb3_per.buffers.ring import flat, rows
from sb3_per.buffers.samples import SequenceReplayBufferSamples
from sb3_per.buffers.sequence_ring import SequenceRing
from sb3_per.buffers.settings import require_numbers
from sb3_per.sampling.schemes import make_scheme
from sb3_per.storage.windows import lay_out, mix_over_time, n_step_targets, read_columns, window_lengths
from sb3_per.utils.signatures import extends_signature

if TYPE_CHECKING:
    from gymnasium import spaces
    from typing_extensions import Unpack

    from sb3_per.buffers.settings import PrioritizedSequenceKwargs

    def _init(
        self: Any,
        buffer_size: int,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        device: th.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        **kwargs: Unpack[PrioritizedSequenceKwargs],
    ) -> None: ...
else:
    _init = ReplayBuffer.__init__


class PrioritizedSequenceReplayBuffer(SequenceRing):
    """
    Replay buffer that draws windows of consecutive steps of an episode, by the priority of the window (R2D2: Kapturowski et
    al. 2019). For agents with memory: :class:`~sb3_per.PERRecurrentDQN` and :class:`~sb3_per.PERRecurrentSAC` make one by
    themselves.

    ::

        buffer = PrioritizedSequenceReplayBuffer(
            10_000, env.observation_space, env.action_space, sequence_length=40, burn_in=20, state_shapes=((1, 64), (1, 64))
        )

    Steps whose number in the episode is a multiple of ``sequence_period`` are anchors: a window of ``sequence_length`` steps,
    which are learned, begins with each. Before it lie up to ``burn_in`` steps that an agent warms its memory up with, fewer
    near the start of the episode. A window ends with its episode. So no step is left out, none is learned twice where
    the period is the length, and no reset lies inside a window. It can be drawn as soon as ``sequence_length + n_steps``
    observations from the anchor on are there, or the episode is over.

    :param args: SB3's arguments, see ``stable_baselines3.common.buffers.ReplayBuffer``; ``buffer_size`` counts transitions
    :param sequence_length: steps of a window that are learned, at least 1
    :param burn_in: steps before them, at least 0
    :param sequence_period: every so many steps of an episode a window begins, from 1 to ``sequence_length``; ``None``:
        ``sequence_length``, windows do not overlap. Half of it: each step is in two windows (R2D2)
    :param eta: in [0, 1]; the priority of a window is that of the error ``eta max|td| + (1 - eta) mean|td|``
    :param store_state: whether the recurrent states that acting had are kept, for the first steps of the prefixes;
        otherwise all windows begin with zeros
    :param state_shapes: (n_layers, hidden) of each recurrent state, e.g. ``((1, 64), (1, 64))`` for an LSTM
    :param kwargs: SB3's keyword arguments and those of :class:`~sb3_per.buffers.replay.PrioritizedReplayBuffer`
    :raises ValueError: for a setting outside of its range, before any memory is allocated
    :raises NotImplementedError: for what does not go together with sequences, before any memory is allocated: schemes with a
        loss of their own (LAP, PAL), hindsight, ``optimize_memory_usage``, ``recency``, ``initial_priority="td_error"``,
        ``actor_batch="uniform"``
    """

    @extends_signature(_init, PrioritizedReplayBuffer.__init__)
    def __init__(
        self,
        *args: Any,
        sequence_length: int = 80,
        burn_in: int = 40,
        sequence_period: int | None = None,
        eta: float = 0.9,
        store_state: bool = True,
        state_shapes: Sequence[tuple[int, int]] = (),
        **kwargs: Any,
    ):
        lengths = dict(sequence_length=sequence_length, burn_in=burn_in, sequence_period=sequence_period)
        require_numbers({"eta": eta, **lengths, **kwargs})
        if not 0.0 <= eta <= 1.0:
            raise ValueError(f"eta must be in [0, 1], not {eta}")
        self._refuse(kwargs, kwargs.get("optimize_memory_usage", len(args) > 5 and args[5]))  # SB3's sixth argument
        super().__init__(
            *args,
            sequence_length=sequence_length,
            burn_in=burn_in,
            sequence_period=sequence_period,
            store_state=store_state,
            state_shapes=state_shapes,
            **kwargs,
        )
        self.eta = eta

    def _refuse(self, settings: dict[str, Any], optimizes_memory: bool) -> None:
        """
        :param settings: keyword arguments of the constructor
        :param optimizes_memory: ``optimize_memory_usage``
        :raises NotImplementedError: for what does not go together with sequences
        """
        scheme = make_scheme(**{name: settings[name] for name in SCHEME_SETTINGS if name in settings})
        reasons = {
            f"scheme={scheme}": scheme.replaces_loss
            and "its loss and its masses are those of single transitions, and the priority of a window is another",
            "hindsight (HER)": isinstance(self, HerReplayBuffer)
            and "a new goal would have to be that of the whole window, and the stored recurrent states are of the old one",
            "optimize_memory_usage=True": optimizes_memory
            and "the observation behind the last step of an episode is not stored, and a window ends with it",
            f"recency={settings.get('recency')}": settings.get("recency", 1.0) != 1.0
            and "windows of the newest transitions are not complete, and cannot be drawn",
            "initial_priority='td_error'": settings.get("initial_priority") == "td_error"
            and "the error of a window is known when it is complete, not when its first step is added",
            "actor_batch='uniform'": settings.get("actor_batch") == "uniform"
            and "observations of single transitions lack their past",
        }
        for what, reason in reasons.items():
            if reason:
                raise NotImplementedError(f"{what} with sequences is not supported: {reason}")

    # ---- draw and update

    def _refuse_to_draw(self) -> Any:
        # Retired rows, those up to the next anchor, and its window.
        shortest = self.burn_in + 2 * (self._period - 1) + self._n_recorded
        if self.full and self.buffer_size < shortest:
            raise ValueError(
                f"Cannot sample: in {self.buffer_size} steps of each environment, which are all that is held, no window is "
                f"whole. Windows of sequence_length={self.sequence_length} need a buffer_size of at least "
                f"{shortest * self.n_envs} ({self.n_envs} environments)"
            )
        super()._refuse_to_draw()

    def _stock_draw(self, batch_size: int) -> np.ndarray:
        # SB3 has no sequences; all masses are equal.
        return self._tree.draw(np.random.random_sample(batch_size), False)[0]

    def sample(  # type: ignore[override]
        self, batch_size: int, env: VecNormalize | None = None, position: float | None = None
    ) -> SequenceReplayBufferSamples:
        """
        Draw windows, see :meth:`PrioritizedReplayBuffer.sample`.

        :param batch_size: number of windows
        :param env: associated VecNormalize, to normalize the observations and rewards
        :param position: without influence
        :return: exactly ``batch_size`` windows, with their weights and the ids of their first steps
        :raises ValueError: for a batch size below 1, or if no window can be drawn, or with ``unique`` not so many
        """
        return super().sample(batch_size, env)  # type: ignore[return-value]

    def sample_observations(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """Not for sequences: single observations lack their past."""
        raise NotImplementedError("Observations of single transitions lack their past, which an agent with memory needs")

    def _get_samples(self, batch_inds: np.ndarray, env: VecNormalize | None = None) -> Any:
        raise NotImplementedError("A buffer of sequences has no batches of single rows: draw windows with sample()")

    def _gather(  # type: ignore[override]
        self, leaves: np.ndarray, weights: np.ndarray, env: VecNormalize | None
    ) -> SequenceReplayBufferSamples:
        """
        :param leaves: anchors of complete windows, int64 of shape (batch_size,)
        :param weights: importance-sampling weights, float32 of shape (batch_size, 1)
        :param env: associated VecNormalize
        :return: the windows
        """
        lengths = self._lengths_at(leaves, self._n_recorded)
        places = lay_out(leaves, lengths, self._n_recorded, self.n_envs, self._capacity)
        rewards, ends = read_columns(places, lengths, flat(self.rewards), flat(self.dones), flat(self.timeouts))
        if env is not None:
            rewards = self._normalize_reward(rewards, env)
        factors = self.gamma ** np.arange(self.n_steps + 1, dtype=np.float32)
        sums, discounts, dones, behind, mask = n_step_targets(rewards, lengths, ends, factors, self.sequence_length)

        prefix_lengths = np.minimum(flat(self.episode_steps).take(leaves), self.burn_in).astype(np.int64)
        firsts = (leaves - prefix_lengths * self.n_envs) % self._capacity
        prefix_places = lay_out(firsts, prefix_lengths, self.burn_in, self.n_envs, self._capacity)
        prefix = self._observations_at(prefix_places.reshape(-1))
        # What follows each step; what was observed before the first one is put in front.
        obs = self._next_observations_at(np.concatenate((leaves, places.reshape(-1))))
        _put(obs, self._observations_at(leaves))
        if env is not None:
            obs, prefix = self._normalize_obs(obs, env), self._normalize_obs(prefix, env)

        actions = rows(self.actions, places[: self.sequence_length])
        actions[~mask] = 0
        to_torch = self._to_torch()

        def time_first(array: np.ndarray, counts: np.ndarray, n_rows: int) -> th.Tensor:
            array = array.reshape(n_rows, len(leaves), *array.shape[1:])
            array[np.arange(n_rows)[:, None] >= counts] = 0
            return to_torch(array)

        return SequenceReplayBufferSamples(
            self._map_obs(time_first, obs, lengths + 1, self._n_recorded + 1),
            self._map_obs(time_first, prefix, prefix_lengths, self.burn_in),
            to_torch(prefix_lengths),
            tuple(map(to_torch, self._states.at(leaves, flat(self.episode_steps)))),
            to_torch(actions),
            to_torch(sums),
            to_torch(discounts),
            to_torch(dones),
            to_torch(behind),
            to_torch(mask),
            to_torch(weights),
            self._ids_at(leaves),
        )

    def _lengths_at(self, leaves: np.ndarray, n_steps: int) -> np.ndarray:
        """
        :param leaves: first steps, int64 of shape (batch_size,)
        :param n_steps: the longest that a window is
        :return: steps up to the end of the window, the episode, or what is recorded, from 1, shape (batch_size,)
        """
        n_behind = (self.pos - 1 - leaves // self.n_envs) % self.buffer_size + 1
        return window_lengths(leaves, flat(self.dones), flat(self.timeouts), self.n_envs, n_behind, n_steps)

    def update_priorities(
        self, indices: np.ndarray, td_errors: np.ndarray | th.Tensor, mask: np.ndarray | th.Tensor | None = None
    ) -> int:
        """
        Set the priorities of windows from the newest TD errors of their steps, unweighted: those of several critics become one
        for each step, and ``eta max|td| + (1 - eta) mean|td|`` over the steps is the error of the window. Of repeated ids the
        last one counts; ids whose window is not there any more are skipped.

        :param indices: transition ids from :meth:`sample`, integers of shape (batch_size,)
        :param td_errors: signed or absolute TD errors in units of the value function, time first as in a batch, a NumPy array
            or a tensor on any device, shape (sequence_length, batch_size) or (sequence_length, batch_size, n_critics);
            whatever stands where there is no step does not count
        :param mask: which steps there are, as in the batch, shape (sequence_length, batch_size); ``None``: looked up
        :return: how many were written, i.e. were not stale
        :raises IndexError: for an id that was never issued
        :raises ValueError: for TD errors or a mask of the wrong shape, TD errors of steps that are NaN or infinite, or a mask
            without a step. Nothing is changed in either case.
        """
        ids = np.asarray(indices)
        shape = (self.sequence_length, *ids.shape)
        given = td_errors if isinstance(td_errors, th.Tensor) else np.asarray(td_errors)
        if ids.ndim == 1 and (tuple(given.shape[:2]) != shape or given.ndim > 3 or 0 in given.shape[2:]):
            raise ValueError(
                f"td_errors of shape {tuple(given.shape)} do not fit {len(ids)} windows of {self.sequence_length} steps"
            )
        with self._lock:
            if ids.ndim != 1 or (ids.dtype.kind not in "iu" and ids.size):
                return super().update_priorities(ids, given)  # raises
            is_step = self._mask_of(ids) if mask is None else _as_mask(mask, shape)
            if ids.size == 0:
                return 0
            errors = np.abs(as_matrix(given.reshape(is_step.size, -1), is_step.size), dtype=np.float64)
            errors[~is_step.reshape(-1)] = 0.0
            if not np.isfinite(errors).all():
                raise ValueError(f"td_errors must be finite, not {errors[~np.isfinite(errors)][0]}")
            of_steps = self.scheme.reduce(errors).reshape(shape)
            return super().update_priorities(ids, mix_over_time(of_steps, is_step, self.eta)[:, None])

    def _mask_of(self, ids: np.ndarray) -> np.ndarray:
        """Which steps the windows of these ids have, bool of shape (sequence_length, n); of others than those, one."""
        self._settle()
        leaves = ids.astype(np.int64) % self._capacity
        lengths = np.where(self._can_be_drawn(ids), self._lengths_at(leaves, self.sequence_length), 1)
        return np.asarray(np.arange(self.sequence_length)[:, None] < lengths)


class PrioritizedDictSequenceReplayBuffer(PrioritizedSequenceReplayBuffer, PrioritizedDictReplayBuffer):  # type: ignore[misc]
    """
    :class:`PrioritizedSequenceReplayBuffer` (R2D2: Kapturowski et al. 2019) for Dict observation spaces. With
    ``"MultiInputLstmPolicy"`` the recurrent algorithms take it without being told.

    ::

        buffer = PrioritizedDictSequenceReplayBuffer(10_000, env.observation_space, env.action_space, sequence_length=40)

    :param args: SB3's arguments, see ``stable_baselines3.common.buffers.DictReplayBuffer``
    :param kwargs: SB3's keyword arguments and those of :class:`PrioritizedSequenceReplayBuffer`
    """


def _put(observations: Any, first: Any) -> None:
    """Write some observations over the first ones; both are arrays, or dictionaries of them."""
    if isinstance(observations, dict):
        for key, array in observations.items():
            _put(array, first[key])
    else:
        observations[: len(first)] = first


def _as_mask(mask: np.ndarray | th.Tensor, shape: tuple[int, ...]) -> np.ndarray:
    """
    :param mask: which steps there are
    :param shape: (sequence_length, batch_size)
    :return: the same, bool
    :raises ValueError: for another shape, or a window without a step
    """
    is_step: np.ndarray = np.asarray(mask.detach().cpu() if isinstance(mask, th.Tensor) else mask) != 0
    if is_step.shape != shape:
        raise ValueError(f"A mask of shape {is_step.shape} does not fit TD errors of shape {shape}")
    if not is_step.any(axis=0).all():
        raise ValueError(f"A window has a step at least, and the mask has none for window {int(is_step.any(axis=0).argmin())}")
    return is_step
