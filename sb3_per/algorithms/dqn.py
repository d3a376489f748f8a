"""Deep Q-Network with prioritized experience replay."""

from typing import TYPE_CHECKING, Any

import torch as th
from stable_baselines3 import DQN
from torch.nn import functional as F

from sb3_per.buffers import PrioritizedReplayBufferSamples
from sb3_per.off_policy import PrioritizedOffPolicyMixin, minimise
from sb3_per.signatures import extends_signature

if TYPE_CHECKING:
    from stable_baselines3.common.buffers import ReplayBuffer
    from stable_baselines3.common.type_aliases import GymEnv, Schedule
    from stable_baselines3.dqn.policies import DQNPolicy

    from sb3_per.buffers.settings import ReplayBufferKwargs


class DeepQMixin(PrioritizedOffPolicyMixin):
    """What algorithms without an actor have in common (DQN, QR-DQN): their values are all that they learn."""

    # Attribute of the algorithms that this mixin stands left of.
    max_grad_norm: Any

    def _optimizers(self) -> list[th.optim.Optimizer]:
        return [self.policy.optimizer]

    def _gradient_step(
        self, batch: PrioritizedReplayBufferSamples, gradient_step: int
    ) -> tuple[th.Tensor, dict[str, th.Tensor]]:
        loss, td_errors = self._value_loss(batch)
        minimise(loss, self.policy.optimizer, self.max_grad_norm)
        return td_errors, {"loss": loss}


class PERDQN(DeepQMixin, DQN):
    """
    Deep Q-Network (DQN, arXiv 1312.5602) with prioritized experience replay (PER, arXiv 1511.05952), and optionally Double
    Q-learning (arXiv 1509.06461).

    For discrete actions, most of all where rewards are rare: PER was made for DQN on Atari. With hindsight,
    ``replay_buffer_class=PrioritizedHerReplayBuffer``, the default weights slowed learning down on BitFlipping;
    ``scheme="lap"`` or no weights (``beta_start=0, beta_end=0``) did not.

    The loss is DQN's smooth L1 loss times the importance-sampling weight. The priority of a transition comes from its
    absolute TD error.

    Settings of the buffer go into ``replay_buffer_kwargs``, see :class:`~sb3_per.PrioritizedReplayBuffer`: ``scheme``,
    ``alpha``, ``beta_start``, ``beta_end``, ``frames`` and others.

    ::

        model = PERDQN("MlpPolicy", "CartPole-v1", double_q=True, replay_buffer_kwargs=dict(alpha=0.6, beta_start=0.4))
        model.learn(10_000)

    :param args: arguments of ``stable_baselines3.DQN``, with the same defaults
    :param double_q: the online network chooses the next action, the target network values it
    :param kwargs: keyword arguments of ``stable_baselines3.DQN``
    """

    double_q: bool

    # For type checkers and editors only, see PERSAC.
    if TYPE_CHECKING:

        def __init__(
            self,
            policy: str | type[DQNPolicy],
            env: GymEnv | str,
            learning_rate: float | Schedule = 1e-4,
            buffer_size: int = 1_000_000,
            learning_starts: int = 100,
            batch_size: int = 32,
            tau: float = 1.0,
            gamma: float = 0.99,
            train_freq: int | tuple[int, str] = 4,
            gradient_steps: int = 1,
            replay_buffer_class: type[ReplayBuffer] | None = None,
            replay_buffer_kwargs: ReplayBufferKwargs | None = None,
            optimize_memory_usage: bool = False,
            n_steps: int = 1,
            target_update_interval: int = 10000,
            exploration_fraction: float = 0.1,
            exploration_initial_eps: float = 1.0,
            exploration_final_eps: float = 0.05,
            max_grad_norm: float = 10,
            stats_window_size: int = 100,
            tensorboard_log: str | None = None,
            policy_kwargs: dict[str, Any] | None = None,
            verbose: int = 0,
            seed: int | None = None,
            device: th.device | str = "auto",
            _init_setup_model: bool = True,
            *,
            double_q: bool = False,
        ) -> None: ...

    else:

        @extends_signature(DQN.__init__)
        def __init__(self, *args: Any, double_q: bool = False, **kwargs: Any):
            self.double_q = double_q
            super().__init__(*args, **kwargs)

    def _value_losses(self, batch: PrioritizedReplayBufferSamples) -> tuple[th.Tensor, th.Tensor]:
        with th.no_grad():
            next_q = self.q_net_target(batch.next_observations)
            if self.double_q:
                next_actions = self.q_net(batch.next_observations).argmax(dim=1, keepdim=True)
                next_value = next_q.gather(dim=1, index=next_actions)
            else:
                next_value = next_q.max(dim=1, keepdim=True).values
            target_q = self._td_target(batch, next_value)
        q = self.q_net(batch.observations).gather(dim=1, index=batch.actions.long())
        return F.smooth_l1_loss(q, target_q, reduction="none"), target_q - q
