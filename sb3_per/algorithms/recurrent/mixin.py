"""
Act and learn with recurrent states.

Acting carries the states from step to step, and stores with each step the states before it. Learning unrolls windows.
"""

from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import ActionNoise

from sb3_per.algorithms.recurrent.networks import ActingStates, WindowSteps, transitions_in, zero_at_starts, zero_states
from sb3_per.algorithms.torch_loop import PrioritizedOffPolicyMixin
from sb3_per.buffers import PrioritizedDictSequenceReplayBuffer, PrioritizedReplayBuffer, PrioritizedSequenceReplayBuffer
from sb3_per.utils.parents import overrides


@overrides("_sample_action", "_store_transition")
class RecurrentMixin(PrioritizedOffPolicyMixin):
    """
    Prioritized replay of sequences. Write it left of a prioritized algorithm: ``class PERRecurrentSAC(RecurrentMixin,
    PERSAC)``. The policy is a :class:`~sb3_per.algorithms.recurrent.policies.RecurrentPolicy`. The constructor sets
    ``sequence_length`` and ``burn_in``, and ``shared_arguments`` has these two, too.

    :raises ValueError: for an argument that contradicts ``replay_buffer_kwargs``
    """

    _default_buffer_classes = (PrioritizedSequenceReplayBuffer, PrioritizedDictSequenceReplayBuffer)

    learns_from_windows = True

    sequence_length: int
    burn_in: int

    # Attributes of the stock algorithm.
    policy: Any
    policy_class: Any

    # Number of steps that the updates have learned, repeats included, since `num_timesteps` was 0.
    _n_learned = 0

    # Recurrent states before `_last_obs`; None before the first step.
    _states: ActingStates = None

    # Recurrent states after it, from the choice of an action until its step is stored.
    _next_states: ActingStates = None

    # ---- acting

    def _sample_action(
        self, learning_starts: int, action_noise: ActionNoise | None = None, n_envs: int = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        """
        Choose actions as SB3 does. The states follow the observations, also where the actions are random.

        :param learning_starts: number of steps with random actions
        :param action_noise: noise added to the actions
        :param n_envs: number of environments
        :return: actions for the environments, and for the buffer
        """
        assert self._last_obs is not None and self._last_episode_starts is not None
        states = self._states
        if states is None or states[0].shape[1] != n_envs:
            states = zero_states(self.policy.state_shapes, n_envs)
        self._states = zero_at_starts(states, self._last_episode_starts)
        actions, self._next_states = self.predict(self._last_obs, self._states, deterministic=False)
        is_warmup = self.num_timesteps < learning_starts
        if is_warmup and not (self.use_sde and self.use_sde_at_warmup):
            actions = np.array([self.action_space.sample() for _ in range(n_envs)])
        if not isinstance(self.action_space, spaces.Box):
            return actions, actions
        scaled = self.policy.scale_action(actions)
        if action_noise is not None:
            scaled = np.clip(scaled + action_noise(), -1, 1)
        return self.policy.unscale_action(scaled), scaled

    def _store_transition(
        self, replay_buffer: Any, buffer_action: np.ndarray, new_obs: Any, reward: np.ndarray, dones: np.ndarray, infos: Any
    ) -> None:
        """Store a step as SB3 does, with the states before it and the starts of episodes."""
        buffer_with_states: Any = _WithStates(replay_buffer, self._last_episode_starts, self._states)
        super()._store_transition(buffer_with_states, buffer_action, new_obs, reward, dones, infos)
        self._states = self._next_states
        self._last_episode_starts = np.array(dones, dtype=bool)

    # ---- learning

    def _setup_learn(self, *args: Any, **kwargs: Any) -> tuple[int, BaseCallback]:
        prepared = super()._setup_learn(*args, **kwargs)
        if self.num_timesteps == 0:  # a run that counts its steps anew
            self._n_learned = 0
        return prepared

    def train(self, gradient_steps: int, batch_size: int | None = None) -> None:
        """
        See :meth:`~sb3_per.algorithms.torch_loop.PrioritizedOffPolicyMixin.train`. Until the first window is complete, e.g. in
        a run that continues without its buffer, nothing is updated.

        :param gradient_steps: number of updates
        :param batch_size: number of windows of an update; ``None``: the ``batch_size`` of the constructor
        """
        buffer = self.replay_buffer
        # An empty buffer, or one that is too small for any window, is an error of `sample`.
        is_filling = buffer.size() > 0 and not buffer.full
        if is_filling and not buffer.can_draw():
            return
        super().train(gradient_steps, batch_size)

    def td_errors(self, batch: Any) -> th.Tensor:
        """
        See :meth:`~sb3_per.algorithms.torch_loop.PrioritizedOffPolicyMixin.td_errors`.

        :param batch: windows
        :return: TD errors without gradient, shape (sequence_length, batch_size, n_critics), 0 in the padding
        """
        transitions = transitions_in(batch, {})
        steps: WindowSteps = transitions.observations
        return steps.in_windows(super().td_errors(transitions))

    def _update(self, batch: Any, gradient_step: int) -> tuple[th.Tensor, dict[str, th.Tensor]]:
        """
        Update all networks once, as the algorithm without an LSTM does, from the single steps of windows.

        :param batch: windows
        :param gradient_step: number of this step
        :return: TD errors, shape (sequence_length, batch_size, n_critics), 0 in the padding; and what to log, with
            ``per/valid_fraction``, the share of the windows that is not padding, and ``per/replay_ratio``, how often a step
            of this run has been learned so far
        """
        # The acting network's optimizer steps last, so one unrolling serves all its forward passes in this update.
        acting = self.policy.recurrent_networks[0]
        transitions = transitions_in(batch, {acting: acting.unroll(batch)})
        td_errors, metrics = super()._update(transitions, gradient_step)
        self._n_learned += len(transitions.indices)
        metrics["per/valid_fraction"] = batch.mask.float().mean()
        metrics["per/replay_ratio"] = th.tensor(self._n_learned / max(self.num_timesteps, 1))
        return transitions.observations.in_windows(td_errors.detach()), metrics

    # ---- the buffer

    def _state_shapes(self) -> tuple[tuple[int, int], ...]:
        """List the shapes of the recurrent states that the buffer stores. The policy may not be made yet."""
        shapes: tuple[tuple[int, int], ...] = self.policy_class.state_shapes_of(**self.policy_kwargs)
        return shapes

    def _check_buffer(self, buffer: PrioritizedReplayBuffer) -> None:
        """Refuse a buffer of single transitions, too, and one for the states of another network."""
        super()._check_buffer(buffer)
        kind = f"{type(self).__name__} with {type(buffer).__name__}"
        if not isinstance(buffer, PrioritizedSequenceReplayBuffer):
            raise NotImplementedError(
                f"{kind} is not supported: it learns from windows. Use a PrioritizedSequenceReplayBuffer"
            )
        if buffer.state_shapes != self._state_shapes():
            raise ValueError(f"{kind}: its state_shapes are {buffer.state_shapes}, those of the policy {self._state_shapes()}")

    def _buffer_settings(self) -> dict[str, Any]:
        settings = super()._buffer_settings()
        # Windows always come with discounts, so `gamma` must reach the buffer for single steps, too.
        settings.update({name: getattr(self, name) for name in self.shared_arguments})
        settings["state_shapes"] = self._state_shapes()
        return settings


class _WithStates:
    """
    Take the place of the buffer in SB3's ``_store_transition``, and add what SB3 does not know.

    :param buffer: buffer that stores the step
    :param episode_starts: whether an episode starts there, bool array of shape (n_envs,)
    :param states: recurrent states before the step
    """

    def __init__(self, buffer: Any, episode_starts: np.ndarray | None, states: ActingStates):
        self.buffer = buffer
        self.episode_starts = episode_starts
        self.states = states

    def add(self, *step: Any) -> None:
        """Store a step, given as to SB3's buffers."""
        self.buffer.add(*step, episode_starts=self.episode_starts, states=self.states)
