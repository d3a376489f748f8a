"""Deep Q-Network with memory and prioritized replay of sequences (R2D2)."""

from typing import Any, ClassVar

import numpy as np
import torch as th
from stable_baselines3 import DQN
from stable_baselines3.common.policies import BasePolicy
from torch.nn import functional as F

from sb3_per.algorithms.dqn import DeepQMixin
from sb3_per.algorithms.recurrent.mixin import RecurrentMixin
from sb3_per.algorithms.recurrent.q_policies import CnnLstmPolicy, MlpLstmPolicy, MultiInputLstmPolicy
from sb3_per.algorithms.recurrent.value_rescaling import rescale, unscale
from sb3_per.buffers import SequenceReplayBufferSamples

#: Keyword arguments of :class:`PERRecurrentDQN` as in R2D2 (Kapturowski et al. 2019, table 2). There, 256 actors fill the
#: buffer while one learner takes five updates a second; here, the replay ratio is yours to choose, by ``train_freq``.
R2D2: dict[str, Any] = dict(
    sequence_length=80,
    burn_in=40,
    n_steps=5,
    double_q=True,
    value_rescaling=True,
    gamma=0.997,
    learning_rate=1e-4,
    batch_size=64,
    policy_kwargs=dict(lstm_hidden_size=512, optimizer_kwargs=dict(eps=1e-3)),
    replay_buffer_kwargs=dict(alpha=0.9, beta_start=0.6, beta_end=0.6, eta=0.9, sequence_period=40, store_state=True),
)


class PERRecurrentDQN(RecurrentMixin, DeepQMixin, DQN):
    """
    Deep Q-Network (DQN) with an LSTM and prioritized replay of sequences: R2D2 (Kapturowski et al. 2019, "Recurrent Experience
    Replay in Distributed Reinforcement Learning").

    For discrete actions, where one observation does not tell all, and stacked frames do not reach back far enough.

    What is drawn are windows of ``sequence_length`` steps; the memory is warmed up with the ``burn_in`` steps before them,
    from the state that acting had then. ``replay_buffer_kwargs`` configures the
    :class:`~sb3_per.buffers.PrioritizedSequenceReplayBuffer`, ``policy_kwargs`` the LSTM: ``lstm_hidden_size``,
    ``n_lstm_layers``, ``lstm_kwargs``. The paper's settings are in ``sb3_per.R2D2``.

    ::

        model = PERRecurrentDQN("MlpLstmPolicy", env, sequence_length=40, burn_in=20)
        model.learn(100_000)

    :param args: arguments of ``stable_baselines3.DQN``. The policy is ``"MlpLstmPolicy"``, ``"CnnLstmPolicy"``,
        ``"MultiInputLstmPolicy"`` or a class; ``n_steps`` is 5 and ``batch_size`` 32 windows, if nobody says otherwise, and
        ``train_freq`` 64 steps, so that each is learned 20 times
    :param sequence_length: steps of a window that are learned
    :param burn_in: steps before them that warm the memory up
    :param double_q: the online network chooses the next action, the target network values it (arXiv 1509.06461)
    :param value_rescaling: the network learns h(Q), see :func:`~sb3_per.algorithms.recurrent.value_rescaling.rescale`
    :param kwargs: keyword arguments of ``stable_baselines3.DQN``
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpLstmPolicy": MlpLstmPolicy,
        "CnnLstmPolicy": CnnLstmPolicy,
        "MultiInputLstmPolicy": MultiInputLstmPolicy,
    }
    # 5-step returns, 32 windows, and so many steps between two updates that each is learned 20 times.
    defaults: ClassVar[dict[str, Any]] = dict(n_steps=5, batch_size=32, train_freq=64)

    policy: MlpLstmPolicy
    q_net: Any
    q_net_target: Any
    double_q: bool
    value_rescaling: bool

    def __init__(
        self,
        *args: Any,
        sequence_length: int = 40,
        burn_in: int = 20,
        double_q: bool = True,
        value_rescaling: bool = False,
        **kwargs: Any,
    ):
        self.double_q = double_q
        self.value_rescaling = value_rescaling
        super().__init__(*args, sequence_length=sequence_length, burn_in=burn_in, **kwargs)

    def predict(
        self,
        observation: Any,
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """
        See :meth:`~sb3_per.algorithms.recurrent.q_policies.MlpLstmPolicy.predict`. Every environment explores on its own.
        The returned state is the one after the observation, for random actions too.

        :param observation: one, or one of every environment
        :param state: what the call before returned; ``None``: at the start
        :param episode_start: whether the observations are the first of their episodes
        :param deterministic: without exploration
        :return: actions, and the states
        """
        actions, state = self.policy.predict(observation, state, episode_start, deterministic)
        if not deterministic:
            flat = np.array(actions).reshape(-1)
            explores = np.random.rand(flat.size) < self.exploration_rate
            flat[explores] = [self.action_space.sample() for _ in range(int(explores.sum()))]
            actions = flat.reshape(np.shape(actions))
        return actions, state

    def _value_losses(self, batch: SequenceReplayBufferSamples) -> tuple[th.Tensor, th.Tensor]:  # type: ignore[override]
        with th.no_grad():
            target_q_values = self.q_net_target.unroll(batch)
        q_values = self.q_net.unroll(batch)
        with th.no_grad():
            behind = batch.next_steps[..., None].expand(-1, -1, q_values.shape[-1])
            next_q = target_q_values.gather(0, behind)
            if self.double_q:
                next_value = next_q.gather(2, q_values.gather(0, behind).argmax(dim=2, keepdim=True))[..., 0]
            else:
                next_value = next_q.max(dim=2).values
            if self.value_rescaling:
                next_value = unscale(next_value)
            targets = batch.rewards + (1 - batch.dones) * batch.discounts * next_value
            if self.value_rescaling:
                targets = rescale(targets)
            targets = th.where(batch.mask, targets, th.zeros((), device=targets.device))
        q = q_values[: self.sequence_length].gather(2, batch.actions.long())[..., 0]
        return F.smooth_l1_loss(q, targets, reduction="none"), targets - q
