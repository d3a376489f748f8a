"""What a draw gives: SB3's batch, and what prioritized replay adds."""

from typing import Any, NamedTuple

import numpy as np
import torch as th


class _Fields(NamedTuple):
    observations: Any
    actions: th.Tensor
    next_observations: Any
    dones: th.Tensor
    rewards: th.Tensor
    discounts: th.Tensor | None
    weights: th.Tensor
    indices: np.ndarray


class _BesideTheTuple:
    """
    Attributes of a batch that are not part of the tuple, so that it has SB3's fields in SB3's order, then weights and ids.
    """

    #: which rows are demonstrations, bool of shape (batch_size,), where ``demonstration_fraction`` is above 0; not part of the
    #: tuple
    is_demonstration: np.ndarray | None = None

    def _replace(self, /, **changed: Any) -> Any:
        """
        Copy the batch with other values of some fields. What is beside the tuple stays.

        :param changed: new values, by the name of the field or attribute
        :return: the new batch
        :raises ValueError: for an unknown name, or if what stays beside the tuple has another number of rows
        """
        is_demonstration = changed.pop("is_demonstration", self.is_demonstration)
        replaced = super()._replace(**changed)  # type: ignore[misc]
        if is_demonstration is not None and len(is_demonstration) != len(replaced.indices):
            raise ValueError(
                f"is_demonstration of {len(is_demonstration)} transitions does not fit a batch of {len(replaced.indices)}: "
                "replace it, too"
            )
        replaced.is_demonstration = is_demonstration
        return replaced


class PrioritizedReplayBufferSamples(_BesideTheTuple, _Fields):
    """
    A batch: the fields of SB3's ``ReplayBufferSamples`` in its order, and what prioritized replay adds.

    ``observations`` and ``next_observations`` are dictionaries of tensors for Dict observation spaces; ``discounts`` is
    ``None`` unless ``n_steps > 1``, as in SB3. ``weights`` are the importance-sampling weights, float32 of shape
    (batch_size, 1), the largest exactly 1; ``indices`` are the transition ids for
    ``update_priorities``, int64 of shape (batch_size,).
    """


class _SequenceFields(NamedTuple):
    observations: Any
    prefix: Any
    prefix_lengths: th.Tensor
    states: tuple[th.Tensor, ...]
    actions: th.Tensor
    rewards: th.Tensor
    discounts: th.Tensor
    dones: th.Tensor
    next_steps: th.Tensor
    mask: th.Tensor
    weights: th.Tensor
    indices: np.ndarray


class SequenceReplayBufferSamples(_BesideTheTuple, _SequenceFields):
    """
    A batch of windows of consecutive steps, time first. T is the sequence length, B the batch size, n the number of steps of
    the n-step return. A window ends with its episode: later entries are 0, and the mask excludes them.

    - ``observations``: shape (T + n, B, ...), a dictionary for Dict observation spaces: the observation before the first
      step, then the one after each step, including terminal observations
    - ``prefix``: observations before the first step, for burn-in, shape (burn_in, B, ...), oldest first;
      ``prefix_lengths``, int64 of shape (B,), is their number: fewer near the start of an episode
    - ``states``: recurrent states before the first step of the prefix or, where the prefix is empty, of the window; float32,
      each of shape (n_layers, B, hidden)
    - ``actions``: shape (T, B, action_dim)
    - ``rewards``: n-step returns; ``discounts``: gamma^k, the factor of the value after them; ``dones``: 1 where the episode
      terminates, so that this value is 0; all float32 of shape (T, B)
    - ``next_steps``: position in ``observations`` of the observation after each n-step return, int64 of shape (T, B)
    - ``mask``: which entries are steps, bool of shape (T, B); the first of each window always is
    - ``weights``: importance-sampling weights of the windows, float32 of shape (B, 1)
    - ``indices``: transition ids of the first steps, for ``update_priorities``, int64 NumPy array of shape (B,)
    """
