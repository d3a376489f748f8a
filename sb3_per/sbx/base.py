"""
The compiled training loop of the prioritized algorithms of SBX.

Write the mixin left of the algorithm of SBX: ``class PERSAC(PrioritizedJaxMixin, SAC)``. The algorithm says which networks
it has, what its losses and TD errors are, and what it updates after the critics.
"""

from collections.abc import Hashable
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch as th
from sbx.common.off_policy_algorithm import OffPolicyAlgorithmJax
from stable_baselines3.common.save_util import recursive_setattr

from sb3_per.algorithms.metrics import MeanMetrics, weight_metrics
from sb3_per.algorithms.shared import PrioritizedReplayMixin
from sb3_per.buffers import PrioritizedReplayBuffer, PrioritizedReplayBufferSamples
from sb3_per.sampling.schemes import PriorityScheme
from sb3_per.sbx.batches import Batch, Logged, as_input, of_torch, stacked
from sb3_per.utils.checks import Reasons

#: Train states by name. ``"critics"`` is a tuple of those whose loss is weighted.
Networks = dict[str, Any]

#: Metrics of a gradient step, scalars by name.
Metrics = dict[str, Any]

#: Train states after gradient steps, the next key, and what is handed back of each step.
Updated = tuple[Networks, jax.Array, Logged]

# The batches of a call go to the device together, up to this size. A call with more gradient steps goes in several parts.
_MOST_BYTES = 2**28


class Step(NamedTuple):
    """
    What a gradient step starts from.

    :param networks: train states by name
    :param batch: drawn transitions
    :param keys: random keys of the critics, see ``key_splits``
    :param key: random key of what follows
    :param numbers: by name, see ``number_names``
    :param options: in the order of ``option_names``
    """

    networks: Networks
    batch: Batch
    keys: list[jax.Array]
    key: jax.Array
    numbers: Metrics
    options: tuple[Any, ...]


class Losses(NamedTuple):
    """
    What the critics learn from.

    :param losses: the algorithm's own unreduced loss, shape (batch_size, n)
    :param td_errors: signed and unweighted, target minus estimate, shape (batch_size, n_critics)
    :param metrics: what to log, scalars by name
    :param changes: attributes of the critics' train states that the forward pass changes
    """

    losses: jax.Array
    td_errors: jax.Array
    metrics: Metrics
    changes: dict[str, Any] | None = None


class Fixed(NamedTuple):
    """What the compiler must know; each value is compiled for itself. See the attributes of these names."""

    policy_delay: int
    scheme: PriorityScheme
    options: tuple[Hashable, ...]


