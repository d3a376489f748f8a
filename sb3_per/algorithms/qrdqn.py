"""Quantile Regression DQN with prioritized experience replay."""

from typing import TYPE_CHECKING, Any

import torch as th
from sb3_contrib import QRDQN

from sb3_per.algorithms.dqn import DeepQMixin
from sb3_per.algorithms.quantiles import pairwise_quantile_huber_loss
from sb3_per.buffers import PrioritizedReplayBufferSamples

if TYPE_CHECKING:
    from sb3_contrib.qrdqn.policies import QRDQNPolicy
    from stable_baselines3.common.buffers import ReplayBuffer
    from stable_baselines3.common.type_aliases import GymEnv, Schedule


class PERQRDQN(DeepQMixin, QRDQN):
    """
    Quantile Regression DQN (QR-DQN, arXiv 1710.10044) with prioritized experience replay (PER, arXiv 1511.05952).

    For discrete actions, where the whole distribution of returns is to be learned, and not its mean alone.

    The quantile Huber loss is weighted. The priority of a transition comes from the absolute difference of expected values,
    ``|mean of the target quantiles - mean of the current quantiles|``: a quantile loss does not vanish where nothing is left
    to learn. The schemes LAP and PAL are refused, because they replace the loss of a scalar TD error.

    Settings of the buffer go into ``replay_buffer_kwargs``, see :class:`~sb3_per.PrioritizedReplayBuffer`: ``scheme``,
    ``alpha``, ``beta_start``, ``beta_end`` and others. All other arguments are those of ``sb3_contrib.QRDQN``, with the same
    defaults.

    ::

        model = PERQRDQN("MlpPolicy", "CartPole-v1", replay_buffer_kwargs=dict(scheme="rank", beta_start=0.5))
        model.learn(10_000)
    """

    # For type checkers and editors only, see PERSAC.
    if TYPE_CHECKING:

        def __init__(
            self,
            policy: str | type[QRDQNPolicy],
            env: GymEnv | str,
            learning_rate: float | Schedule = 5e-5,
            buffer_size: int = 1000000,
            learning_starts: int = 100,
            batch_size: int = 32,
            tau: float = 1.0,
            gamma: float = 0.99,
            train_freq: int | tuple[int, str] = 4,
            gradient_steps: int = 1,
            replay_buffer_class: type[ReplayBuffer] | None = None,
            replay_buffer_kwargs: dict[str, Any] | None = None,
            optimize_memory_usage: bool = False,
            n_steps: int = 1,
            target_update_interval: int = 10000,
            exploration_fraction: float = 0.005,
            exploration_initial_eps: float = 1.0,
            exploration_final_eps: float = 0.01,
            max_grad_norm: float | None = None,
            stats_window_size: int = 100,
            tensorboard_log: str | None = None,
            policy_kwargs: dict[str, Any] | None = None,
            verbose: int = 0,
            seed: int | None = None,
            device: th.device | str = "auto",
            _init_setup_model: bool = True,
        ) -> None: ...

    has_scalar_td_loss = False

    def _value_losses(self, batch: PrioritizedReplayBufferSamples) -> tuple[th.Tensor, th.Tensor]:
        with th.no_grad():
            next_quantiles = self.quantile_net_target(batch.next_observations)  # (batch_size, n_quantiles, n_actions)
            next_actions = next_quantiles.mean(dim=1).argmax(dim=1)
            targets = self._td_target(batch, _of_actions(next_quantiles, next_actions))
        quantiles = _of_actions(self.quantile_net(batch.observations), batch.actions.long().squeeze(dim=1))
        losses = pairwise_quantile_huber_loss(quantiles, targets).sum(dim=1).mean(dim=1, keepdim=True)
        return losses, (targets.mean(dim=1) - quantiles.mean(dim=1)).unsqueeze(dim=1)


def _of_actions(quantiles: th.Tensor, actions: th.Tensor) -> th.Tensor:
    """
    :param quantiles: shape (batch_size, n_quantiles, n_actions)
    :param actions: shape (batch_size,)
    :return: quantiles of these actions, shape (batch_size, n_quantiles)
    """
    index = actions.view(-1, 1, 1).expand(-1, quantiles.shape[1], 1)
    return quantiles.gather(dim=2, index=index).squeeze(dim=2)
