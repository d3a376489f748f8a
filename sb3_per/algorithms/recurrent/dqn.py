"""Recurrent Deep Q-Network with prioritized replay of sequences (R2D2)."""

from typing import Any, ClassVar

import numpy as np
import torch as th
from stable_baselines3 import DQN

from sb3_per.algorithms.arguments import with_defaults
from sb3_per.algorithms.dqn import PERDQN
from sb3_per.algorithms.recurrent.mixin import RecurrentMixin
from sb3_per.algorithms.recurrent.networks import ActingStates
from sb3_per.algorithms.recurrent.q_policies import CnnLstmPolicy, MlpLstmPolicy, MultiInputLstmPolicy
from sb3_per.algorithms.recurrent.value_rescaling import rescale, unscale
from sb3_per.buffers import PrioritizedReplayBufferSamples
from sb3_per.utils.checks import FLAG, check_argument

#: Keyword arguments of :class:`PERRecurrentDQN` as in R2D2 (Kapturowski et al. 2019, table 2). In the paper, 256 actors fill
#: the buffer while one learner makes five updates a second. Here ``train_freq`` sets the replay ratio.
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


class PERRecurrentDQN(RecurrentMixin, PERDQN):
    """
    Deep Q-Network (DQN) with an LSTM and prioritized replay of sequences: R2D2 (Kapturowski et al. 2019, "Recurrent Experience
    Replay in Distributed Reinforcement Learning").

    Use it for discrete actions, where one observation does not show the whole state and stacked frames are too short.

    A batch holds windows of ``sequence_length`` steps. The ``burn_in`` steps before a window warm up the LSTM, from the state
    that acting had there. ``replay_buffer_kwargs`` configures the
    :class:`~sb3_per.buffers.PrioritizedSequenceReplayBuffer`. ``policy_kwargs`` configures the LSTM: ``lstm_hidden_size``,
    ``n_lstm_layers``, ``lstm_kwargs``. The paper's settings are in ``sb3_per.R2D2``.

    ::

        model = PERRecurrentDQN("MlpLstmPolicy", env, sequence_length=40, burn_in=20)
        model.learn(100_000)

    :param args: arguments of ``stable_baselines3.DQN``. The policy is ``"MlpLstmPolicy"``, ``"CnnLstmPolicy"``,
        ``"MultiInputLstmPolicy"`` or a class. The defaults are ``n_steps=5``, ``batch_size=32`` windows, and
        ``train_freq=64`` steps, with which each step is learned 20 times
    :param sequence_length: number of steps of a window that are learned
    :param burn_in: number of steps before a window that warm up the LSTM
    :param double_q: the online network chooses the next action, the target network values it (arXiv 1509.06461)
    :param value_rescaling: the network learns h(Q), see :func:`~sb3_per.algorithms.recurrent.value_rescaling.rescale`
    :param kwargs: keyword arguments of ``stable_baselines3.DQN``
    """

    policy_aliases: ClassVar[dict[str, Any]] = {p.__name__: p for p in (MlpLstmPolicy, CnnLstmPolicy, MultiInputLstmPolicy)}
    changed_defaults: ClassVar[dict[str, Any]] = dict(n_steps=5, batch_size=32, train_freq=64)

    def __init__(
        self,
        *args: Any,
        sequence_length: int = 40,
        burn_in: int = 20,
        double_q: bool = True,
        value_rescaling: bool = False,
        **kwargs: Any,
    ):
        self.sequence_length = sequence_length
        self.burn_in = burn_in
        self.value_rescaling = value_rescaling
        super().__init__(**with_defaults(DQN, args, kwargs, self.changed_defaults), double_q=double_q)

    def _setup_model(self) -> None:
        check_argument("value_rescaling", self.value_rescaling, FLAG)  # `load` may have set it, too
        super()._setup_model()

    def predict(
        self,
        observation: Any,
        state: ActingStates = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, ActingStates]:
        """
        Choose actions. Every environment explores on its own.

        :param observation: one observation, or one of every environment
        :param state: states from the call before; ``None``: zeros
        :param episode_start: which observations are the first of an episode, bool array of shape (n_envs,)
        :param deterministic: whether to act without exploration
        :return: actions, and the states after the observations, also for random actions
        """
        actions, state = self.policy.predict(observation, state, episode_start, deterministic)
        if not deterministic:
            actions = np.array(actions)
            explores = np.random.random_sample(actions.shape) < self.exploration_rate
            actions[explores] = [self.action_space.sample() for _ in range(np.count_nonzero(explores))]
        return actions, state

    def _target_from(self, batch: PrioritizedReplayBufferSamples, next_values: th.Tensor) -> th.Tensor:
        if not self.value_rescaling:
            return super()._target_from(batch, next_values)
        return rescale(super()._target_from(batch, unscale(next_values)))
