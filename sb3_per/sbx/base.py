"""
The compiled training loop of the prioritized algorithms of SBX.

Write the mixin left of the algorithm of SBX: ``class PERSAC(PrioritizedJaxMixin, SAC)``. The algorithm names its networks,
computes losses and TD errors, and updates the other networks after the critics.
"""

from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch as th
from sbx.common.off_policy_algorithm import OffPolicyAlgorithmJax
from stable_baselines3.common.save_util import recursive_getattr, recursive_setattr

from sb3_per.algorithms.metrics import MeanMetrics, weight_metrics
from sb3_per.algorithms.shared import PrioritizedReplayMixin
from sb3_per.buffers import PrioritizedReplayBuffer, PrioritizedReplayBufferSamples
from sb3_per.sbx.batches import Batch, Logged, as_input, of_torch, stacked
from sb3_per.utils.checks import Reasons

#: Train states, in the order of ``network_names``.
Networks = tuple[Any, ...]

#: Metrics of a gradient step, scalars by name.
Metrics = dict[str, Any]

#: Train states after gradient steps, the next key, and TD errors and metrics of each step.
Updated = tuple[Networks, jax.Array, Logged]

# The batches of a call go to the device together, up to this size. A call with more gradient steps goes in several parts.
_MOST_BYTES = 2**28


class Step(NamedTuple):
    """
    Inputs of a gradient step.

    :param networks: train states, in the order of ``network_names``
    :param key: random key
    :param batch: drawn transitions
    :param settings: values of the attributes in ``number_names`` and ``option_names``, by name
    """

    networks: Networks
    key: jax.Array
    batch: Batch
    settings: dict[str, Any]


