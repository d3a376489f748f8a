"""Policies of DQN with memory: Q-values of what was seen since the start of the episode."""

from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, CombinedExtractor, NatureCNN
from stable_baselines3.dqn.policies import DQNPolicy, QNetwork

from sb3_per.buffers.samples import SequenceReplayBufferSamples
from sb3_per.recurrent.memory import Memory, States, at_starts, features_over_time, without_padding, zero_states


class RecurrentQNetwork(QNetwork):
    """
    SB3's Q-network behind an LSTM.

    :param observation_space: of the environment
    :param action_space: of the environment
    :param features_extractor: before the LSTM
    :param features_dim: features that it gives
    :param lstm_hidden_size: of the LSTM
    :param n_lstm_layers: of the LSTM
    :param lstm_kwargs: further keyword arguments of the LSTM
    :param kwargs: SB3's keyword arguments
    """

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Discrete,
        features_extractor: BaseFeaturesExtractor,
        features_dim: int,
        lstm_hidden_size: int = 256,
        n_lstm_layers: int = 1,
        lstm_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ):
        super().__init__(observation_space, action_space, features_extractor, lstm_hidden_size, **kwargs)
        self.memory = Memory(features_dim, lstm_hidden_size, n_lstm_layers, lstm_kwargs)
        self._own_parameters = dict(
            features_dim=features_dim,
            lstm_hidden_size=lstm_hidden_size,
            n_lstm_layers=n_lstm_layers,
            lstm_kwargs=lstm_kwargs,
        )

    def step(self, observations: Any, states: States) -> tuple[th.Tensor, States]:
        """
        :param observations: shape (n, ...), or a dictionary of them
        :param states: before them
        :return: Q-values, shape (n, n_actions), and the states behind them
        """
        outputs, states = self.memory.step(self.extract_features(observations, self.features_extractor), states)
        return self.q_net(outputs), states

    def unroll(self, batch: SequenceReplayBufferSamples) -> th.Tensor:
        """
        Q-values at all observations of windows. The memory is warmed up with the prefixes, which get no gradient.

        :param batch: windows
        :return: shape (sequence_length + n_steps, n, n_actions)
        """

        def features(observations: Any, lengths: th.Tensor) -> th.Tensor:
            observations = without_padding(observations, lengths)
            return features_over_time(lambda flat: self.extract_features(flat, self.features_extractor), observations)

        states: States = batch.states
        if batch.prefix_lengths.any():
            with th.no_grad():
                states = self.memory.states_behind(features(batch.prefix, batch.prefix_lengths), batch.prefix_lengths, states)
        lengths = batch.next_steps.amax(dim=0) + 1
        q_values: th.Tensor = self.q_net(self.memory.unroll(features(batch.observations, lengths), states))
        return q_values

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), **self._own_parameters}


class MlpLstmPolicy(DQNPolicy):
    """
    Policy of DQN with an LSTM between the features and the Q-network.

    :param args: SB3's arguments, see ``stable_baselines3.dqn.MlpPolicy``
    :param lstm_hidden_size: of the LSTM
    :param n_lstm_layers: of the LSTM
    :param lstm_kwargs: further keyword arguments of the LSTM
    :param kwargs: SB3's keyword arguments
    """

    q_net: RecurrentQNetwork
    q_net_target: RecurrentQNetwork

    def __init__(
        self,
        *args: Any,
        lstm_hidden_size: int = 256,
        n_lstm_layers: int = 1,
        lstm_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ):
        self.lstm_args: dict[str, Any] = dict(
            lstm_hidden_size=lstm_hidden_size, n_lstm_layers=n_lstm_layers, lstm_kwargs=lstm_kwargs
        )
        super().__init__(*args, **kwargs)

    def make_q_net(self) -> RecurrentQNetwork:
        """Called twice, for the network and its target."""
        net_args = self._update_features_extractor(self.net_args, features_extractor=None)
        return RecurrentQNetwork(**net_args, **self.lstm_args).to(self.device)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), **self.lstm_args}

    @staticmethod
    def state_shapes_of(
        lstm_hidden_size: int = 256, n_lstm_layers: int = 1, **policy_kwargs: Any
    ) -> tuple[tuple[int, int], ...]:
        """
        :param lstm_hidden_size: of the LSTM
        :param n_lstm_layers: of the LSTM
        :param policy_kwargs: without influence
        :return: (n_layers, hidden) of each state that acting carries along
        """
        return ((n_lstm_layers, lstm_hidden_size),) * 2

    @property
    def state_shapes(self) -> tuple[tuple[int, int], ...]:
        """(n_layers, hidden) of each state that acting carries along."""
        return self.state_shapes_of(**self.lstm_args)

    def predict(
        self,
        observation: Any,
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """
        The action of largest value, and the state behind the observation; as of sb3-contrib's ``RecurrentPPO``.

        :param observation: one, or one of every environment
        :param state: what the call before returned; ``None``: at the start
        :param episode_start: whether the observations are the first of their episodes, shape (n_envs,); ``None``: none of
            them, apart from what ``state`` says
        :param deterministic: without influence: exploration is the algorithm's
        :return: actions, and the states, each of shape (n_layers, n_envs, hidden)
        """
        self.set_training_mode(False)
        obs, is_vectorized = self.obs_to_tensor(observation)
        n_envs = len(next(iter(obs.values())) if isinstance(obs, dict) else obs)
        states = zero_states(self.state_shapes, n_envs) if state is None else state
        if episode_start is not None:
            states = at_starts(states, episode_start)
        with th.no_grad():
            tensors = tuple(th.as_tensor(each, dtype=th.float32, device=self.device) for each in states)
            q_values, behind = self.q_net.step(obs, tensors)
        actions = q_values.argmax(dim=1).cpu().numpy()
        return actions if is_vectorized else actions.squeeze(axis=0), tuple(each.cpu().numpy() for each in behind)


class CnnLstmPolicy(MlpLstmPolicy):
    """
    :class:`MlpLstmPolicy` for images.

    :param args: SB3's arguments
    :param features_extractor_class: see SB3
    :param kwargs: keyword arguments of :class:`MlpLstmPolicy`
    """

    def __init__(self, *args: Any, features_extractor_class: type[BaseFeaturesExtractor] = NatureCNN, **kwargs: Any):
        super().__init__(*args, features_extractor_class=features_extractor_class, **kwargs)


class MultiInputLstmPolicy(MlpLstmPolicy):
    """
    :class:`MlpLstmPolicy` for Dict observations.

    :param args: SB3's arguments
    :param features_extractor_class: see SB3
    :param kwargs: keyword arguments of :class:`MlpLstmPolicy`
    """

    def __init__(self, *args: Any, features_extractor_class: type[BaseFeaturesExtractor] = CombinedExtractor, **kwargs: Any):
        super().__init__(*args, features_extractor_class=features_extractor_class, **kwargs)