class PrioritizedJaxMixin(PrioritizedReplayMixin, OffPolicyAlgorithmJax):
    """
    Prioritized experience replay for an off-policy algorithm of SBX, with one compiled function for a call of ``train``.

    Constructor, buffers, settings and files are as in ``sb3_per``, see
    :class:`~sb3_per.algorithms.base.PrioritizedOffPolicyMixin`. With ``gradient_steps=K``, all K batches are drawn before the
    first update of a call, and their priorities are written after the last one.

    :raises NotImplementedError: for actors of :mod:`sb3_per.distributed`, ``actor_batch="weighted"``, replay of sequences, and
        schemes with a loss that has no JAX form
    """

    policy: Any

    can_act_in_copies = False

    #: Names of the attributes with the train states of the critics, whose loss is weighted.
    critic_names: ClassVar[tuple[str, ...]] = ("policy.qf_state",)

    #: Names of the attributes with the other train states, by the name of the network.
    network_names: ClassVar[dict[str, str]] = {}

    #: Names of the attributes that are numbers of the update, such as ``tau``. They may change without another compilation.
    number_names: ClassVar[tuple[str, ...]] = ()

    #: Names of the attributes that the compiler must know. Each value is compiled for itself.
    option_names: ClassVar[tuple[str, ...]] = ()

    #: How the critics' update of SBX splits the random key: numbers of keys, of which the first one is the next key.
    key_splits: ClassVar[tuple[int, ...]] = ()

    #: Functions of SBX that this class does not call: what a subclass says there would have no effect.
    unused_functions: ClassVar[tuple[str, ...]] = ("update_critic", "_train")

    #: How many gradient steps pass from one update of the actor to the next.
    policy_delay: int = 1

    # ---- what an algorithm brings

    @classmethod
    def _value_losses(cls, params: tuple[Any, ...], step: Step) -> Losses:
        """
        Compute the losses of the critics.

        :param params: parameters of the critics, the only ones that get a gradient
        :param step: networks, batch, keys, numbers and options
        :return: losses, TD errors, and more
        """
        raise NotImplementedError(f"{cls.__name__} must implement _value_losses(), which returns losses and TD errors")

    @classmethod
    def _update_targets(cls, networks: Networks, step: Step) -> Networks:
        """
        Update the target networks.

        :param networks: train states by name, after the update of the critics
        :param step: batch, key and numbers
        :return: train states
        """
        return networks

    @classmethod
    def _update_actor(cls, networks: Networks, step: Step) -> tuple[Networks, jax.Array, Metrics]:
        """
        Update the actor and the entropy coefficient, if the algorithm has them.

        :param networks: train states by name, after the update of the target networks
        :param step: batch, key and numbers
        :return: train states, the next key, and what to log
        """
        return networks, step.key, {}

    def _update_learning_rates(self) -> None:
        """Let learning rates follow their schedules. SBX does so for some algorithms only."""

    # ---- the networks

    def _networks(self) -> Networks:
        """Return the train states by name. ``"critics"`` is a tuple of those that the weighted loss updates."""
        others = {name: attrgetter(attribute)(self) for name, attribute in self.network_names.items()}
        return {"critics": tuple(attrgetter(attribute)(self) for attribute in self.critic_names), **others}

    def _set_networks(self, networks: Networks) -> None:
        """
        Take over train states.

        :param networks: after an update, in the form of :meth:`_networks`
        """
        for attribute, state in zip(self.critic_names, networks["critics"], strict=True):
            recursive_setattr(self, attribute, state)
        for name, attribute in self.network_names.items():
            recursive_setattr(self, attribute, networks[name])

    def _reset_networks(self) -> None:
        """Reset parameters as SBX does, see ``param_resets``. The functions stay, so that nothing is compiled again."""
        if not self.param_resets:
            return
        structure, n_resets = jax.tree.structure(self._networks()), self.reset_idx
        self._maybe_reset_params()
        if self.reset_idx > n_resets:
            self._set_networks(jax.tree.unflatten(structure, jax.tree.leaves(typed(self._networks()))))

    # ---- the loop

    def td_errors(self, batch: PrioritizedReplayBufferSamples) -> np.ndarray:
        """
        Compute TD errors with the code and the random numbers of the next gradient step, whose update is discarded. Nothing
        changes.

        :param batch: transitions, drawn or made by hand
        :return: signed TD errors, float32 array of shape (batch_size, n_critics)
        """
        logged = self._updated([self._arrays_of(batch, updates_actor=False)])[2]
        return logged.unpack(np.asarray(logged.values)[0], updates_actor=False)[0]

    def train(self, gradient_steps: int, batch_size: int | None = None) -> None:
        """
        Draw all batches, update the networks in one compiled loop, and update the priorities.

        :param gradient_steps: number of updates
        :param batch_size: number of transitions of an update; ``None``: that of the constructor
        """
        self._begin_training()
        metrics = MeanMetrics()
        done = 0
        while done < gradient_steps:
            done += self._train_together(batch_size, done, gradient_steps, metrics)
        self._log_training(metrics)

    def _draw(self, batch_size: int | None, gradient_step: int, gradient_steps: int) -> PrioritizedReplayBufferSamples:
        """Draw the batch of a gradient step, see :meth:`PrioritizedReplayMixin._draw`."""
        batch, buffer = super()._draw(batch_size, gradient_step, gradient_steps), self.replay_buffer
        for sampler in (buffer.sampler, buffer.demonstrations.sampler):
            sampler.n_unanswered = 0  # priorities of all draws of a call are updated after the last one
        return batch

    def _train_together(self, batch_size: int | None, done: int, gradient_steps: int, metrics: MeanMetrics) -> int:
        """
        Make as many gradient steps as go to the device together.

        :param batch_size: number of transitions of an update
        :param done: number of steps before these
        :param gradient_steps: number of steps of the call of ``train``
        :param metrics: of the call
        :return: number of steps made
        """
        batches: list[PrioritizedReplayBufferSamples] = []
        arrays: list[Batch] = []
        for step in range(done, gradient_steps):
            batches.append(self._draw(batch_size, step, gradient_steps))
            arrays.append(self._arrays_of(batches[-1], self._updates_actor_at(len(batches))))
            if (len(batches) + 1) * sum(each.nbytes for each in arrays[0] if each is not None) > _MOST_BYTES:
                break

        self._reset_networks()
        self._update_learning_rates()
        networks, self.key, logged = self._updated(arrays)
        self._set_networks(networks)
        for batch, values in zip(batches, np.asarray(logged.values), strict=False):
            td_errors, of_step = logged.unpack(values, self._updates_actor_at(1))
            self._n_updates += 1
            self._write_priorities(batch, td_errors, metrics)
            metrics.add(of_step)
        return len(batches)

    def _updated(self, arrays: list[Batch]) -> Updated:
        """
        Compute the next gradient steps. The model does not change.

        :param arrays: a batch for each step
        :return: train states, the next key, and what is handed back of each step
        """
        fixed = Fixed(
            self.policy_delay, self.replay_buffer.scheme, tuple(attrgetter(name)(self) for name in self.option_names)
        )
        numbers = np.array([getattr(self, name) for name in self.number_names], np.float32)
        # Of a length that is a power of two: each length is compiled for itself.
        batches = stacked(arrays, 1 << (len(arrays) - 1).bit_length())
        counts = np.array([len(arrays), (self._n_updates + 1) % self.policy_delay], np.int32)
        result: Updated = self._compiled_updates(fixed, self._networks(), self.key, numbers, batches, counts)
        return result

    def _updates_actor_at(self, step: int) -> bool:
        """
        Say whether a gradient step updates the actor.

        :param step: number of the step, from 1 for the next one
        :return: whether it does
        """
        return bool((self._n_updates + step) % self.policy_delay == 0)

    def _arrays_of(self, batch: PrioritizedReplayBufferSamples, updates_actor: bool) -> Batch:
        """Make arrays of a batch, and draw what the actor learns from, by the setting ``actor_batch``."""
        arrays, buffer = of_torch(batch, self.gamma, self.observation_space), self.replay_buffer
        if buffer.settings.actor_batch != "uniform":
            return arrays
        observations = arrays.observations
        if updates_actor:
            drawn = buffer.sample_observations(len(batch.indices), env=self._vec_normalize_env)
            observations = as_input(drawn, self.observation_space)
        return arrays._replace(actor_observations=observations)

    # ---- what is compiled

    @classmethod
    @partial(jax.jit, static_argnames=("cls", "fixed"))
    def _compiled_updates(
        cls, fixed: Fixed, networks: Networks, key: jax.Array, numbers: jax.Array, batches: Batch, counts: jax.Array
    ) -> Updated:
        """
        Make gradient steps.

        :param fixed: what the compiler must know
        :param networks: train states by name
        :param key: random key
        :param numbers: float32 of shape (len(number_names),)
        :param batches: of all steps, and perhaps more
        :param counts: number of steps, and number of the first one modulo the delay
        :return: train states, the next key, and what is handed back of each step
        """

        def update(number: Any, networks: Networks, key: jax.Array) -> Updated:
            batch, keys = jax.tree.map(lambda each: each[number], batches), []
            for n_keys in cls.key_splits:
                key, *more = jax.random.split(key, n_keys)
                keys += more
            step = Step(networks, batch, keys, key, dict(zip(cls.number_names, numbers, strict=True)), fixed.options)
            updates_actor = True if fixed.policy_delay == 1 else (counts[1] + number) % fixed.policy_delay == 0
            return cls._one_update(fixed.scheme, step, updates_actor)

        if batches.scalars.shape[0] == 1:
            networks, key, logged = update(0, networks, key)
            return networks, key, jax.tree.map(lambda each: each[None], logged)

        def body(number: Any, carry: Any) -> Any:
            networks, key, logged = update(number, *carry[:2])
            return networks, key, jax.tree.map(lambda all_, each: all_.at[number].set(each), carry[2], logged)

        shapes = jax.eval_shape(update, 0, networks, key)[2]
        logged = jax.tree.map(lambda each: jnp.zeros((batches.scalars.shape[0], *each.shape), each.dtype), shapes)
        result: Updated = jax.lax.fori_loop(0, counts[0], body, (networks, key, logged))
        return result

    @classmethod
    def _one_update(cls, scheme: PriorityScheme, step: Step, updates_actor: Any) -> Updated:
        critics, weights = step.networks["critics"], step.batch.weights

        def loss_of(params: tuple[Any, ...]) -> tuple[jax.Array, Losses]:
            found = cls._value_losses(params, step)
            return scheme.jax_loss(found.losses, found.td_errors, weights), found

        def update_actor(networks: Networks) -> tuple[Networks, jax.Array, Metrics]:
            return cls._update_actor(networks, step)

        def skip_actor(networks: Networks) -> tuple[Networks, jax.Array, Metrics]:
            metrics = jax.eval_shape(update_actor, networks)[2]
            return networks, step.key, jax.tree.map(jnp.zeros_like, metrics)

        params = tuple(critic.params for critic in critics)
        (loss, found), gradients = jax.value_and_grad(loss_of, has_aux=True)(params)
        updated = [
            critic.apply_gradients(grads=gradient).replace(**(found.changes or {}))
            for critic, gradient in zip(critics, gradients, strict=True)
        ]
        networks = cls._update_targets({**step.networks, "critics": tuple(updated)}, step)
        if updates_actor is True:
            networks, key, of_actor = update_actor(networks)
        else:
            networks, key, of_actor = jax.lax.cond(updates_actor, update_actor, skip_actor, networks)
        metrics = {"critic_loss": loss, **found.metrics, **weight_metrics(weights)}
        return networks, key, Logged.pack(found.td_errors, metrics, of_actor)

    # ---- the buffer

    def _setup_model(self) -> None:
        self.device = th.device("cpu")  # of the buffer, whatever the networks are on
        super()._setup_model()
        self._set_networks(typed(self._networks()))

    def _unsupported(self, buffer: PrioritizedReplayBuffer) -> Reasons:
        scheme = buffer.scheme
        reasons = {
            **super()._unsupported(buffer),
            "actor_batch='weighted'": buffer.settings.actor_batch == "weighted"
            and "SBX's own function updates the actor, and takes no weights. Use actor_batch='uniform' or 'prioritized', or "
            "the class of sb3_per",
            f"{type(scheme).__name__}.loss() alone": not scheme.has_jax_loss
            and "it is for PyTorch and replaces the loss. Write jax_loss() beside it, or use the class of sb3_per",
        }
        for function in self.unused_functions:
            owner = next(cls for cls in type(self).__mro__ if function in vars(cls))
            is_own = owner.__module__.partition(".")[0] not in ("sbx", "sb3_per")
            reasons[f"{owner.__name__}.{function}()"] = is_own and (
                "it would have no effect, because _value_losses() computes the critics' loss. Override that"
            )
        return reasons


def typed(networks: Networks) -> Networks:
    """
    Give all numbers of train states the type that an update returns. To the compiler, a Python number and an array that came
    from one are of other types, so the second update would be compiled again.

    :param networks: train states by name
    :return: the same, with arrays
    """

    def as_array(leaf: Any) -> jax.Array:
        is_typed = isinstance(leaf, jax.Array) and not leaf.weak_type
        return leaf if is_typed else jnp.asarray(leaf, jnp.result_type(leaf))

    return dict(jax.tree.map(as_array, networks))
