"""
Put an LSTM before a network of SB3. It runs step by step while acting, and over windows while learning, with time first.

An update of windows is the update of the algorithm without an LSTM, on the single steps of the windows:

1. ``transitions_in`` lists the steps as a batch of transitions. In place of observations, it holds :class:`WindowSteps`: the
   windows, and the places of the steps in them. Actions, rewards and weights are those of the steps.
2. The algorithm gives its ``observations`` and ``next_observations`` to SB3's networks, as always.
3. SB3's networks call ``extract_features``, which runs the LSTM over the windows and picks the outputs at the places.
4. A network whose weights stay the same during all its passes is unrolled once: its outputs are in ``WindowSteps.unrolled``.
5. ``in_windows`` puts the TD errors of the steps back to their places in the windows.
"""

from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.policies import BaseModel
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from sb3_per.buffers.samples import PrioritizedReplayBufferSamples, SequenceReplayBufferSamples
from sb3_per.buffers.slots import map_arrays

#: Hidden and cell state, each of shape (n_layers, n, hidden).
LSTMStates = tuple[th.Tensor, ...]

#: States of all networks that acting carries from step to step, each of shape (n_layers, n_envs, hidden); ``None``: zeros.
ActingStates = tuple[np.ndarray, ...] | None


class WindowSteps(NamedTuple):
    """
    Single steps of windows. Recurrent networks take them in place of observations, so that the update of an algorithm without
    an LSTM serves its recurrent twin, too.

    :param windows: batch of windows
    :param places: positions of the steps in the flattened windows, int64 of shape (n,)
    :param unrolled: results of :meth:`RecurrentNetwork.unroll` that are already known, by network
    :param without_gradient: network whose LSTM needs no gradient; ``None``: all need one
    """

    windows: SequenceReplayBufferSamples
    places: th.Tensor
    unrolled: "dict[RecurrentNetwork, th.Tensor]"
    without_gradient: "RecurrentNetwork | None" = None

    def in_windows(self, values: th.Tensor) -> th.Tensor:
        """
        Put values of the steps at their positions in the windows.

        :param values: shape (n, k)
        :return: values, shape (sequence_length, n_windows, k), 0 in the padding
        """
        mask = self.windows.mask
        flat = values.new_zeros(mask.numel(), values.shape[1]).index_copy(0, self.places, values)
        return flat.reshape(*mask.shape, -1)


class RecurrentNetwork(BaseModel):
    """
    Put an LSTM before a network of SB3: ``class RecurrentActor(RecurrentNetwork, Actor)``. The methods of SB3's network then
    take :class:`WindowSteps` or the output of :meth:`step` in place of observations.

    :param features_dim: number of features of an observation
    :param lstm_args: keyword arguments of ``th.nn.LSTM``
    :param kwargs: SB3's keyword arguments
    """

    #: Whether features of the observation also bypass the LSTM.
    features_bypass_lstm: ClassVar[bool] = False

    #: Where the network's states, hidden and cell, are among the states that acting carries along.
    own_states: ClassVar[slice] = slice(0, 2)

    def __init__(self, *, features_dim: int, lstm_args: dict[str, Any], **kwargs: Any):
        kwargs["features_dim"] = lstm_args["hidden_size"] + (features_dim if self.features_bypass_lstm else 0)
        super().__init__(**kwargs)
        self.lstm = nn.LSTM(features_dim, **lstm_args)

    def step(self, observations: Any, states: LSTMStates) -> tuple[th.Tensor, LSTMStates]:
        """
        Take one step.

        :param observations: observations, shape (n, ...), or a dictionary of them
        :param states: states before them
        :return: input of SB3's network, shape (n, n_features), and the states after the observations
        """
        features = self._features_of(observations)
        outputs, states = self.lstm(features[None], states)
        return self._with_features(outputs[0], features), states

    def unroll(self, batch: SequenceReplayBufferSamples) -> th.Tensor:
        """
        Run the LSTM over windows: first over their prefixes, without gradient, then over all of their steps.

        :param batch: windows
        :return: input of SB3's network, shape (sequence_length + n_steps, n, n_features)
        """
        states: LSTMStates = batch.states[self.own_states]
        if batch.prefix_lengths.any():
            with th.no_grad():
                prefix = self._features_over_time(batch.prefix, batch.prefix_lengths)
                states = states_after(self.lstm, prefix, batch.prefix_lengths, states)
        features = self._features_over_time(batch.observations, batch.next_steps.amax(dim=0) + 1)
        return self._with_features(self.lstm(features, states)[0], features)

    def extract_features(self, obs: Any, features_extractor: BaseFeaturesExtractor | None = None) -> th.Tensor:
        """
        Compute the input of SB3's network. SB3's methods call this.

        :param obs: steps of windows; or an output of :meth:`step`, which is that input already
        :param features_extractor: not used: its features have gone into the LSTM
        :return: shape (n, n_features)
        """
        if isinstance(obs, th.Tensor):
            return obs
        steps: WindowSteps = obs
        outputs = steps.unrolled.get(self)
        if outputs is None:
            needs_gradient = steps.without_gradient is not self
            with th.set_grad_enabled(th.is_grad_enabled() and needs_gradient):
                outputs = self.unroll(steps.windows)
        return outputs.flatten(0, 1).index_select(0, steps.places)

    def _features_of(self, observations: Any) -> th.Tensor:
        assert self.features_extractor is not None
        return super().extract_features(observations, self.features_extractor)

    def _features_over_time(self, observations: Any, lengths: th.Tensor) -> th.Tensor:
        """
        Extract features of windows.

        :param observations: observations, shape (T, n, ...), or a dictionary of them
        :param lengths: numbers of observations before the padding, shape (n,)
        :return: features, shape (T, n, n_features)
        """

        def without_padding(part: th.Tensor) -> th.Tensor:
            # Zeros in place of the padding, so that nothing in it reaches a gradient.
            is_step = th.arange(len(part), device=part.device)[:, None] < lengths.to(part.device)
            is_step = is_step.reshape(*is_step.shape, *[1] * (part.ndim - 2))  # broadcasts over the axes of an observation
            return th.where(is_step, part, th.zeros((), dtype=part.dtype)).flatten(0, 1)

        features = self._features_of(map_arrays(without_padding, observations))
        return features.reshape(-1, len(lengths), features.shape[-1])

    def _with_features(self, outputs: th.Tensor, features: th.Tensor) -> th.Tensor:
        """Append the features to the outputs of the LSTM, where they bypass it."""
        if not self.features_bypass_lstm:
            return outputs
        return th.cat([outputs, features], dim=-1)


