"""The base class of recurrent policies."""

from typing import Any, ClassVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy

from sb3_per.algorithms.recurrent.networks import ActingStates, RecurrentNetwork, zero_at_starts, zero_states
from sb3_per.utils.parents import overrides


@overrides("_get_constructor_parameters")
class RecurrentPolicy(BasePolicy):
    """
    Base class of recurrent policies, written left of a policy of SB3. A subclass passes ``lstm_args`` to its networks.

    :param args: SB3's arguments
    :param lstm_hidden_size: size of the LSTMs
    :param n_lstm_layers: number of layers of the LSTMs
    :param lstm_kwargs: further keyword arguments of the LSTMs
    :param kwargs: SB3's keyword arguments
    :raises ValueError: for LSTMs that are bidirectional, batch first, or projected
    """

    #: Names of the networks whose states acting carries along. The first network acts.
    recurrent_names: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        *args: Any,
        lstm_hidden_size: int = 256,
        n_lstm_layers: int = 1,
        lstm_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ):
        for name in ("bidirectional", "batch_first", "proj_size"):
            if (lstm_kwargs or {}).get(name):
                raise ValueError(f"lstm_kwargs={lstm_kwargs}: agents act step by step, so leave {name} out")
        self._own_arguments = dict(lstm_hidden_size=lstm_hidden_size, n_lstm_layers=n_lstm_layers, lstm_kwargs=lstm_kwargs)
        self.lstm_args = dict(hidden_size=lstm_hidden_size, num_layers=n_lstm_layers, **(lstm_kwargs or {}))
        #: (n_layers, hidden) of each state that acting carries along
        self.state_shapes = self.state_shapes_of(lstm_hidden_size, n_lstm_layers)
        super().__init__(*args, **kwargs)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), **self._own_arguments}

    @classmethod
    def state_shapes_of(cls, lstm_hidden_size: int = 256, n_lstm_layers: int = 1, **_: Any) -> tuple[tuple[int, int], ...]:
        """
        Compute the shapes of the states from keyword arguments, before the policy is made.

        :param lstm_hidden_size: size of the LSTMs
        :param n_lstm_layers: number of layers of the LSTMs
        :param _: other keyword arguments of the policy, ignored
        :return: (n_layers, hidden) of each state that acting carries along: hidden and cell state of each LSTM
        """
        return ((n_lstm_layers, lstm_hidden_size),) * 2 * len(cls.recurrent_names)

    @property
    def recurrent_networks(self) -> list[RecurrentNetwork]:
        """The networks whose states acting carries along."""
        return [getattr(self, name) for name in self.recurrent_names]

    def predict(
        self,
        observation: Any,
        state: ActingStates = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, ActingStates]:
        """
        Choose actions, as sb3-contrib's ``RecurrentPPO`` does.

        :param observation: one observation, or one of every environment
        :param state: states from the call before; ``None``: zeros, of the network that acts
        :param episode_start: which observations are the first of an episode, shape (n_envs,); ``None``: none of them
        :param deterministic: whether to take the best action, not a sample
        :return: actions, and the states after the observations, each of shape (n_layers, n_envs, hidden), of the same
            networks as ``state``
        """
        self.set_training_mode(False)
        obs, is_vectorized = self.obs_to_tensor(observation)
        n_envs = len(next(iter(obs.values())) if isinstance(obs, dict) else obs)
        states = state
        if states is None:
            states = zero_states(self.state_shapes[:2], n_envs)  # hidden and cell state of the network that acts
        if episode_start is not None:
            states = zero_at_starts(states, episode_start)
        before = tuple(th.as_tensor(each, dtype=th.float32, device=self.device) for each in states)
        # The network that acts is the first. Training also carries the states of the others, an evaluation does not.
        networks = self.recurrent_networks[: len(before) // 2]
        inputs: list[th.Tensor] = []
        after: list[np.ndarray] = []
        with th.no_grad():
            for network in networks:
                network_input, new_states = network.step(obs, before[network.own_states])
                inputs.append(network_input)
                after += [each.cpu().numpy() for each in new_states]
            chosen = self._predict(inputs[0], deterministic)
        actions: np.ndarray = chosen.cpu().numpy().reshape(n_envs, *self.action_space.shape)  # type: ignore[misc]
        if isinstance(self.action_space, spaces.Box) and self.squash_output:
            actions = self.unscale_action(actions)
        return actions if is_vectorized else actions.squeeze(axis=0), tuple(after)
