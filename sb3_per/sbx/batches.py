"""What compiled updates take and hand back: arrays of fixed shape and type, for all gradient steps of a call."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from sb3_per.buffers import PrioritizedReplayBufferSamples


class Batch(NamedTuple):
    """
    Transitions of a gradient step. In front of these shapes, the arrays of several steps have an axis of the steps.

    - ``observations``, ``next_observations``: shape (batch_size, ...), float32, or uint8 as images are stored; the parts of
      Dict observations are concatenated, as in SBX
    - ``actions``: shape (batch_size, action_dim), float32, or int32 for discrete actions
    - ``scalars``: float32 of shape (batch_size, 4), whose columns are rewards or n-step returns, 1 at terminal states, the
      factor of the next value, and importance-sampling weights
    - ``actor_observations``: what the actor learns from; ``None``: the observations
    """

    observations: Any
    actions: Any
    next_observations: Any
    scalars: Any
    actor_observations: Any = None

    @property
    def weights(self) -> Any:
        """Importance-sampling weights, shape (batch_size, 1)."""
        return self.scalars[:, 3:]

    def targets(self, next_values: Any) -> Any:
        """
        Compute the targets of the critics.

        :param next_values: values of the next observations, shape (batch_size, n)
        :return: reward + discount * next value, or the reward alone at a terminal state, shape (batch_size, n)
        """
        rewards, dones, discounts = self.scalars[:, 0:1], self.scalars[:, 1:2], self.scalars[:, 2:3]
        return rewards + (1 - dones) * discounts * next_values

    @property
    def for_actor(self) -> Any:
        """Observations that the actor learns from."""
        return self.observations if self.actor_observations is None else self.actor_observations


def of_torch(batch: PrioritizedReplayBufferSamples, gamma: float, space: spaces.Space) -> Batch:
    """
    Make arrays of a batch.

    :param batch: drawn transitions
    :param gamma: discount factor, where the batch brings none
    :param space: of the observations
    :return: arrays of NumPy
    """
    discounts = gamma if batch.discounts is None else batch.discounts.numpy()
    scalars = np.empty((len(batch.rewards), 4), np.float32)
    scalars[:, :1], scalars[:, 1:2] = batch.rewards.numpy(), batch.dones.numpy()
    scalars[:, 2:3], scalars[:, 3:] = discounts, batch.weights.numpy()
    observations, next_observations = as_input(batch.observations, space), as_input(batch.next_observations, space)
    return Batch(observations, as_input(batch.actions), next_observations, scalars)


def as_input(values: Any, space: spaces.Space | None = None) -> np.ndarray:
    """
    Make the input of a network.

    :param values: tensor, or a dictionary of them
    :param space: of observations; the parts of a dictionary are joined in its order
    :return: uint8, int32 or float32 array
    """
    if isinstance(space, spaces.Dict):
        return np.concatenate([values[key].numpy() for key in space.spaces], axis=1, dtype=np.float32)
    array: np.ndarray = values.numpy()
    if array.dtype in (np.float32, np.uint8):
        return array
    return array.astype(np.int32 if array.dtype.kind == "i" else np.float32)


def stacked(batches: Sequence[Batch], n: int) -> Batch:
    """
    Join the batches of several gradient steps.

    :param batches: of equal shape, at least one
    :param n: length of the new axis; the last batch is repeated in what is missing
    :return: arrays with an axis of the steps in front
    """
    if n == 1:
        return Batch(*(None if array is None else array[None] for array in batches[0]))
    columns = zip(*batches, *[batches[-1]] * (n - len(batches)), strict=True)
    return Batch(*(None if arrays[0] is None else np.stack(arrays) for arrays in columns))


@partial(jax.tree_util.register_dataclass, data_fields=["values"], meta_fields=["shape", "names", "actor_names"])
@dataclass(frozen=True)
class Logged:
    """What a gradient step hands back, in one array: reading several takes a transfer for each."""

    #: TD errors and metrics, float32 of shape (n,), in front of it an axis of the steps
    values: Any
    #: of the TD errors, (batch_size, n_critics)
    shape: tuple[int, ...]
    #: of the metrics, in order
    names: tuple[str, ...]
    #: of the metrics of updates of the actor, which come last
    actor_names: tuple[str, ...]

    @classmethod
    def pack(cls, td_errors: jax.Array, metrics: dict[str, Any], of_actor: dict[str, Any]) -> "Logged":
        """
        Put everything into one array.

        :param td_errors: shape (batch_size, n_critics)
        :param metrics: scalars by name
        :param of_actor: scalars by name, of updates of the actor
        :return: what the step hands back
        """
        scalars = jnp.array([*metrics.values(), *of_actor.values()], jnp.float32)
        return cls(jnp.concatenate([td_errors.ravel(), scalars]), td_errors.shape, tuple(metrics), tuple(of_actor))

    def unpack(self, values: np.ndarray, updates_actor: bool) -> tuple[np.ndarray, dict[str, np.float32]]:
        """
        Take apart what one step handed back.

        :param values: its row, shape (n,)
        :param updates_actor: whether it updated the actor
        :return: TD errors, shape (batch_size, n_critics), and metrics by name
        """
        n, names = self.shape[0] * self.shape[1], self.names + self.actor_names * updates_actor
        return values[:n].reshape(self.shape), dict(zip(names, values[n:], strict=False))