class Losses(NamedTuple):
    """
    Losses of the critics.

    :param losses: the algorithm's own unreduced loss, shape (batch_size, n)
    :param td_errors: signed and unweighted, target minus estimate, shape (batch_size, n_critics)
    :param key: next random key
    :param metrics: scalars to log, by name
    :param changes: new values of attributes of the critics' train states, by name, e.g. statistics of batch normalization
    """

    losses: jax.Array
    td_errors: jax.Array
    key: jax.Array
    metrics: Metrics
    changes: dict[str, Any] | None = None


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

    #: Names of the attributes with the train states, critics first.
    network_names: ClassVar[tuple[str, ...]] = ("policy.qf_state",)

    #: Number of train states of critics, whose loss is weighted. One train state may hold several critics.
    n_critic_states: ClassVar[int] = 1

    #: Number of train states, from the first, that SBX's ``soft_update`` takes at every gradient step.
    n_target_states: ClassVar[int] = 0

    #: Names of the attributes that are numbers of the update, such as ``tau``. They may change without another compilation.
    number_names: ClassVar[tuple[str, ...]] = ()

    #: Names of the attributes that the compiler must know. The update is compiled again for each new value.
    option_names: ClassVar[tuple[str, ...]] = ("policy_delay", "replay_buffer.scheme")

    #: Number of gradient steps from one update of the actor to the next.
    policy_delay: int = 1

    # ---- methods that an algorithm implements

    @classmethod
    def _value_losses(cls, params: tuple[Any, ...], step: Step) -> Losses:
        """
        Compute the losses of the critics.

        :param params: parameters of the critics, the only ones that get a gradient
        :param step: networks, key, batch and settings
        :return: losses, TD errors, the next key, and more
        """
        raise NotImplementedError(f"{cls.__name__} must implement _value_losses(), which returns losses and TD errors")

    @classmethod
    def _update_actor(cls, step: Step) -> tuple[Networks, jax.Array, Metrics]:
        """
        Update the actor and the entropy coefficient, if the algorithm has them.

        :param step: the step after the update of critics and target networks
        :return: train states, the next key, and metrics to log
        """
        return step.networks, step.key, {}

    def _update_learning_rates(self) -> None:
        """Let learning rates follow their schedules. SBX does so for some algorithms only."""

    # ---- the networks

    def _networks(self) -> Networks:
        """Return the train states."""
        return tuple(recursive_getattr(self, name) for name in self.network_names)

    def _set_networks(self, networks: Networks) -> None:
        """
        Replace the train states.

        :param networks: train states, in the order of ``network_names``
        """
        for name, state in zip(self.network_names, networks, strict=True):
            recursive_setattr(self, name, state)

    def _reset_networks(self) -> None:
        """Reset parameters as SBX does, see ``param_resets``. Keep the functions, so that nothing is compiled again."""
        networks, n_resets = self._networks(), self.reset_idx
        self._maybe_reset_params()
        if self.reset_idx > n_resets:
            self._set_networks(jax.tree.unflatten(jax.tree.structure(networks), jax.tree.leaves(typed(self._networks()))))

    # ---- the loop

    def td_errors(self, batch: PrioritizedReplayBufferSamples) -> np.ndarray:
        """
        Compute TD errors with the code and the random numbers of the next gradient step, but discard its update. Nothing
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
        :param batch_size: number of transitions of an update; ``None``: the ``batch_size`` of the constructor
        """
        self._begin_training()
        metrics = MeanMetrics()
        done = 0
        while done < gradient_steps:
            done += self._train_together(batch_size, done, gradient_steps, metrics)
        self._log_training(metrics)

    def _train_together(self, batch_size: int | None, done: int, gradient_steps: int, metrics: MeanMetrics) -> int:
        """
        Make as many gradient steps as fit on the device together.

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
            self.replay_buffer.reminder.count_update()  # priorities of all draws of a call are updated after the last one
            updates_actor = (self._n_updates + len(batches)) % self.policy_delay == 0
            arrays.append(self._arrays_of(batches[-1], updates_actor))
            if (len(batches) + 1) * sum(each.nbytes for each in arrays[0] if each is not None) > _MOST_BYTES:
                break

        self._reset_networks()
        self._update_learning_rates()
        networks, self.key, logged = self._updated(arrays)
        self._set_networks(networks)
        for batch, values in zip(batches, np.asarray(logged.values), strict=False):
            self._n_updates += 1
            td_errors, of_step = logged.unpack(values, self._n_updates % self.policy_delay == 0)
            self._write_priorities(batch, td_errors, metrics)
            metrics.add(of_step)
        return len(batches)

    def _updated(self, arrays: list[Batch]) -> Updated:
        """
        Compute the next gradient steps. The model does not change.

        :param arrays: a batch for each step
        :return: train states, the next key, and TD errors and metrics of each step
        """
        options = tuple(recursive_getattr(self, name) for name in self.option_names)
        numbers = np.array([getattr(self, name) for name in self.number_names], np.float32)
        # Of a length that is a power of two: each length is compiled for itself.
        batches = stacked(arrays, 1 << (len(arrays) - 1).bit_length())
        counts = np.array([len(arrays), (self._n_updates + 1) % self.policy_delay], np.int32)
        return self._compiled_updates(options, self._networks(), self.key, numbers, batches, counts)

    def _arrays_of(self, batch: PrioritizedReplayBufferSamples, updates_actor: bool) -> Batch:
        """Make arrays of a batch, and draw observations for the actor, by the setting ``actor_batch``."""
        arrays, buffer = of_torch(batch, self.gamma, self.observation_space), self.replay_buffer
        if buffer.settings.actor_batch != "uniform":
            return arrays
        observations = arrays.observations
        if updates_actor:
            drawn = buffer.sample_observations(len(batch.indices), env=self._vec_normalize_env)
            observations = as_input(drawn, self.observation_space)
        return arrays._replace(actor_observations=observations)

    # ---- compiled code

    @classmethod
    @partial(jax.jit, static_argnames=("cls", "options"))
    def _compiled_updates(
        cls, options: tuple[Any, ...], networks: Networks, key: jax.Array, numbers: Any, batches: Batch, counts: Any
    ) -> Updated:
        """
        Make gradient steps.

        :param options: values of the attributes in ``option_names``
        :param networks: train states
        :param key: random key
        :param numbers: values of the attributes in ``number_names``, float32
        :param batches: batches of all steps, and perhaps more
        :param counts: number of steps, and number of the first one modulo the delay, int32
        :return: train states, the next key, and TD errors and metrics of each step
        """
        settings = dict(zip((*cls.option_names, *cls.number_names), (*options, *numbers), strict=True))
        delay = settings["policy_delay"]

        def update(number: Any, networks: Networks, key: jax.Array) -> Updated:
            step = Step(networks, key, jax.tree.map(lambda each: each[number], batches), settings)
            return cls._one_update(step, delay == 1 or (counts[1] + number) % delay == 0)

        if batches.scalars.shape[0] == 1:
            networks, key, logged = update(0, networks, key)
            return networks, key, jax.tree.map(lambda each: each[None], logged)

        def body(number: Any, carry: Any) -> Any:
            networks, key, logged = update(number, *carry[:2])
            return networks, key, jax.tree.map(lambda all_, each: all_.at[number].set(each), carry[2], logged)

        shapes = jax.eval_shape(update, 0, networks, key)[2]
        logged = jax.tree.map(lambda each: jnp.zeros((batches.scalars.shape[0], *each.shape), each.dtype), shapes)
        return jax.lax.fori_loop(0, counts[0], body, (networks, key, logged))

    @classmethod
    def _one_update(cls, step: Step, updates_actor: Any) -> Updated:
        critics, weights = step.networks[: cls.n_critic_states], step.batch.weights

        def loss_of(params: tuple[Any, ...]) -> tuple[jax.Array, Losses]:
            found = cls._value_losses(params, step)
            return step.settings["replay_buffer.scheme"].jax_loss(found.losses, found.td_errors, weights), found

        (loss, found), gradients = jax.value_and_grad(loss_of, has_aux=True)(tuple(critic.params for critic in critics))
        updated = [
            critic.apply_gradients(grads=gradient).replace(**(found.changes or {}))
            for critic, gradient in zip(critics, gradients, strict=True)
        ]
        networks = (*updated, *step.networks[len(updated) :])
        if cls.n_target_states > 0:
            moved = cls.soft_update(step.settings["tau"], *networks[: cls.n_target_states])  # type: ignore[attr-defined]
            networks = (*as_tuple(moved), *networks[cls.n_target_states :])
        step = step._replace(networks=networks, key=found.key)
        update_actor = partial(cls._update_actor, step)
        if updates_actor is True:
            networks, key, of_actor = update_actor()
        else:
            zeros = jax.tree.map(jnp.zeros_like, jax.eval_shape(update_actor)[2])
            networks, key, of_actor = jax.lax.cond(updates_actor, update_actor, lambda: (step.networks, step.key, zeros))
        metrics = {"critic_loss": loss, **found.metrics, **weight_metrics(weights)}
        return networks, key, Logged.pack(found.td_errors, metrics, of_actor)

    # ---- the buffer

    def _setup_model(self) -> None:
        self.device = th.device("cpu")  # of the buffer, wherever the networks are
        super()._setup_model()
        self._set_networks(typed(self._networks()))

    def _unsupported(self, buffer: PrioritizedReplayBuffer) -> Reasons:
        scheme = buffer.scheme
        # Functions of SBX that are never called, where a class of the user overrides them.
        without_effect = {
            f"{cls.__name__}.{function}()": "it has no effect, as _value_losses() computes the critics' loss. Override that"
            for cls in type(self).__mro__
            for function in ("update_critic", "update_qnetwork", "_train")
            if function in vars(cls) and cls.__module__.partition(".")[0] not in ("sbx", "sb3_per")
        }
        return {
            **super()._unsupported(buffer),
            "actor_batch='weighted'": buffer.settings.actor_batch == "weighted"
            and "SBX's own function updates the actor, and takes no weights. Use actor_batch='uniform' or 'prioritized', or "
            "the class of sb3_per",
            f"{type(scheme).__name__}.loss() alone": not scheme.has_jax_loss
            and "it is for PyTorch and replaces the loss. Write jax_loss() beside it, or use the class of sb3_per",
            **without_effect,
        }


def as_tuple(states: Any) -> tuple[Any, ...]:
    """
    Return train states as a tuple.

    :param states: result of a function of SBX, which returns a single train state as it is
    :return: the train states
    """
    return states if isinstance(states, tuple) else (states,)


def typed(networks: Networks) -> Networks:
    """
    Give all numbers of train states the type that an update returns. To the compiler, a Python number and an array that came
    from one have different types, so it would compile the second update again.

    :param networks: train states
    :return: the same, with arrays
    """
    return tuple(jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), networks))
