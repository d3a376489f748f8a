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


class PrioritizedReplayBufferSamples(_Fields):
    """
    A batch: the fields of SB3's ``ReplayBufferSamples`` in its order, and what prioritized replay adds.

    ``observations`` and ``next_observations`` are dictionaries of tensors for Dict observation spaces; ``discounts`` is
    ``None`` unless ``n_steps > 1``, as in SB3. ``weights`` are the importance-sampling weights, float32 of shape
    (batch_size, 1), the largest exactly 1 unless they are normalized otherwise; ``indices`` are the transition ids for
    ``update_priorities``, int64 of shape (batch_size,).
    """

    #: N P of each transition, float64 of shape (batch_size,), where an actor wants to weight by it; not part of the tuple
    n_p: np.ndarray | None = None
