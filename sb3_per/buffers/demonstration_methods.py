"""Demonstrations of a buffer: how they come in, and when batches hold some. What keeps them is in ``mixture.py``."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_per.buffers import conversion, hooks, inputs
from sb3_per.buffers.action_scaling import require_scaled
from sb3_per.buffers.mixture import Demonstrations, Mixture
from sb3_per.buffers.recordings import Recording, columns_of, require_actions_in, require_demonstrations_in
from sb3_per.buffers.sb3_attributes import SB3Attributes
from sb3_per.buffers.settings import BufferSettings
from sb3_per.buffers.transition_set import DrawSource


class DemonstrationMethods(SB3Attributes):
    """A buffer that may hold demonstrations. The base class of all prioritized buffers, which set what stands below."""

    #: settings of the buffer
    settings: BufferSettings
    #: what :meth:`add_demonstrations` stores
    demonstrations: Demonstrations
    #: experience and demonstrations, with the share of demonstrations in a batch
    mixture: Mixture
    #: what batches are drawn from
    draw_source: DrawSource

    def _check_demonstrations(self, optimize_memory_usage: bool) -> None:
        """
        Refuse demonstrations where this kind of buffer does not support them.

        :param optimize_memory_usage: SB3's
        :raises NotImplementedError: with the reason
        """
        if optimize_memory_usage:
            raise NotImplementedError(
                "Learning from demonstrations with optimize_memory_usage=True is not supported: the observation after the "
                "last step of an episode is not stored"
            )

    def add_demonstrations(
        self,
        obs: Any,
        next_obs: Any,
        action: np.ndarray,
        reward: np.ndarray,
        done: np.ndarray,
        infos: Iterable[list[dict[str, Any]]],
    ) -> None:
        """
        Store transitions that stay: :meth:`add` never overwrites them, ``buffer_size`` does not count them, and :meth:`reset`
        keeps them. ``demonstration_fraction`` is their share of each batch.

        The steps of each of the k columns are successive steps of one environment; k need not be ``n_envs``. Where a column
        ends in mid-episode, its last step becomes a truncation.

        :param obs: observations, shape (n, k, ...), a dictionary of them, or one entry per step
        :param next_obs: next observations, in the same form
        :param action: actions, shape (n, k, action_dim); those of a Box scaled to [-1, 1] with ``model.policy.scale_action``
        :param reward: rewards, shape (n, k)
        :param done: ends of episodes, shape (n, k)
        :param infos: for each step, one dictionary per column; SB3's ``TimeLimit.truncated`` marks truncations
        :raises ValueError: for another shape, values that are not numbers, a reward that is NaN or infinite, or actions that
            are not scaled; nothing is stored then
        :raises NotImplementedError: with sequences and ``optimize_memory_usage``, and in a class that overrides :meth:`add`
            alone
        """
        hooks.require_own(self, "add_demonstrations")
        self._check_demonstrations(self.optimize_memory_usage)
        shape = np.shape(reward)
        if len(shape) != 2 or 0 in shape:
            raise ValueError(
                f"rewards of demonstrations must have shape (n, k), not {shape}: n successive steps of each of k "
                "environments, both at least 1. For the steps of one environment k is 1: give each array as array[:, None]"
            )
        steps = inputs.checked_steps(self.storage, shape, obs, next_obs, action, reward, done, infos)
        require_scaled(steps.actions, self.action_space)
        columns = [steps.at((slice(None), [env])) for env in range(shape[1])]
        with self.lock:
            self._add_demonstrations(columns, shape[0] * shape[1])

    def add_demonstrations_from(self, other: ReplayBuffer) -> None:
        """
        Store all transitions of another buffer as demonstrations, its own demonstrations too, see :meth:`add_demonstrations`.
        With HER, their goals stay as they were. Actions that were recorded with other bounds are scaled anew.

        :param other: prioritized or SB3's, with the same observation and action space. The bounds of a Box of actions may
            differ, if every action is inside of those of this buffer
        :raises TypeError: for anything but a buffer
        :raises ValueError: for a buffer with other spaces or ``optimize_memory_usage``, with actions outside [-1, 1] or
            outside of the new bounds, with a reward that is NaN or infinite, or an empty one
        :raises NotImplementedError: with sequences and ``optimize_memory_usage``
        """
        self._check_demonstrations(self.optimize_memory_usage)
        require_demonstrations_in(other, self.observation_space, self.action_space)
        with self.lock:
            if not isinstance(other, DemonstrationMethods):
                recordings = [conversion.recording_of(other)]
            elif other is self:
                recordings = [(self.ring, self.storage)]
            else:
                recordings = other.recordings()
            n_transitions = sum(ring.n_complete for ring, _ in recordings)
            if n_transitions == 0:
                raise ValueError("The other buffer is empty: it holds no transition to demonstrate anything")
            require_actions_in(recordings, other.action_space, self.action_space)
            self._add_demonstrations(columns_of(recordings, other.action_space, self.action_space), n_transitions)

    def _add_demonstrations(self, columns: Any, n_transitions: int) -> None:
        self.demonstrations.add(columns, n_transitions)
        self.mixture.are_undrawn = True
        self.draw_source = self.chosen_draw_source()

    def chosen_draw_source(self) -> DrawSource:
        """Choose experience alone, unless there are demonstrations, or a share of them is wanted."""
        if self.settings.demonstration_fraction > 0.0 or len(self.demonstrations):
            return self.mixture
        return self.experience

    @contextmanager
    def only_demonstrations(self) -> Iterator[None]:
        """Draw whole batches of demonstrations within a ``with`` block."""
        self.draw_source = self.mixture
        try:
            with self.mixture.only_demonstrations():
                yield
        finally:
            self.draw_source = self.chosen_draw_source()

    def recordings(self) -> list[Recording]:
        """List the ring and the storage of experience, and of demonstrations if there are any."""
        recordings = [(self.ring, self.storage)]
        if len(self.demonstrations):
            recordings.append((self.demonstrations.ring, self.demonstrations.storage))
        return recordings
