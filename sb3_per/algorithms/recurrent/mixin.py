"""
Act and learn with recurrent states.

Acting carries the states from step to step and stores each step with the states before it. Learning unrolls windows.
"""

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.noise import ActionNoise

from sb3_per.algorithms.base import GradientStep, PrioritizedOffPolicyMixin
from sb3_per.algorithms.recurrent.networks import Memory, WindowSteps, at_starts, transitions_in, zero_states
from sb3_per.buffers import PrioritizedDictSequenceReplayBuffer, PrioritizedReplayBuffer, PrioritizedSequenceReplayBuffer


class RecurrentMixin(PrioritizedOffPolicyMixin):
    """
    Prioritized replay of sequences for an off-policy algorithm of SB3. Its policy has ``state_shapes`` and a ``predict`` with
    states.

    :raises ValueError: for an argument that contradicts ``replay_buffer_kwargs``
    """

    # The dictionary must not contradict arguments of this class, even if they are defaults.
    buffer_arguments = PrioritizedOffPolicyMixin.buffer_arguments | dict.fromkeys(("sequence_length", "burn_in"))

    sequence_length: int
    burn_in: int

    # Attributes of the stock algorithm.
    policy: Any
    policy_class: Any

    # Number of learned steps, over all updates.
    _n_learned = 0

    # States before the next observation; None before the first step.
    _memory: Memory = None

    # ---- acting

    def _sample_action(
        self, learning_starts: int, action_noise: ActionNoise | None = None, n_envs: int = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        """
        Choose actions as SB3 does, and advance the states, also if the actions are random.

        :param learning_starts: number of steps with random actions
        :param action_noise: noise added to the actions
        :param n_envs: number of environments
        :return: actions for the environments, and for the buffer
        """
        assert self._last_obs is not None and self._last_episode_starts is not None
        memory = self._memory
        if memory is None or memory[0].shape[1] != n_envs:
            memory = zero_states(self.policy.state_shapes, n_envs)
        self._memory = at_starts(memory, self._last_episode_starts)
        actions, self._next_memory = self.predict(self._last_obs, self._memory, deterministic=False)
        if self.num_timesteps < learning_starts and not (self.use_sde and self.use_sde_at_warmup):
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
        add = partial(replay_buffer.add, episode_starts=self._last_episode_starts, states=self._memory)
        buffer: Any = SimpleNamespace(add=add)
        super()._store_transition(buffer, buffer_action, new_obs, reward, dones, infos)
        self._memory = self._next_memory
        self._last_episode_starts = np.array(dones, dtype=bool)

    # ---- learning

    def train(self, gradient_steps: int, batch_size: int | None = None) -> None:
        """
        See :meth:`~sb3_per.algorithms.base.PrioritizedOffPolicyMixin.train`. Until the first window is complete, e.g. in a run
        that continues without its buffer, nothing is updated.

        :param gradient_steps: number of updates
        :param batch_size: number of windows of an update; ``None``: the ``batch_size`` of the constructor
        """
        buffer = self.replay_buffer
        # An empty buffer, or one that is too small for any window, is an error of `sample`.
        is_filling = buffer.size() > 0 and not buffer.full
        with buffer.lock:
            has_window = buffer.sampler.can_draw()
        if is_filling and not has_window:
            return
        super().train(gradient_steps, batch_size)

    def td_errors(self, batch: Any) -> th.Tensor:
        """
        See :meth:`~sb3_per.algorithms.base.PrioritizedOffPolicyMixin.td_errors`.

        :param batch: windows
        :return: TD errors without gradient, shape (sequence_length, batch_size, n_critics), 0 in the padding
        """
        transitions = transitions_in(batch, {})
        steps: WindowSteps = transitions.observations
        return steps.laid_out(super().td_errors(transitions))

    def _gradient_step(self, batch: Any, gradient_step: int) -> GradientStep:
        """
        Make the gradient step of the algorithm without an LSTM, from the steps of windows.

        :param batch: windows
        :param gradient_step: number of this step
        :return: TD errors, shape (sequence_length, batch_size, n_critics), 0 in the padding; and what to log, with
            ``per/valid_fraction``, the share of the windows that is not padding, and ``per/replay_ratio``, how often a step
            has been learned so far
        """
        # The network that acts stays the same until its own loss is computed, so unroll it once for all its uses.
        acting = self.policy.memories[0]
        transitions = transitions_in(batch, {acting: acting.unroll_memory(batch)})
        td_errors, metrics = super()._gradient_step(transitions, gradient_step)
        self._n_learned += len(transitions.indices)
        return transitions.observations.laid_out(td_errors.detach()), {
            **metrics,
            "per/valid_fraction": batch.mask.float().mean(),
            "per/replay_ratio": th.tensor(self._n_learned / max(self.num_timesteps, 1)),
        }

    # ---- the buffer

    def _default_buffer_class(self) -> type[PrioritizedReplayBuffer]:
        is_dict = isinstance(self.observation_space, spaces.Dict)
        return PrioritizedDictSequenceReplayBuffer if is_dict else PrioritizedSequenceReplayBuffer

    def _buffer_kwargs(self) -> dict[str, Any]:
        # The buffer is made before the policy.
        return {**super()._buffer_kwargs(), "state_shapes": self.policy_class.state_shapes_of(**self.policy_kwargs)}
