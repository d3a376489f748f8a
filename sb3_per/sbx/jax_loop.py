"""
The training loop for networks in JAX, compiled.

Write the mixin left of the algorithm of SBX: ``class PERSAC(PrioritizedJaxMixin, SAC)``. The algorithm
must write ``_networks``, ``_set_networks`` and ``_update``, which is its whole update of one batch. It may write
``_hyperparameters`` and ``_options``.
"""

import functools
import pickle
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch as th
from sbx.common.off_policy_algorithm import OffPolicyAlgorithmJax

from sb3_per.algorithms.base import PrioritizedAlgorithm
from sb3_per.algorithms.metrics import Recorded, record, weight_metrics
from sb3_per.buffers import PrioritizedReplayBuffer, PrioritizedReplayBufferSamples
from sb3_per.sampling.schemes import PriorityScheme
from sb3_per.sbx.batches import Batch, StepOutput, as_input, batch_from_torch, stack
from sb3_per.utils.origin import is_user_defined

#: Train states of an algorithm: a tuple, or a NamedTuple.
Networks = tuple[Any, ...]

#: Metrics of a gradient step, scalars by name.
Metrics = dict[str, Any]

#: Up to this number of gradient steps are one loop, and each number is compiled. A second loop takes time to start: on a CPU,
#: up to a gradient step of a small DQN. That is much only where steps are few.
LONGEST_REST = 32


@dataclass(frozen=True)
class Options:
    """
    Values that the compiler must know. The update is compiled again for each new combination. An algorithm with more of them
    has a subclass.

    :param scheme: prioritization scheme
    :param policy_delay: number of gradient steps from one update of the actor to the next
    """

    scheme: PriorityScheme
    policy_delay: int
    #: Settings of the scheme, pickled. The compiler takes them for constants, and a user may change them.
    scheme_settings: bytes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "scheme_settings", pickle.dumps(self.scheme.settings))


class UpdateInputs(NamedTuple):
    """
    Input of a gradient step.

    :param networks: train states
    :param key: random key
    :param batch: drawn transitions
    :param hyperparameters: numbers such as ``tau``, by name. If they change, nothing is compiled again
    :param options: what the compiler must know
    """

    networks: Any
    key: jax.Array
    batch: Batch
    hyperparameters: dict[str, Any]
    options: Any

    def update_actor_if_due(
        self, update: Callable[[], tuple[Networks, jax.Array, Metrics]], skipped: tuple[Networks, jax.Array]
    ) -> Any:
        """
        Update the actor if it is its turn, see ``policy_delay``.

        :param update: function that returns train states, the next key, and metrics to log
        :param skipped: train states and key if it is not its turn
        :return: train states, the next key, and metrics, which are zeros if it is not its turn
        """
        if self.options.policy_delay == 1:
            return update()
        # Both branches of `cond` must return the same shapes.
        _, _, metrics = jax.eval_shape(update)
        zeros = jax.tree.map(jnp.zeros_like, metrics)
        return jax.lax.cond(self.batch.updates_actor, update, lambda: (*skipped, zeros))


class UpdateResult(NamedTuple):
    """
    Result of a gradient step.

    :param networks: train states
    :param key: next random key
    :param td_errors: signed and unweighted, from before the update, shape (batch_size, n_critics)
    :param metrics: scalars to log, by name
    :param actor_metrics: scalars to log only if the actor was updated, by name
    """

    networks: Any
    key: jax.Array
    td_errors: jax.Array
    metrics: Metrics
    actor_metrics: Metrics


