"""Inputs and outputs of compiled updates: arrays of fixed shape and type, for all gradient steps of a call."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnasium import spaces

from sb3_per.buffers import PrioritizedReplayBufferSamples


class Batch(NamedTuple):
    """
    Transitions of a gradient step. The arrays of several steps have an axis of the steps before these shapes.

    - ``observations``, ``next_observations``: shape (batch_size, ...), float32, or uint8 as images are stored; the parts of
      Dict observations are concatenated, as in SBX
    - ``actions``: shape (batch_size, action_dim), float32, or int32 for discrete actions
    - ``scalars``: ``rewards``, ``dones``, ``discounts`` and ``weights``, the columns of one float32 array of shape
      (batch_size, 4), because each array takes a transfer to the device
    - ``updates_actor``: whether it is the actor's turn, bool
    - ``actor_observations``: observations that the actor learns from; ``None``: the same ones
    """

    observations: Any
    actions: Any
    next_observations: Any
    scalars: Any
    updates_actor: Any
    actor_observations: Any = None

    @property
    def rewards(self) -> Any:
        """Rewards or n-step returns, shape (batch_size, 1)."""
        return self.scalars[..., 0:1]

    @property
    def dones(self) -> Any:
        """1 at terminal states, otherwise 0, shape (batch_size, 1)."""
        return self.scalars[..., 1:2]

    @property
    def discounts(self) -> Any:
        """Factors of the next values, shape (batch_size, 1)."""
        return self.scalars[..., 2:3]

    @property
    def weights(self) -> Any:
        """Importance-sampling weights, shape (batch_size, 1)."""
        return self.scalars[..., 3:4]

    def targets(self, next_values: Any) -> Any:
        """
        Compute the targets of the critics.

        :param next_values: values of the next observations, shape (batch_size, n)
        :return: reward + discount * next value, or the reward alone at a terminal state, shape (batch_size, n)
        """
        return self.rewards + (1 - self.dones) * self.discounts * next_values

    @property
    def nbytes(self) -> int:
        """Size of all arrays, bytes."""
        return sum(array.nbytes for array in self if array is not None)

    @property
    def for_actor(self) -> Any:
        """Observations that the actor learns from."""
        if self.actor_observations is None:
            return self.observations
        return self.actor_observations


def batch_from_torch(batch: PrioritizedReplayBufferSamples, gamma: float, space: spaces.Space, updates_actor: bool) -> Batch:
    """
    Make NumPy arrays of a batch.

    :param batch: drawn transitions
    :param gamma: discount factor, if the batch has no discounts
    :param space: space of the observations
    :param updates_actor: whether it is the actor's turn
    :return: the batch
    """
    # By NumPy, whose small operations take less time than PyTorch's.
    rewards = batch.rewards.numpy()
    discounts = np.full_like(rewards, gamma) if batch.discounts is None else batch.discounts.numpy()
    columns = (rewards, batch.dones.numpy(), discounts, batch.weights.numpy())
    return Batch(
        observations=as_input(batch.observations, space),
        actions=as_input(batch.actions),
        next_observations=as_input(batch.next_observations, space),
        scalars=np.concatenate(columns, axis=1, dtype=np.float32),
        updates_actor=np.bool_(updates_actor),
    )


def as_input(values: Any, space: spaces.Space | None = None) -> np.ndarray:
    """
    Make the input of a network.

    :param values: tensor, or a dictionary of tensors
    :param space: space of observations; the parts of a dictionary are joined in its order
    :return: uint8, int32 or float32 array
    """
    if isinstance(space, spaces.Dict):
        return np.concatenate([values[key].numpy() for key in space.spaces], axis=1, dtype=np.float32)
    array: np.ndarray = values.numpy()
    if array.dtype in (np.float32, np.uint8):
        return array
    return array.astype(np.int32 if array.dtype.kind == "i" else np.float32)


def stack(batches: Sequence[Batch], n: int) -> Batch:
    """
    Join the batches of several gradient steps.

    :param batches: at least one batch, all of equal shape
    :param n: length of the new axis; copies of the last batch fill it up
    :return: arrays whose first axis is the steps
    """
    filled = [*batches, *[batches[-1]] * (n - len(batches))]
    return jax.tree.map(lambda *arrays: np.stack(arrays), *filled)


class StepOutput(struct.PyTreeNode):
    """
    TD errors and metrics of a gradient step in one array, because each array takes a transfer from the device.

    :param values: TD errors and metrics, float32 of shape (n,); with an axis of the steps before it, for several steps
    :param shape: shape of the TD errors, (batch_size, n_critics)
    :param names: names of the metrics, in order
    :param actor_names: names of the metrics of the actor's update, which come last
    """

    values: Any
    shape: tuple[int, ...] = struct.field(pytree_node=False)
    names: tuple[str, ...] = struct.field(pytree_node=False)
    actor_names: tuple[str, ...] = struct.field(pytree_node=False)

    @classmethod
    def pack(cls, td_errors: jax.Array, metrics: dict[str, Any], actor_metrics: dict[str, Any]) -> "StepOutput":
        """
        Put everything into one array.

        :param td_errors: TD errors, shape (batch_size, n_critics)
        :param metrics: scalars by name
        :param actor_metrics: scalars of the actor's update, by name
        :return: the array, with shape and names
        """
        scalars = jnp.array([*metrics.values(), *actor_metrics.values()], jnp.float32)
        return cls(jnp.concatenate([td_errors.ravel(), scalars]), td_errors.shape, tuple(metrics), tuple(actor_metrics))

    def unpack(self, values: np.ndarray, updates_actor: bool) -> tuple[np.ndarray, dict[str, np.float32]]:
        """
        Split the array of one step.

        :param values: row of the step, shape (n,)
        :param updates_actor: whether the step updated the actor
        :return: TD errors, shape (batch_size, n_critics), and metrics by name
        """
        n_errors = self.shape[0] * self.shape[1]
        names = self.names
        if updates_actor:
            names += self.actor_names
        return values[:n_errors].reshape(self.shape), dict(zip(names, values[n_errors:], strict=False))
