"""Recurrent policies of SAC."""

from typing import Any

import torch as th
from stable_baselines3.common.policies import ContinuousCritic
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.sac.policies import Actor, CnnPolicy, MultiInputPolicy, SACPolicy

from sb3_per.algorithms.recurrent.networks import RecurrentNetwork
from sb3_per.algorithms.recurrent.policies import RecurrentPolicy
from sb3_per.utils.parents import overrides


class RecurrentActor(RecurrentNetwork, Actor):
    """SB3's actor after an LSTM; features also bypass the LSTM (Ni et al. 2022, arXiv 2110.05038)."""

    features_bypass_lstm = True


class RecurrentCritic(RecurrentNetwork, ContinuousCritic):
    """
    SB3's critics after an LSTM over observations; features and actions bypass the LSTM.

    The critics share the LSTM: their heads are enough to disagree about values. One LSTM each would take twice the time and
    twice the stored states.
    """

    features_bypass_lstm = True
    own_states = slice(2, 4)

    def _features_of(self, observations: Any) -> th.Tensor:
        # As in SB3, an extractor shared with the actor learns from the actor's loss alone.
        with th.set_grad_enabled(th.is_grad_enabled() and not self.share_features_extractor):
            return super()._features_of(observations)

    def forward(self, obs: Any, actions: th.Tensor) -> tuple[th.Tensor, ...]:
        """
        See SB3, which computes no gradient for the input if the extractor is shared. The LSTM needs one.

        :param obs: steps of windows
        :param actions: actions there
        :return: values by each critic
        """
        return super().forward(self.extract_features(obs), actions)


@overrides("_build")
class MlpLstmPolicy(RecurrentPolicy, SACPolicy):
    """
    Recurrent policy of SAC, with one LSTM for the actor, one for the critics, and one for their targets.

    The optimizers have two groups of parameters; the second one is the LSTM.

    :param args: SB3's arguments, see ``stable_baselines3.sac.MlpPolicy``
    :param lstm_hidden_size: size of the LSTMs
    :param n_lstm_layers: number of layers of the LSTMs
    :param lstm_kwargs: further keyword arguments of the LSTMs
    :param kwargs: SB3's keyword arguments
    """

    recurrent_names = ("actor", "critic")

    actor: RecurrentActor
    critic: RecurrentCritic
    critic_target: RecurrentCritic

    def _build(self, lr_schedule: Schedule) -> None:
        super()._build(lr_schedule)
        for network in self.recurrent_networks:
            lstm_parameters = list(network.lstm.parameters())
            (others,) = network.optimizer.param_groups
            others["params"] = [p for p in others["params"] if not any(p is each for each in lstm_parameters)]
            network.optimizer.add_param_group({"params": lstm_parameters})

    def make_actor(self, features_extractor: BaseFeaturesExtractor | None = None) -> RecurrentActor:
        """Make the actor."""
        actor_kwargs = self._update_features_extractor(self.actor_kwargs, features_extractor)
        return RecurrentActor(**actor_kwargs, lstm_args=self.lstm_args).to(self.device)

    def make_critic(self, features_extractor: BaseFeaturesExtractor | None = None) -> RecurrentCritic:
        """Make the critics, or their targets. SB3 calls this twice."""
        critic_kwargs = self._update_features_extractor(self.critic_kwargs, features_extractor)
        return RecurrentCritic(**critic_kwargs, lstm_args=self.lstm_args).to(self.device)


class CnnLstmPolicy(MlpLstmPolicy, CnnPolicy):
    """:class:`MlpLstmPolicy` for images."""


class MultiInputLstmPolicy(MlpLstmPolicy, MultiInputPolicy):
    """:class:`MlpLstmPolicy` for Dict observations."""
