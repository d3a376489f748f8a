"""
SB3's networks behind a memory: step by step while acting, and over windows while learning. It knows batches of windows, and
neither actions nor losses.
"""

from typing import Any, ClassVar

import torch as th
from stable_baselines3.common.policies import BaseModel
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

from sb3_per.algorithms.recurrent.memory import Memory, States, features_over_time, without_padding
from sb3_per.buffers.samples import SequenceReplayBufferSamples


class RecurrentNetwork(BaseModel):
    """
    Stands left of a network of SB3, ``class RecurrentActor(RecurrentNetwork, Actor)``, whose methods take from then on what
    :meth:`step_memory` and :meth:`unroll_memory` give, where they took observations.

    :param features_dim: features of an observation
    :param lstm_hidden_size: of the LSTM
    :param n_lstm_layers: of the LSTM
    :param lstm_kwargs: further keyword arguments of the LSTM
    :param kwargs: SB3's keyword arguments
    """

    #: Whether the features of the observation also go past the LSTM: what can be seen need not be remembered first.
    features_pass_memory: ClassVar[bool] = False

    #: Which of the states that are carried along while training are those of its memory.
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
        :param observations: shape (n, ...), or a dictionary of them
        :param states: before them
        :return: what the memory makes of them, shape (n, n_features), and the states behind them
        """
        features = self._features_of(observations)
        outputs, states = self.memory.step(features, states)
        return self._join(outputs, features), states

    def unroll_memory(self, batch: SequenceReplayBufferSamples) -> th.Tensor:
        """
        :param batch: windows. The memory is warmed up with their prefixes, which get no gradient
        :return: what the memory makes of all their observations, shape (sequence_length + n_steps, n, n_features); 0 goes in
            where there is none
        """
        states: States = batch.states[self.own_states]
        if batch.prefix_lengths.any():
            with th.no_grad():
                prefix = self._features_over_time(batch.prefix, batch.prefix_lengths)
                states = self.memory.states_behind(prefix, batch.prefix_lengths, states)
        features = self._features_over_time(batch.observations, batch.next_steps.amax(dim=0) + 1)
        return self._join(self.memory.unroll(features, states), features)

    def extract_features(self, obs: Any, features_extractor: BaseFeaturesExtractor) -> Any:
        """Called by SB3's methods: what they get has been through the extractor and the memory."""
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
    :param values: at the observations of windows, or at their steps, time first, shape (T, n, ...)
    :param batch: the windows
    :return: those before each step that there is, one after the other, shape (mask.sum(), ...)
    """
    values = values[: len(batch.mask)].flatten(0, 1)
    return values if batch.steps is None else values.index_select(0, batch.steps)


def behind_steps(values: th.Tensor, batch: SequenceReplayBufferSamples) -> th.Tensor:
    """
    :param values: at the observations of windows, time first, shape (sequence_length + n_steps, n, ...)
    :param batch: the windows
    :return: those behind the n-step return of each step that there is, in the order of :func:`at_steps`
    """
    n_windows = batch.mask.shape[1]
    places = batch.next_steps * n_windows + th.arange(n_windows, device=values.device)
    return values.flatten(0, 1).index_select(0, at_steps(places, batch))


def laid_out(values: th.Tensor, batch: SequenceReplayBufferSamples) -> th.Tensor:
    """
    The way back from :func:`at_steps`.

    :param values: of the steps that there are, shape (mask.sum(), ...)
    :param batch: the windows
    :return: time first, shape (sequence_length, n, ...), 0 where there is no step
    """
    if batch.steps is not None:
        values = values.new_zeros(batch.mask.numel(), *values.shape[1:]).index_copy(0, batch.steps, values)
    return values.reshape(*batch.mask.shape, *values.shape[1:])
