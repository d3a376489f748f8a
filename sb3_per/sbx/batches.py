"""What compiled updates take and hand back: arrays of fixed shape and type, for all gradient steps of a call."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch as th

from sb3_per.buffers import PrioritizedReplayBufferSamples


class Batch(NamedTuple):
    """
    Transitions of a gradient step. In front of these shapes, the arrays of several steps have an axis of the steps.

    - ``observations``, ``next_observations``: shape (batch_size, ...), float32, or uint8 as images are stored; the parts of
      Dict observations are concatenated, as in SBX
    - ``actions``: shape (batch_size, action_dim), float32, or int32 for discrete actions
    - ``rewards``, ``dones``, ``discounts``, ``weights``: the columns of ``scalars``, float32 of shape (batch_size, 4)
    - ``actor_observations``: what the actor learns from; ``None``: the observations
    """

    observations: Any
    actions: Any
    next_observations: Any
    scalars: Any
    actor_observations: Any = None

    @property
    def rewards(self) -> Any:
        """Rewards, or n-step returns, shape (batch_size,)."""
        return self.scalars[:, 0]

    @property
    def dones(self) -> Any:
        """1 at terminal states, shape (batch_size,)."""
        return self.scalars[:, 1]

    @property
    def discounts(self) -> Any:
        """Factor of the value of the next observation, shape (batch_size,)."""
        return self.scalars[:, 2]

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
        return self.rewards[:, None] + (1 - self.dones[:, None]) * self.discounts[:, None] * next_values

    @property
    def for_actor(self) -> Any:
        """Observations that the actor learns from."""
        return self.observations if self.actor_observations is None else self.actor_observations


def of_torch(batch: PrioritizedReplayBufferSamples, gamma: float, keys: Sequence[str] | None) -> Batch:
    """
    Make arrays of a batch.

    :param batch: drawn transitions
    :param gamma: discount factor, where the batch brings none
    :param keys: of Dict observations, in the order of their space
    :return: arrays of NumPy
    """
    discounts = gamma if batch.discounts is None else batch.discounts.numpy()
    scalars = np.empty((len(batch.rewards), 4), np.float32)
    scalars[:, :1], scalars[:, 1:2] = batch.rewards.numpy(), batch.dones.numpy()
    scalars[:, 2:3], scalars[:, 3:] = discounts, batch.weights.numpy()
    observations, next_observations = as_input(batch.observations, keys), as_input(batch.next_observations, keys)
    return Batch(observations, as_input(batch.actions), next_observations, scalars)


def as_input(values: Any, keys: Sequence[str] | None = None) -> np.ndarray:
    """
    Make the input of a network.

    :param values: tensor, or a dictionary of them
    :param keys: of the dictionary, in order
    :return: uint8, int32 or float32 array
    """
    if keys is not None:
        return np.concatenate([values[key].numpy() for key in keys], axis=1, dtype=np.float32)
    array: np.ndarray = values.numpy()
    if values.dtype in (th.float32, th.uint8):
        return array
    return array.astype(np.int32 if values.dtype in (th.int64, th.int32, th.int16, th.int8) else np.float32)


def stacked(batches: Sequence[Batch], n: int) -> Batch:
    """
    Join the batches of several gradient steps.

    :param batches: of equal shape, at least one
    :param n: length of the new axis; what is missing stays unwritten
    :return: arrays with an axis of the steps in front
    """

    def stack(*arrays: np.ndarray | None) -> np.ndarray | None:
        first = arrays[0]
        if first is None or n == 1:
            return None if first is None else first[None]
        joined = np.empty((n, *first.shape), first.dtype)
        np.stack(arrays, out=joined[: len(arrays)])  # type: ignore[arg-type]
        return joined

    return Batch(*map(stack, *batches))


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
        :return: TD errors, shape (batch_size, n_critics), and metrics by the name in the log
        """
        n, names = self.shape[0] * self.shape[1], self.names + self.actor_names * updates_actor
        metrics = {_in_log(name): value for name, value in zip(names, values[n:], strict=False)}
        return values[:n].reshape(self.shape), metrics


def _in_log(name: str) -> str:
    return name if "/" in name else f"train/{name}"


def weight_metrics(weights: jax.Array) -> dict[str, jax.Array]:
    """
    Summarize importance-sampling weights, as :func:`sb3_per.algorithms.metrics.weight_metrics` does.

    :param weights: of a batch, float32 of shape (batch_size, 1)
    :return: mean, and effective sample size as a fraction of the batch, by the name in the log
    """
    total = weights.sum()
    size = total**2 / ((weights**2).sum() * len(weights))
    return {"per/mean_weight": total / len(weights), "per/effective_sample_size": size}
