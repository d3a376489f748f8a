"""Recurrent Soft Actor-Critic with prioritized replay of sequences."""

from typing import Any, ClassVar

import numpy as np
import torch as th
from stable_baselines3 import SAC
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.common.utils import FloatSchedule

from sb3_per.algorithms.recurrent.mixin import RecurrentMixin
from sb3_per.algorithms.recurrent.networks import after_steps, at_steps, laid_out
from sb3_per.algorithms.recurrent.sac_policies import (
    CnnLstmPolicy,
    MlpLstmPolicy,
    MultiInputLstmPolicy,
    RecurrentActor,
    RecurrentCritic,
)
from sb3_per.algorithms.sac import EntropyRegularizedMixin
from sb3_per.buffers import SequenceReplayBufferSamples
from sb3_per.buffers.settings import number, require


class PERRecurrentSAC(RecurrentMixin, EntropyRegularizedMixin, SAC):
    """
    Soft Actor-Critic (SAC, arXiv 1801.01290) with LSTMs and prioritized replay of sequences.

    Use it for continuous actions, where one observation does not show the whole state.

    A batch holds windows of ``sequence_length`` steps, as in R2D2 (Kapturowski et al. 2019). The ``burn_in`` steps before a
    window warm up the LSTMs of actor, critics and target critics, from the states that acting had there. Actor and critics
    have separate LSTMs, and observations also bypass the LSTMs (Ni et al. 2022, arXiv 2110.05038).

    The critics' loss is weighted, those of the actor and of the entropy coefficient are not. All are means over the steps in
    the windows. ``replay_buffer_kwargs`` configures the :class:`~sb3_per.buffers.PrioritizedSequenceReplayBuffer`.
    ``policy_kwargs`` configures the LSTMs: ``lstm_hidden_size``, ``n_lstm_layers``, ``lstm_kwargs``. gSDE works; its noise
    depends on the output of the LSTM.

    ::

        model = PERRecurrentSAC("MlpLstmPolicy", env, sequence_length=20, burn_in=10, policy_kwargs=dict(lstm_hidden_size=128))
        model.learn(100_000)

    :param args: arguments of ``stable_baselines3.SAC``. The policy is ``"MlpLstmPolicy"``, ``"CnnLstmPolicy"``,
        ``"MultiInputLstmPolicy"`` or a class. The defaults are ``batch_size=32`` windows and ``train_freq=4`` steps, with
        which each step is learned 160 times (256 times in SAC)
    :param sequence_length: number of steps of a window that are learned
    :param burn_in: number of steps before a window that warm up the LSTMs
    :param lstm_learning_rate: learning rate of the LSTMs, a number or a schedule; ``None``: ``learning_rate``
    :param kwargs: keyword arguments of ``stable_baselines3.SAC``
    :raises ValueError: for a bad ``lstm_learning_rate``, or an argument that contradicts ``replay_buffer_kwargs``
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpLstmPolicy": MlpLstmPolicy,
        "CnnLstmPolicy": CnnLstmPolicy,
        "MultiInputLstmPolicy": MultiInputLstmPolicy,
    }
    defaults: ClassVar[dict[str, Any]] = dict(batch_size=32, train_freq=4)

    policy: MlpLstmPolicy
    actor: RecurrentActor
    critic: RecurrentCritic
    critic_target: RecurrentCritic
    lstm_learning_rate: float | Schedule | None

    # Output of the actor's LSTM for the batch, during a gradient step.
    _actor_features: th.Tensor | None = None

    def __init__(
        self,
        *args: Any,
        sequence_length: int = 20,
        burn_in: int = 10,
        lstm_learning_rate: float | Schedule | None = None,
        **kwargs: Any,
    ):
        if not callable(lstm_learning_rate):
            allowed = number("of at least 0, or a schedule", lambda rate: rate >= 0.0)
            require("lstm_learning_rate", lstm_learning_rate, allowed, none=True)
        self.lstm_learning_rate = lstm_learning_rate
        super().__init__(*args, sequence_length=sequence_length, burn_in=burn_in, **kwargs)

    def _update_learning_rate(self, optimizers: list[th.optim.Optimizer] | th.optim.Optimizer) -> None:
        super()._update_learning_rate(optimizers)
        if self.lstm_learning_rate is not None:
            rate = FloatSchedule(self.lstm_learning_rate)(self._current_progress_remaining)
            for network in (self.actor, self.critic):
                network.optimizer.param_groups[1]["lr"] = rate

    def _act(self, observations: Any, memory: tuple[np.ndarray, ...]) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        actions, of_actor = super()._act(observations, memory[self.actor.own_states])
        return actions, (*of_actor, *self.policy.step_critic(observations, memory[self.critic.own_states]))

    def _actor_batch(self, batch: Any) -> tuple[Any, th.Tensor | float]:
        """
        See :meth:`~sb3_per.algorithms.base.PrioritizedOffPolicyMixin._actor_batch`.

        :param batch: batch of the critics
        :return: the same windows, and weights of their steps
        """
        weights = super()._actor_batch(batch)[1]
        if isinstance(weights, th.Tensor):
            weights = at_steps(weights.T.expand_as(batch.mask), batch)[:, None]
            weights = weights / weights.mean()
        return batch, weights

    def _gradient_step(self, batch: Any, gradient_step: int) -> tuple[th.Tensor, dict[str, th.Tensor]]:
        """
        See :meth:`~sb3_per.algorithms.recurrent.mixin.RecurrentMixin._gradient_step`.

        :param batch: windows
        :param gradient_step: number of this step
        :return: TD errors, and what to log
        """
        # The actor does not change between the actions of its own loss and those of the targets, so compute this once.
        self._actor_features = self.actor.unroll_memory(batch)
        try:
            return super()._gradient_step(batch, gradient_step)
        finally:
            del self._actor_features

    def _unrolled_actor(self, batch: SequenceReplayBufferSamples) -> th.Tensor:
        return self.actor.unroll_memory(batch) if self._actor_features is None else self._actor_features

    def _current_actions(self, observations: SequenceReplayBufferSamples) -> tuple[th.Tensor, th.Tensor]:
        return super()._current_actions(at_steps(self._unrolled_actor(observations), observations))

    def _next_actions(self, batch: Any) -> tuple[th.Tensor, th.Tensor]:
        """
        Choose the next actions of the targets.

        :param batch: windows
        :return: actions of the current policy after each step, and the entropy coefficient times their log-probability,
            shape (mask.sum(), 1)
        """
        actions, log_prob = super()._current_actions(after_steps(self._unrolled_actor(batch), batch))
        return actions, self._current_ent_coef() * log_prob

    def _value_losses(self, batch: SequenceReplayBufferSamples) -> tuple[th.Tensor, th.Tensor]:  # type: ignore[override]
        with th.no_grad():
            next_actions, entropy_cost = self._next_actions(batch)
            next_q = self.critic_target(after_steps(self.critic_target.unroll_memory(batch), batch), next_actions)
            next_value = th.cat(next_q, dim=1).min(dim=1, keepdim=True).values - entropy_cost
            rewards, dones, discounts = (
                at_steps(part, batch)[:, None] for part in (batch.rewards, batch.dones, batch.discounts)
            )
            target_q = rewards + (1 - dones) * discounts * next_value
        q_values = self.critic(at_steps(self.critic.unroll_memory(batch), batch), at_steps(batch.actions, batch))
        td_errors = laid_out(th.cat([target_q - q for q in q_values], dim=1), batch)
        return 0.5 * td_errors.square(), td_errors

    def _policy_value(self, observations: SequenceReplayBufferSamples, actions: th.Tensor) -> th.Tensor:
        return super()._policy_value(at_steps(self.critic.unroll_memory(observations), observations), actions)
