"""Recurrent policies of DQN."""

from typing import Any

import torch as th
from stable_baselines3.common.torch_layers import CombinedExtractor, NatureCNN
from stable_baselines3.dqn.policies import DQNPolicy, QNetwork

from sb3_per.algorithms.recurrent.networks import RecurrentNetwork, States
from sb3_per.algorithms.recurrent.policies import RecurrentPolicy


class RecurrentQNetwork(RecurrentNetwork, QNetwork):
    """SB3's Q-network after an LSTM."""


class MlpLstmPolicy(RecurrentPolicy, DQNPolicy):
    """
    Recurrent policy of DQN, with an LSTM between the features and the Q-network.

    :param args: SB3's arguments, see ``stable_baselines3.dqn.MlpPolicy``
    :param lstm_hidden_size: size of the LSTM
    :param n_lstm_layers: number of layers of the LSTM
    :param lstm_kwargs: further keyword arguments of the LSTM
    :param kwargs: SB3's keyword arguments
    """

    q_net: RecurrentQNetwork
    q_net_target: RecurrentQNetwork

    def make_q_net(self) -> RecurrentQNetwork:
        """Make the network, or its target. SB3 calls this twice."""
        net_args = self._update_features_extractor(self.net_args, features_extractor=None)
        return RecurrentQNetwork(**net_args, lstm_args=self.lstm_args).to(self.device)

    def _step(self, observations: Any, states: States, deterministic: bool) -> tuple[th.Tensor, States]:
        outputs, states = self.q_net.step_memory(observations, states)
        return self.q_net(outputs).argmax(dim=1), states


class CnnLstmPolicy(MlpLstmPolicy):
    """:class:`MlpLstmPolicy` for images."""

    default_extractor = NatureCNN


class MultiInputLstmPolicy(MlpLstmPolicy):
    """:class:`MlpLstmPolicy` for Dict observations."""

    default_extractor = CombinedExtractor
