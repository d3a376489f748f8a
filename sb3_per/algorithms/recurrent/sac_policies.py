"""Policies of SAC with memory: an actor and critics that see what was observed since the start of the episode."""

from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.policies import ContinuousCritic
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, CombinedExtractor, NatureCNN
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.sac.policies import Actor, SACPolicy

from sb3_per.algorithms.recurrent.memory import States
from sb3_per.algorithms.recurrent.networks import RecurrentNetwork
from sb3_per.algorithms.recurrent.policies import RecurrentPolicy


class RecurrentActor(RecurrentNetwork, Actor):
    """SB3's actor behind an LSTM, and behind the features that go past it (Ni et al. 2022, arXiv 2110.05038)."""

    features_pass_memory = True


class RecurrentCritic(RecurrentNetwork, ContinuousCritic):
    """
    SB3's critics behind an LSTM. The LSTM sees observations; their features go past it too, and so does the action.

    The critics share it: the twins are there to disagree about values, and heads do. One for each of them would take twice the
    time and twice the stored states.
    """

    features_pass_memory = True
    own_states = slice(2, 4)

    def _features_of(self, observations: Any) -> th.Tensor:
        # As in SB3, an extractor that is shared with the actor learns from the actor's loss alone.
        with th.set_grad_enabled(th.is_grad_enabled() and not self.share_features_extractor):
            return super()._features_of(observations)


class MlpLstmPolicy(RecurrentPolicy, SACPolicy):
    """
    Policy of SAC with an LSTM of its own for the actor, for the critics, and for their targets.

    The optimizers have two groups of parameters, the second one is the LSTM.

    :param args: SB3's arguments, see ``stable_baselines3.sac.MlpPolicy``
    :param lstm_hidden_size: of the LSTMs
    :param n_lstm_layers: of the LSTMs
    :param lstm_kwargs: further keyword arguments of the LSTMs
    :param kwargs: SB3's keyword arguments
    """

    # The actor's, and the critics'.
    n_memories = 2

    actor: RecurrentActor
    critic: RecurrentCritic
    critic_target: RecurrentCritic

    def _build(self, lr_schedule: Schedule) -> None:
        super()._build(lr_schedule)
        for network in (self.actor, self.critic):
            of_memory = list(network.memory.parameters())
            (others,) = network.optimizer.param_groups
            others["params"] = [p for p in others["params"] if not any(p is each for each in of_memory)]
            network.optimizer.add_param_group({"params": of_memory})

    def make_actor(self, features_extractor: BaseFeaturesExtractor | None = None) -> RecurrentActor:
        """See SB3."""
        actor_kwargs = self._update_features_extractor(self.actor_kwargs, features_extractor)
        return RecurrentActor(**actor_kwargs, **self.lstm_args).to(self.device)

    def make_critic(self, features_extractor: BaseFeaturesExtractor | None = None) -> RecurrentCritic:
        """Called twice, for the critics and their targets."""
        critic_kwargs = self._update_features_extractor(self.critic_kwargs, features_extractor)
        return RecurrentCritic(**critic_kwargs, **self.lstm_args).to(self.device)

    def _step(self, observations: Any, states: States, deterministic: bool) -> tuple[th.Tensor, States]:
        features, states = self.actor.step_memory(observations, states)
        return self.actor(features, deterministic), states

    def step_critic(self, observations: Any, states: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        """
        Carry along what acting does not need, but learning begins with.

        :param observations: one of every environment
        :param states: of the critics' LSTM, before them, each of shape (n_layers, n_envs, hidden)
        :return: behind them
        """
        with th.no_grad():
            _, behind = self.critic.step_memory(self.obs_to_tensor(observations)[0], self.states_to_tensors(states))
        return tuple(each.cpu().numpy() for each in behind)


class CnnLstmPolicy(MlpLstmPolicy):
    """:class:`MlpLstmPolicy` for images."""

    default_extractor = NatureCNN


class MultiInputLstmPolicy(MlpLstmPolicy):
    """:class:`MlpLstmPolicy` for Dict observations."""

    default_extractor = CombinedExtractor