class PrioritizedJaxMixin(PrioritizedAlgorithm, OffPolicyAlgorithmJax):
    """
    Prioritized experience replay for an off-policy algorithm of SBX, with one compiled function for a call of ``train``.

    Constructor, buffers, settings and files are as in ``sb3_per``, see
    :class:`~sb3_per.algorithms.torch_loop.PrioritizedOffPolicyMixin`. With ``gradient_steps=K``, all K batches are drawn
    before the first update of a call, as far as ``max_bytes_ahead`` allows; their priorities are written after the last one.

    An algorithm passes values to the compiled update in two ways: a number that may change while it learns is one of
    ``_hyperparameters``; a shape, or what a branch of Python depends on, is one of ``_options``, and compiles anew.

    :raises NotImplementedError: for actors of :mod:`sb3_per.distributed`, replay of sequences, schemes with a loss that has no
        JAX form, and classes that override a function of SBX that is never called
    """

    policy: Any

    can_act_in_copies = False

    #: Number of gradient steps from one update of the actor to the next.
    policy_delay: int = 1

    #: Largest size of the batches that are drawn before they go to the device together, bytes. A call of ``train`` with more
    #: goes in several parts.
    max_bytes_ahead: int = 2**28

    #: Names of the policy's train states of actors and of critics, whose learning rates follow the schedule.
    actor_states: ClassVar[tuple[str, ...]] = ("actor_state",)
    critic_states: ClassVar[tuple[str, ...]] = ("qf_state",)

    #: Functions of SBX that are never called, because ``_update`` computes the critics' loss.
    bypassed_functions: ClassVar[tuple[str, ...]] = ("update_critic", "update_qnetwork", "_train")

    # ---- methods that an algorithm implements

    def _networks(self) -> Networks:
        """Return the train states."""
        raise NotImplementedError(f"{type(self).__name__} must implement _networks(), which returns the train states")

    def _set_networks(self, networks: Any) -> None:
        """
        Replace the train states.

        :param networks: train states, as :meth:`_networks` returns them
        """
        raise NotImplementedError(f"{type(self).__name__} must implement _set_networks(), which replaces the train states")

    def _hyperparameters(self) -> dict[str, Any]:
        """Return the numbers of the update, by name. If they change, nothing is compiled again."""
        return {}

    def _options(self) -> Options:
        """Return what the compiler must know."""
        return Options(self.replay_buffer.scheme, self.policy_delay)

    @classmethod
    def _update(cls, inputs: UpdateInputs) -> UpdateResult:
        """
        Update all networks once. Compiled.

        :param inputs: networks, key, batch, hyperparameters and options
        :return: networks, next key, TD errors and metrics
        """
        raise NotImplementedError(f"{cls.__name__} must implement _update(), which updates the networks once")

    # ---- construction

    def _setup_model(self) -> None:
        self.device = th.device("cpu")  # of the buffer, wherever the networks are
        super()._setup_model()
        self._check_overridden()
        self._make_rates_adjustable()
        self._set_networks(with_arrays(self._networks()))

    def _check_buffer(self, buffer: PrioritizedReplayBuffer) -> None:
        super()._check_buffer(buffer)
        if type(buffer.scheme).__hash__ is None:
            name = type(buffer.scheme).__name__
            raise TypeError(f"{name} must be hashable for the compiler: write @dataclass(eq=False) in place of @dataclass")
        for setting, value in buffer.scheme.settings.items():
            try:
                pickle.dumps(value)
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                name = type(buffer.scheme).__name__
                raise TypeError(f"{name}.{setting} must be picklable, to be saved and compiled: {error}") from error
        one = jnp.ones((1, 1))
        try:
            jax.eval_shape(buffer.scheme.jax_loss, one, one, one)
        except NotImplementedError as error:
            raise NotImplementedError(f"{type(self).__name__} with {buffer.scheme} is not supported: {error}") from error

    def _check_overridden(self) -> None:
        """Refuse a user's override of a function of SBX that is never called."""
        for cls in type(self).__mro__:
            for name in self.bypassed_functions:
                if is_user_defined(cls) and name in vars(cls):
                    raise NotImplementedError(
                        f"{type(self).__name__} with {cls.__name__}.{name}() is not supported: it has no effect, as _update() "
                        "computes the critics' loss. Override that"
                    )

    # ---- the loop

    def train(self, gradient_steps: int, batch_size: int | None = None) -> None:
        """
        Draw all batches, update the networks in one compiled loop, and update the priorities.

        :param gradient_steps: number of updates
        :param batch_size: number of transitions of an update; ``None``: the ``batch_size`` of the constructor
        """
        recorded: Recorded = defaultdict(list)
        n_done = 0
        while n_done < gradient_steps:
            batches, jax_batches = self._draw_ahead(batch_size, n_done, gradient_steps)
            self._reset_networks_if_due()
            self._set_learning_rates()
            networks, self.key, outputs = self._compute(jax_batches)
            self._set_networks(networks)
            n_done += len(batches)

            # The only transfers from the device, one for each compiled call.
            rows = [row for output in outputs for row in np.asarray(output.values)]
            for batch, jax_batch, row in zip(batches, jax_batches, rows, strict=True):
                self._n_updates += 1
                td_errors, step_metrics = outputs[0].unpack(row, bool(jax_batch.updates_actor))
                self._update_priorities(batch, td_errors, recorded)
                record(recorded, step_metrics)
        self._log(recorded)

    def td_errors(self, batch: PrioritizedReplayBufferSamples) -> np.ndarray:
        """
        Compute TD errors without an update, with the code and the random numbers of the next gradient step. Nothing changes.

        :param batch: transitions, drawn or made by hand
        :return: signed TD errors, float32 array of shape (batch_size, n_critics)
        """
        jax_batch = self._jax_batch_of(batch, updates_actor=False)
        return np.asarray(
            self._compiled_td_errors(self._options(), self._networks(), self.key, self._float32_hyperparameters(), jax_batch)
        )

    def _draw_ahead(
        self, batch_size: int | None, n_done: int, gradient_steps: int
    ) -> tuple[list[PrioritizedReplayBufferSamples], list[Batch]]:
        """
        Draw the batches of the next gradient steps, as many as go to the device together.

        :param batch_size: number of transitions of an update
        :param n_done: number of steps that this call of ``train`` has made
        :param gradient_steps: number of steps of the call
        :return: the batches, with tensors, and the same batches for JAX
        """
        batches: list[PrioritizedReplayBufferSamples] = []
        jax_batches: list[Batch] = []
        for step in range(n_done, gradient_steps):
            batch = self._draw(batch_size, step, gradient_steps)
            self.replay_buffer.update_reminder.n_draws = 0  # the priorities of all batches follow the last gradient step
            batches.append(batch)
            updates_actor = (self._n_updates + len(batches)) % self.policy_delay == 0
            jax_batches.append(self._jax_batch_of(batch, updates_actor))
            if (len(jax_batches) + 1) * jax_batches[0].nbytes > self.max_bytes_ahead:
                break
        return batches, jax_batches

    def _jax_batch_of(self, batch: PrioritizedReplayBufferSamples, updates_actor: bool) -> Batch:
        """
        Turn a batch of tensors into one for JAX. With ``actor_batch="uniform"``, draw observations for the actor.

        :param batch: drawn transitions
        :param updates_actor: whether it is the actor's turn
        :return: the batch for JAX
        """
        jax_batch = batch_from_torch(batch, self.gamma, self.observation_space, updates_actor)
        if self.replay_buffer.settings.actor_batch != "uniform":
            return jax_batch
        if not updates_actor:
            # Not used, but all batches need the same form.
            return jax_batch._replace(actor_observations=jax_batch.observations)
        drawn = self.replay_buffer.sample_observations(len(batch.weights), env=self.get_vec_normalize_env())
        return jax_batch._replace(actor_observations=as_input(drawn, self.observation_space))

    def _reset_networks_if_due(self) -> None:
        """Reset parameters as SBX does, if a step of ``param_resets`` has been reached."""
        before = self._networks()
        n_resets = self.reset_idx
        self._maybe_reset_params()
        if self.reset_idx > n_resets:
            self._make_rates_adjustable()
            # The new numbers with the functions from before, because new functions would be compiled again.
            numbers = jax.tree.leaves(with_arrays(self._networks()))
            self._set_networks(jax.tree.unflatten(jax.tree.structure(before), numbers))

    def _compute(self, jax_batches: list[Batch]) -> tuple[Any, jax.Array, list[StepOutput]]:
        """
        Compute the next gradient steps, in compiled loops of known length. The model does not change.

        :param jax_batches: a batch for each step
        :return: train states, the next key, and TD errors and metrics of each loop
        """
        networks, key = self._networks(), self.key
        options, hyperparameters = self._options(), self._float32_hyperparameters()
        outputs: list[StepOutput] = []
        start = 0
        for length in loop_lengths(len(jax_batches)):
            part = jax_batches[start : start + length]
            if length == 1:  # a loop would take time
                networks, key, output = self._compiled_step(options, networks, key, hyperparameters, part[0])
            else:
                networks, key, output = self._compiled_steps(options, networks, key, hyperparameters, stack(part))
            outputs.append(output)
            start += length
        return networks, key, outputs

    def _float32_hyperparameters(self) -> dict[str, jax.Array]:
        """Return the hyperparameters in the type that the compiled functions take."""
        return {name: as_float32(float(value)) for name, value in self._hyperparameters().items()}

    @classmethod
    @functools.partial(jax.jit, static_argnames=("cls", "options"))
    def _compiled_td_errors(
        cls, options: Options, networks: Any, key: jax.Array, hyperparameters: dict[str, Any], batch: Batch
    ) -> jax.Array:
        """
        Compute the TD errors of a gradient step. The compiler leaves out what they do not depend on: gradients, and the
        updates of all networks.

        :param options: what the compiler must know
        :param networks: train states
        :param key: random key
        :param hyperparameters: numbers by name, float32
        :param batch: batch of the step
        :return: TD errors, shape (batch_size, n_critics)
        """
        return cls._update(UpdateInputs(networks, key, batch, hyperparameters, options)).td_errors

    @classmethod
    @functools.partial(jax.jit, static_argnames=("cls", "options"))
    def _compiled_step(
        cls, options: Options, networks: Any, key: jax.Array, hyperparameters: dict[str, Any], batch: Batch
    ) -> tuple[Any, jax.Array, StepOutput]:
        """
        Make a gradient step.

        :param options: what the compiler must know
        :param networks: train states
        :param key: random key
        :param hyperparameters: numbers by name, float32
        :param batch: batch of the step
        :return: train states, the next key, and TD errors and metrics, in one row
        """
        networks, key, logged = cls._step(UpdateInputs(networks, key, batch, hyperparameters, options))
        return networks, key, jax.tree.map(lambda row: row[None], logged)

    @classmethod
    @functools.partial(jax.jit, static_argnames=("cls", "options"))
    def _compiled_steps(
        cls, options: Options, networks: Any, key: jax.Array, hyperparameters: dict[str, Any], batches: Batch
    ) -> tuple[Any, jax.Array, StepOutput]:
        """
        Make several gradient steps. Their number is a length of the arrays, so the compiler knows it. A loop of unknown length
        waits for a GPU before each step.

        :param options: what the compiler must know
        :param networks: train states
        :param key: random key
        :param hyperparameters: numbers by name, float32
        :param batches: batches of all steps
        :return: train states, the next key, and TD errors and metrics, in one row for each step
        """

        def body(carry: tuple[Any, jax.Array], batch: Batch) -> tuple[tuple[Any, jax.Array], StepOutput]:
            """Make a step."""
            networks, key, output = cls._step(UpdateInputs(*carry, batch, hyperparameters, options))
            return (networks, key), output

        (networks, key), outputs = jax.lax.scan(body, (networks, key), batches)
        return networks, key, outputs

    @classmethod
    def _step(cls, inputs: UpdateInputs) -> tuple[Any, jax.Array, StepOutput]:
        """
        Update the networks once, and collect what ``train`` needs of it.

        :param inputs: networks, key, batch, hyperparameters and options
        :return: train states, the next key, and TD errors and metrics
        """
        updated = cls._update(inputs)
        metrics = {**updated.metrics, **weight_metrics(inputs.batch.weights)}
        return updated.networks, updated.key, StepOutput.pack(updated.td_errors, metrics, updated.actor_metrics)

    # ---- learning rates

    def _set_learning_rates(self) -> None:
        """
        Set the learning rates of actor and critics to the values of their schedules, where they are adjustable. A constant
        rate may be compiled, as in SBX.
        """
        rate = float(self.lr_schedule(self._current_progress_remaining))
        critic_rate = float(self.initial_qf_learning_rate) if self.initial_qf_learning_rate else rate
        for names, new_rate, logged_name in (
            (self.actor_states, rate, "learning_rate_actor"),
            (self.critic_states, critic_rate, "learning_rate_critic"),
        ):
            optimizers = [getattr(self.policy, name).opt_state for name in names]
            adjustable = [optimizer for optimizer in optimizers if has_adjustable_rate(optimizer)]
            if adjustable:
                self.logger.record(f"train/{logged_name}", new_rate)
            for optimizer in adjustable:
                optimizer.hyperparams["learning_rate"] = as_float32(new_rate)

    def _make_rates_adjustable(self) -> None:
        """
        If the learning rate is a schedule, make it adjustable: wrap each optimizer in ``optax.inject_hyperparams``, which
        keeps the rate in the state of the optimizer, an input of the compiled update. Otherwise it is a constant of the
        compiled code. SBX does so for SAC and TQC alone.
        """
        if not callable(self.learning_rate):
            return
        for name in (*self.actor_states, *self.critic_states):
            state = getattr(self.policy, name)
            if not has_adjustable_rate(state.opt_state):
                arguments = dict(self.policy.optimizer_kwargs, learning_rate=self.lr_schedule(1.0))
                optimizer = optax.inject_hyperparams(self.policy.optimizer_class)(**arguments)
                # Keep the moments of a loaded model.
                opt_state = optimizer.init(state.params)._replace(inner_state=state.opt_state)
                setattr(self.policy, name, state.replace(tx=optimizer, opt_state=opt_state))


