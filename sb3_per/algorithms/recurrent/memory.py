"""An LSTM that runs over windows while learning, and step by step while acting. Tensors have time first."""

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
    An LSTM over features of observations.

    :param n_features: number of features of an observation
    :param hidden_size: size of the LSTM
    :param n_layers: number of layers of the LSTM
    :param lstm_kwargs: keyword arguments of ``th.nn.LSTM``
    :raises ValueError: for an LSTM that is bidirectional, batch first, or projected
    """

    def __init__(self, n_features: int, hidden_size: int, n_layers: int, lstm_kwargs: dict[str, Any] | None):
        super().__init__()
        for name in ("bidirectional", "batch_first", "proj_size"):
            if (lstm_kwargs or {}).get(name):
                raise ValueError(
                    f"lstm_kwargs={lstm_kwargs}: {name} is not supported, because agents act step by step. Leave it out"
                )
        self.lstm = nn.LSTM(n_features, hidden_size, num_layers=n_layers, **(lstm_kwargs or {}))

    def step(self, features: th.Tensor, states: States) -> tuple[th.Tensor, States]:
        """
        Take one step.

        :param features: features of one observation of each environment, shape (n, n_features)
        :param states: states before it
        :return: outputs, shape (n, hidden), and the states after it
        """
        outputs, states = self.lstm(features[None], states)
        return outputs[0], states

    def unroll(self, features: th.Tensor, states: States) -> th.Tensor:
        """
        Take all steps of windows.

        :param features: features, shape (T, n, n_features)
        :param states: states before the first step
        :return: outputs, shape (T, n, hidden)
        """
        outputs: th.Tensor = self.lstm(features, states)[0]
        return outputs

    def states_after(self, features: th.Tensor, lengths: th.Tensor, states: States) -> States:
        """
        Take the steps of prefixes of different lengths.

        :param features: features, shape (T, n, n_features)
        :param lengths: lengths of the prefixes, from 0, shape (n,)
        :param states: states before the first step
        :return: states after the last step of each
        """
        is_whole = lengths == len(features)
        if is_whole.all():
            after: States = self.lstm(features, states)[1]
            return after
        # Packing takes as long as the LSTM itself, and most prefixes are whole or empty.
        for some, is_packed in ((is_whole, False), ((lengths > 0) & ~is_whole, True)):
            if some.any():
                inputs = features[:, some]
                packed = pack_padded_sequence(inputs, lengths[some].cpu(), enforce_sorted=False) if is_packed else inputs
                after = self.lstm(packed, tuple(state[:, some].contiguous() for state in states))[1]
                states = tuple(_replaced(state, some, new) for state, new in zip(states, after, strict=True))
        return states


def _replaced(state: th.Tensor, where: th.Tensor, new: th.Tensor) -> th.Tensor:
    state = state.clone()
    state[:, where] = new
    return state


def without_padding(observations: Any, lengths: th.Tensor) -> Any:
    """
    Replace the padding by zeros, so that nothing in it reaches a gradient.

    :param observations: observations, shape (T, n, ...), or a dictionary of them
    :param lengths: numbers of observations, shape (n,)
    :return: observations with zeros after the last one
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
    Extract features of windows.

    :param extract: function from observations of shape (n, ...) to features
    :param observations: observations, shape (T, n, ...), or a dictionary of them
    :return: features, shape (T, n, n_features)
    """
    first = next(iter(observations.values())) if isinstance(observations, dict) else observations
    features = extract(map_parts(lambda part: part.flatten(0, 1), observations))
    return features.reshape(*first.shape[:2], -1)


def zero_states(shapes: tuple[tuple[int, int], ...], n: int) -> tuple[np.ndarray, ...]:
    """
    Make the states at the start of an episode.

    :param shapes: (n_layers, hidden) of each state
    :param n: number of environments
    :return: zeros, each a float32 array of shape (n_layers, n, hidden)
    """
    return tuple(np.zeros((n_layers, n, hidden), np.float32) for n_layers, hidden in shapes)


def at_starts(states: tuple[np.ndarray, ...], episode_starts: np.ndarray) -> tuple[np.ndarray, ...]:
    """
    Set states to zero at starts of episodes.

    :param states: states, each of shape (n_layers, n, hidden)
    :param episode_starts: whether the next observation is the first of an episode, shape (n,)
    :return: states, in the same shape
    """
    return tuple(np.where(np.asarray(episode_starts, bool)[:, None], np.float32(0), state) for state in states)
