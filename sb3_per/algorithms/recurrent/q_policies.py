"""Recurrent policies of DQN."""

from stable_baselines3.dqn.policies import CnnPolicy, DQNPolicy, MultiInputPolicy, QNetwork

from sb3_per.algorithms.recurrent.networks import RecurrentNetwork
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

    recurrent_names = ("q_net",)

    q_net: RecurrentQNetwork
    q_net_target: RecurrentQNetwork

    def make_q_net(self) -> RecurrentQNetwork:
        """Make the network, or its target. SB3 calls this twice."""
        net_args = self._update_features_extractor(self.net_args, features_extractor=None)
        return RecurrentQNetwork(**net_args, lstm_args=self.lstm_args).to(self.device)


class CnnLstmPolicy(MlpLstmPolicy, CnnPolicy):
    """:class:`MlpLstmPolicy` for images."""


class MultiInputLstmPolicy(MlpLstmPolicy, MultiInputPolicy):
    """:class:`MlpLstmPolicy` for Dict observations."""