def loop_lengths(n: int) -> list[int]:
    """
    Split a number of gradient steps into loops: powers of two, largest first, and a rest of at most ``LONGEST_REST`` steps.
    Each length is compiled once, so calls of up to 32 steps compile at most 32 times, and each time that the number doubles,
    one more is possible. A single step is never left over: the compiler orders its sums otherwise than those of a loop.

    :param n: number of gradient steps, at least 1
    :return: lengths whose sum is n
    """
    lengths = []
    while n > LONGEST_REST:
        length = 1 << (n.bit_length() - 1)
        lengths.append(length // 2 if n == length + 1 else length)
        n -= lengths[-1]
    return [*lengths, n] if n else lengths


@functools.lru_cache
def as_float32(value: float) -> jax.Array:
    """
    Put a number on the device, once: transfers of a few numbers take 3% of a gradient step of SAC.

    :param value: the number
    :return: a scalar of the type that an update returns; the compiler tells it from a float
    """
    return jnp.asarray(value, jnp.float32)


def has_adjustable_rate(optimizer: Any) -> bool:
    """
    Tell whether an optimizer keeps its learning rate in its state, where it can change.

    :param optimizer: state of an optimizer
    :return: whether it is wrapped in ``optax.inject_hyperparams``
    """
    return isinstance(optimizer, optax.InjectStatefulHyperparamsState)


def with_arrays(networks: Any) -> Any:
    """
    Turn all numbers of train states into arrays, as an update returns them. To the compiler, a Python number and an array have
    different types, so that it would compile the second update again.

    :param networks: train states
    :return: train states with arrays
    """
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), networks)
