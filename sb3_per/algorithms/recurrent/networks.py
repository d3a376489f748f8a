"""Put an LSTM before a network of SB3, step by step while acting and over windows while learning."""

from typing import Any, ClassVar

import torch as th
from stable_baselines3.common.policies import BaseModel
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

from sb3_per.algorithms.recurrent.memory import Memory, States, features_over_time, without_padding
from sb3_per.buffers.samples import SequenceReplayBufferSamples


class RecurrentNetwork(BaseModel):
    """
    Put an LSTM before a network of SB3: ``class RecurrentActor(RecurrentNetwork, Actor)``. Where the methods of SB3's network
    take observations, they now take the output of :meth:`step_memory` or :meth:`unroll_memory`.

    :param features_dim: number of features of an observation
    :param lstm_hidden_size: size of the LSTM
    :param n_lstm_layers: number of layers of the LSTM
    :param lstm_kwargs: further keyword arguments of the LSTM
    :param kwargs: SB3's keyword arguments
    """

    #: Whether features of the observation also pass by the LSTM.
    features_pass_memory: ClassVar[bool] = False

    #: Position of its states among those that acting carries along.
    own_states: ClassVar[slice] = slice(0, 2)

    def __init__(
        self,
        *,
        features_dim: int,
        lstm_hidden_size: int = 256,
        n_lstm_layers: int = 1,
        lstm_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ):
        kwargs["features_dim"] = lstm_hidden_size + (features_dim if self.features_pass_memory else 0)
        super().__init__(**kwargs)
        self.memory = Memory(features_dim, lstm_hidden_size, n_lstm_layers, lstm_kwargs)
        self._own_parameters = dict(
            features_dim=features_dim,
            lstm_hidden_size=lstm_hidden_size,
            n_lstm_layers=n_lstm_layers,
            lstm_kwargs=lstm_kwargs,
        )

    def step_memory(self, observations: Any, states: States) -> tuple[th.Tensor, States]:
        """
        Take one step.

        :param observations: observations, shape (n, ...), or a dictionary of them
        :param states: states before them
        :return: input of SB3's network, shape (n, n_features), and the states after the observations
        """
        features = self._features_of(observations)
        outputs, states = self.memory.step(features, states)
        return self._join(outputs, features), states

    def unroll_memory(self, batch: SequenceReplayBufferSamples) -> th.Tensor:
        """
        Warm up with the prefixes of windows, without gradient, and take all their steps.

        :param batch: windows
        :return: input of SB3's network, shape (sequence_length + n_steps, n, n_features)
        """
        states: States = batch.states[self.own_states]
        if batch.prefix_lengths.any():
            with th.no_grad():
                prefix = self._features_over_time(batch.prefix, batch.prefix_lengths)
                states = self.memory.states_after(prefix, batch.prefix_lengths, states)
        features = self._features_over_time(batch.observations, batch.next_steps.amax(dim=0) + 1)
        return self._join(self.memory.unroll(features, states), features)

    def extract_features(self, obs: Any, features_extractor: BaseFeaturesExtractor) -> Any:
        """Return the input, which has passed the extractor and the LSTM already. SB3's methods call this."""
        return obs

    def _features_of(self, observations: Any) -> th.Tensor:
        assert self.features_extractor is not None
        return super().extract_features(observations, self.features_extractor)

    def _features_over_time(self, observations: Any, lengths: th.Tensor) -> th.Tensor:
        return features_over_time(self._features_of, without_padding(observations, lengths))

    def _join(self, outputs: th.Tensor, features: th.Tensor) -> th.Tensor:
        return th.cat([outputs, features], dim=-1) if self.features_pass_memory else outputs

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), **self._own_parameters}


def at_steps(values: th.Tensor, batch: SequenceReplayBufferSamples) -> th.Tensor:
    """
    Select the values at the steps of windows, without padding.

    :param values: values at observations or steps of windows, shape (T, n, ...)
    :param batch: windows
    :return: values at each step, shape (mask.sum(), ...)
    """
    values = values[: len(batch.mask)].flatten(0, 1)
    return values if batch.steps is None else values.index_select(0, batch.steps)


def after_steps(values: th.Tensor, batch: SequenceReplayBufferSamples) -> th.Tensor:
    """
    Select the values at the end of the n-step return of each step.

    :param values: values at observations of windows, shape (sequence_length + n_steps, n, ...)
    :param batch: windows
    :return: values in the order of :func:`at_steps`, shape (mask.sum(), ...)
    """
    n_windows = batch.mask.shape[1]
    places = batch.next_steps * n_windows + th.arange(n_windows, device=values.device)
    return values.flatten(0, 1).index_select(0, at_steps(places, batch))


def laid_out(values: th.Tensor, batch: SequenceReplayBufferSamples) -> th.Tensor:
    """
    Invert :func:`at_steps`.

    :param values: values at each step, shape (mask.sum(), ...)
    :param batch: windows
    :return: values, shape (sequence_length, n, ...), 0 in the padding
    """
    if batch.steps is not None:
        values = values.new_zeros(batch.mask.numel(), *values.shape[1:]).index_copy(0, batch.steps, values)
    return values.reshape(*batch.mask.shape, *values.shape[1:])
