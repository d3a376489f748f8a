"""
An LSTM over the steps of windows, and over one step while acting. It knows tensors, time first, and nothing of replay.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch as th
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

# Hidden and cell state, each of shape (n_layers, n, hidden).
States = tuple[th.Tensor, ...]


class Memory(nn.Module):
    """
    Features of observations, and an LSTM behind them.

    :param n_features: of an observation
    :param hidden_size: of the LSTM
    :param n_layers: of the LSTM
    :param lstm_kwargs: keyword arguments of ``th.nn.LSTM``
    :raises ValueError: for an LSTM that is bidirectional or batch first
    """

    def __init__(self, n_features: int, hidden_size: int, n_layers: int, lstm_kwargs: dict[str, Any] | None):
        super().__init__()
        for name in ("bidirectional", "batch_first", "proj_size"):
            if (lstm_kwargs or {}).get(name):
                raise ValueError(f"lstm_kwargs={lstm_kwargs}: {name} does not go with acting step by step")
        self.lstm = nn.LSTM(n_features, hidden_size, num_layers=n_layers, **(lstm_kwargs or {}))

    def step(self, features: th.Tensor, states: States) -> tuple[th.Tensor, States]:
        """
        :param features: of one observation each, shape (n, n_features)
        :param states: before it
        :return: outputs, shape (n, hidden), and the states behind it
        """
        outputs, states = self.lstm(features[None], states)
        return outputs[0], states

    def unroll(self, features: th.Tensor, states: States) -> th.Tensor:
        """
        :param features: shape (T, n, n_features)
        :param states: before the first
        :return: outputs, shape (T, n, hidden)
        """
        outputs: th.Tensor = self.lstm(features, states)[0]
        return outputs

    def states_behind(self, features: th.Tensor, lengths: th.Tensor, states: States) -> States:
        """
        :param features: of prefixes, shape (T, n, n_features)
        :param lengths: how many of them there are, from 0, shape (n,)
        :param states: before the first
        :return: states behind the last of each
        """
        is_whole = lengths == len(features)
        if is_whole.all():
            behind: States = self.lstm(features, states)[1]
            return behind
        # Packing takes as long as the LSTM, and most prefixes are whole or empty.
        for some, is_packed in ((is_whole, False), ((lengths > 0) & ~is_whole, True)):
            if some.any():
                inputs = features[:, some]
                packed = pack_padded_sequence(inputs, lengths[some].cpu(), enforce_sorted=False) if is_packed else inputs
                behind = self.lstm(packed, tuple(state[:, some].contiguous() for state in states))[1]
                states = tuple(_replaced(state, some, new) for state, new in zip(states, behind, strict=True))
        return states


def _replaced(state: th.Tensor, where: th.Tensor, new: th.Tensor) -> th.Tensor:
    state = state.clone()
    state[:, where] = new
    return state


def without_padding(observations: Any, lengths: th.Tensor) -> Any:
    """
    :param observations: time first, shape (T, n, ...), or a dictionary of them
    :param lengths: how many of them there are, shape (n,)
    :return: the same with zeros behind them: whatever stands there, nothing of it reaches a gradient
    """

    def clean(part: th.Tensor) -> th.Tensor:
        is_there = th.arange(len(part), device=part.device)[:, None] < lengths.to(part.device)
        return th.where(is_there.reshape(*is_there.shape, *[1] * (part.ndim - 2)), part, th.zeros((), dtype=part.dtype))

    return map_parts(clean, observations)


def map_parts(function: Callable[[th.Tensor], th.Tensor], observations: Any) -> Any:
    """Apply a function to each tensor of observations."""
    if isinstance(observations, dict):
        return {key: function(part) for key, part in observations.items()}
    return function(observations)


def features_over_time(extract: Callable[[Any], th.Tensor], observations: Any) -> th.Tensor:
    """
    :param extract: features of observations of shape (n, ...)
    :param observations: time first, shape (T, n, ...), or a dictionary of them
    :return: features, shape (T, n, n_features)
    """
    first = next(iter(observations.values())) if isinstance(observations, dict) else observations
    features = extract(map_parts(lambda part: part.flatten(0, 1), observations))
    return features.reshape(*first.shape[:2], -1)


def zero_states(shapes: tuple[tuple[int, int], ...], n: int) -> tuple[np.ndarray, ...]:
    """
    :param shapes: (n_layers, hidden) of each state
    :param n: number of environments
    :return: states at the start of an episode, float32 of shape (n_layers, n, hidden)
    """
    return tuple(np.zeros((n_layers, n, hidden), np.float32) for n_layers, hidden in shapes)


def at_starts(states: tuple[np.ndarray, ...], episode_starts: np.ndarray) -> tuple[np.ndarray, ...]:
    """
    :param states: each of shape (n_layers, n, hidden)
    :param episode_starts: whether the observation that comes is the first of an episode, shape (n,)
    :return: the states that it is to be seen with: zero at starts
    """
    return tuple(np.where(np.asarray(episode_starts, bool)[:, None], np.float32(0), state) for state in states)