# ---- LSTMs and their states


def states_after(lstm: nn.LSTM, features: th.Tensor, lengths: th.Tensor, states: LSTMStates) -> LSTMStates:
    """
    Run an LSTM over prefixes of different lengths.

    :param lstm: the LSTM
    :param features: features, shape (T, n, n_features)
    :param lengths: lengths of the prefixes, from 0, shape (n,)
    :param states: states before the first step
    :return: states after the last step of each prefix
    """
    is_whole = lengths == len(features)
    is_shorter = (lengths > 0) & ~is_whole
    # Pack only where it is needed: it takes as long as the LSTM itself, and most prefixes are whole or empty.
    if is_whole.any():
        states = _states_after_inputs(lstm, features[:, is_whole], states, is_whole)
    if is_shorter.any():
        packed = pack_padded_sequence(features[:, is_shorter], lengths[is_shorter].cpu(), enforce_sorted=False)
        states = _states_after_inputs(lstm, packed, states, is_shorter)
    return states


def _states_after_inputs(lstm: nn.LSTM, inputs: Any, states: LSTMStates, chosen: th.Tensor) -> LSTMStates:
    """
    Run an LSTM over the inputs of some windows.

    :param lstm: the LSTM
    :param inputs: inputs of the chosen windows, shape (T, n_chosen, n_features), or packed
    :param states: states of all windows, each of shape (n_layers, n, hidden)
    :param chosen: which windows have inputs, bool of shape (n,)
    :return: states of all windows; those that are not chosen stay
    """
    before = tuple(state[:, chosen].contiguous() for state in states)
    _, after = lstm(inputs, before)
    places = chosen.nonzero()[:, 0]
    return tuple(state.index_copy(1, places, new) for state, new in zip(states, after, strict=True))


def zero_states(shapes: tuple[tuple[int, int], ...], n: int) -> tuple[np.ndarray, ...]:
    """
    Make the states at the start of an episode.

    :param shapes: (n_layers, hidden) of each state
    :param n: number of environments
    :return: zeros, each a float32 array of shape (n_layers, n, hidden)
    """
    return tuple(np.zeros((n_layers, n, hidden), np.float32) for n_layers, hidden in shapes)


def zero_at_starts(states: tuple[np.ndarray, ...], episode_starts: np.ndarray) -> tuple[np.ndarray, ...]:
    """
    Set states to zero at starts of episodes.

    :param states: states, each of shape (n_layers, n, hidden)
    :param episode_starts: whether the next observation is the first of an episode, bool array of shape (n,)
    :return: states, in the same shape
    """
    return tuple(np.where(np.asarray(episode_starts, bool)[:, None], np.float32(0), state) for state in states)


# ---- steps of windows as transitions


def transitions_in(
    windows: SequenceReplayBufferSamples, unrolled: dict[RecurrentNetwork, th.Tensor]
) -> PrioritizedReplayBufferSamples:
    """
    List the steps of windows, without padding, as single transitions. Each has the weight of its window.

    :param windows: batch of windows
    :param unrolled: see :class:`WindowSteps`
    :return: transitions whose observations are :class:`WindowSteps`, so that recurrent networks learn from them
    """
    n_windows = windows.mask.shape[1]
    # Index instead of multiplying by the mask: 0 * NaN is NaN.
    places = windows.mask.flatten().nonzero()[:, 0]
    window = places % n_windows
    next_places = windows.next_steps.flatten()[places] * n_windows + window

    def at_steps(values: th.Tensor) -> th.Tensor:
        return values.flatten(0, 1)[places].reshape(len(places), -1)

    return PrioritizedReplayBufferSamples(
        observations=WindowSteps(windows, places, unrolled),
        actions=at_steps(windows.actions),
        next_observations=WindowSteps(windows, next_places, unrolled),
        dones=at_steps(windows.dones),
        rewards=at_steps(windows.rewards),
        discounts=at_steps(windows.discounts),
        weights=windows.weights[window],
        indices=windows.indices[window.cpu().numpy()],
    )
