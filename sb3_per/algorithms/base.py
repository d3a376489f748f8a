"""
The mixin that ties an SB3 off-policy algorithm to a prioritized buffer: one training loop, and the choice of the buffer.

It stands left of the algorithm, ``class PERSAC(PrioritizedOffPolicyMixin, SAC)``, and knows neither networks nor losses: an
algorithm brings :meth:`PrioritizedOffPolicyMixin._value_losses` and :meth:`PrioritizedOffPolicyMixin._gradient_step`.
"""

import contextlib
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import MaybeCallback
from stable_baselines3.common.vec_env import VecFrameStack, unwrap_vec_wrapper
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per.algorithms.acting import ActingMixin
from sb3_per.algorithms.constructors import require_arguments, require_left, show_stock_init
from sb3_per.buffers import (
    PrioritizedDictReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedReplayBufferSamples,
    PrioritizedSequenceReplayBuffer,
)
from sb3_per.persistence.model_zip import CheckpointMixin, prioritized_class_of
from sb3_per.sampling.schemes import LAP
from sb3_per.storage.frames import GOALS
from sb3_per.utils.extras import require

SelfOffPolicyMixin = TypeVar("SelfOffPolicyMixin", bound="PrioritizedOffPolicyMixin")


class PrioritizedOffPolicyMixin(ActingMixin, CheckpointMixin):
    """
    Prioritized experience replay for an off-policy algorithm of SB3 or sb3-contrib.

    The constructor stays that of the algorithm. ``replay_buffer_class=None`` picks the prioritized buffer that fits the
    observation space, ``replay_buffer_kwargs`` configures it (see
    :class:`~sb3_per.buffers.PrioritizedReplayBuffer`), and ``n_steps`` reaches it.

    A subclass implements :meth:`_optimizers`, :meth:`_value_losses` and :meth:`_gradient_step`.

    :raises ValueError: at construction, for a ``replay_buffer_class`` that is not prioritized, or an ``n_steps`` that
        contradicts the one in ``replay_buffer_kwargs``
    """

    replay_buffer: PrioritizedReplayBuffer

    #: Whether the loss is one of scalar TD errors, which LAP and PAL replace by their own.
    has_scalar_td_loss: ClassVar[bool] = True

    #: Whether an actor learns from :meth:`_actor_batch`, and not only values from the batch.
    has_actor: ClassVar[bool] = False

    #: Whether it has a memory, and a batch is one of sequences.
    learns_from_sequences: ClassVar[bool] = False

    # The buffer whose newest step `_last_obs` follows.
    _continued_buffer: PrioritizedReplayBuffer | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        require_left(cls, PrioritizedOffPolicyMixin)
        show_stock_init(cls, PrioritizedOffPolicyMixin)

    # A type checker looks past it, at the constructor of the stock algorithm.
    if not TYPE_CHECKING:

        def __init__(self, *args, **kwargs):
            require_arguments(type(self), PrioritizedOffPolicyMixin, kwargs)
            super().__init__(*args, **kwargs)

    # ---- what an algorithm brings

    def _optimizers(self) -> list[th.optim.Optimizer]:
        """
        :return: the optimizers whose learning rate follows the schedule
        """
        raise NotImplementedError

    def _value_losses(self, batch: PrioritizedReplayBufferSamples) -> tuple[th.Tensor, th.Tensor]:
        """
        How wrong the value networks are. It changes nothing but random generators and the statistics of batch normalization.

        :param batch: the drawn transitions
        :return: the algorithm's own unreduced loss, shape (batch_size, n), and signed TD errors, target minus estimate,
            unweighted, of shape (batch_size, n_critics), both with gradient
        """
        raise NotImplementedError(f"{type(self).__name__} does not say what its TD errors are: implement _value_losses()")

    def _gradient_step(
        self, batch: PrioritizedReplayBufferSamples, gradient_step: int
    ) -> tuple[th.Tensor, dict[str, th.Tensor]]:
        """
        One update of the networks; the loss of the value networks is :meth:`_value_loss`.

        :param batch: the drawn transitions
        :param gradient_step: number of this step within the current call of :meth:`train`, from 0
        :return: signed TD errors, unweighted, of shape (batch_size, n_critics), on any device; and scalar tensors to log,
            e.g. ``{"critic_loss": loss}``, averaged over the gradient steps that bring them
        """
        raise NotImplementedError

    # ---- what an algorithm may use

    def _value_loss(self, batch: PrioritizedReplayBufferSamples) -> tuple[th.Tensor, th.Tensor]:
        """
        :param batch: the drawn transitions
        :return: the loss of the value networks, as the scheme wants it, and the TD errors
        """
        losses, td_errors = self._value_losses(batch)
        return self.replay_buffer.scheme.loss(losses, td_errors, batch.weights), td_errors

    def _td_target(self, batch: PrioritizedReplayBufferSamples, next_values: th.Tensor) -> th.Tensor:
        """
        :param batch: the drawn transitions
        :param next_values: value of the observations behind them, shape (batch_size, n)
        :return: rewards + discount * value, no value behind a terminal state, shape (batch_size, n)
        """
        discounts = self.gamma if batch.discounts is None else batch.discounts
        return batch.rewards + (1 - batch.dones) * discounts * next_values

    def _actor_batch(self, batch: PrioritizedReplayBufferSamples) -> tuple[Any, th.Tensor | None]:
        """
        What the actor learns from, as ``actor_batch`` says: large TD errors, which the critics' batch is full of, say that the
        critics are wrong there, and so is the gradient that they give the actor (arXiv 2209.00532).

        :param batch: of the critics
        :return: observations, and weights of mean 1, shape (batch_size, 1), or ``None`` where all are equal
        """
        buffer = self.replay_buffer
        if buffer.settings.actor_batch == "uniform":
            return buffer.sample_observations(len(batch.indices), env=self._vec_normalize_env), None
        if buffer.settings.actor_batch == "prioritized":
            return batch.observations, None
        assert batch.n_p is not None, "A batch that was put together by hand has no probabilities to weight by"
        weights = 1.0 / batch.n_p
        return batch.observations, buffer.to_torch((weights / weights.mean()).astype(np.float32).reshape(-1, 1))

    def _td_errors(self, batch: PrioritizedReplayBufferSamples) -> th.Tensor:
        """
        TD errors of a batch without an update, from the same code as those of a gradient step. Random numbers, of a policy's
        next actions for one, are drawn as there.

        :param batch: transitions, drawn or put together by hand
        :return: signed, without gradient, shape (batch_size, n_critics)
        """
        statistics = [(buffer, buffer.clone()) for buffer in self.policy.buffers()]
        with th.no_grad():
            td_errors = self._value_losses(batch)[1]
            for buffer, before in statistics:
                buffer.copy_(before)
        return td_errors

    # ---- the loop

    def learn(
        self: SelfOffPolicyMixin,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 4,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> SelfOffPolicyMixin:
        """
        See SB3.

        :param total_timesteps: steps in all environments together
        :param callback: called at every step
        :param log_interval: episodes, or rollouts, between two records
        :param tb_log_name: of the run in TensorBoard; ``None``: that of the class, so that it is told apart from the stock
            algorithm's
        :param reset_num_timesteps: ``False``: go on counting, in the newest run of this name
        :param progress_bar: whether to show one
        :return: this model
        :raises ImportError: if ``tensorboard_log`` was given and TensorBoard is not installed
        """
        if self.tensorboard_log is not None:
            require("tensorboard", "extra", "tensorboard_log")
        name = type(self).__name__ if tb_log_name is None else tb_log_name
        super().learn(total_timesteps, callback, log_interval, name, reset_num_timesteps, progress_bar)
        return self

    def train(self, gradient_steps: int, batch_size: int | None = None) -> None:
        """
        Draw, update the networks, hand the TD errors back.

        :param gradient_steps: number of updates
        :param batch_size: transitions per update; ``None``: that of the constructor
        """
        buffer = self.replay_buffer
        self._require_prioritized(type(buffer))
        # Dropout and batch norm behave differently while training.
        self.policy.set_training_mode(True)
        optimizers = self._optimizers()
        self._update_learning_rate(optimizers)
        for optimizer in optimizers:
            _step_together(optimizer)
        if self._progress_is_current:
            buffer.update_beta(self._current_progress_remaining)

        means = _Means()
        arguments: dict[str, Any] = {"env": self._vec_normalize_env}
        for gradient_step in range(gradient_steps):
            self._n_updates += 1
            if buffer.settings.recency < 1.0 and gradient_steps > 1:
                arguments["position"] = (gradient_step + 1) / gradient_steps
            batch = buffer.sample(self.batch_size if batch_size is None else batch_size, **arguments)
            td_errors, metrics = self._gradient_step(batch, gradient_step)
            n_written = buffer.update_priorities(batch.indices, td_errors)
            if n_written is not None:  # a user's own may not say
                self._n_stale_updates += len(batch.indices) - n_written
            means.add(batch.weights, metrics)

        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        if gradient_steps > 0:
            for name, value in means.compute().items():
                self.logger.record(name, value)
            self.logger.record("per/beta", buffer.beta)
            self.logger.record("per/max_priority", buffer.max_priority)
            if isinstance(buffer.scheme, LAP) and buffer.scheme.kappa_is_auto:
                self.logger.record("per/kappa", buffer.scheme.kappa)

    def _setup_learn(self, *args: Any, **kwargs: Any) -> tuple[int, BaseCallback]:
        buffer, last_obs = self.replay_buffer, self._last_obs
        if buffer is not None:
            self._require_prioritized(type(buffer))
        prepared = super()._setup_learn(*args, **kwargs)
        if buffer is not None and not (self._last_obs is last_obs and buffer is self._continued_buffer):
            # The environments were reset, or the buffer is of another run: what comes does not follow its newest step.
            buffer.end_episodes()
        self._continued_buffer, self._progress_is_current = buffer, True
        return prepared

    # ---- the buffer

    def _setup_model(self) -> None:
        saved_beta = self._restore_settings()
        if self.replay_buffer_kwargs.get("frames") == "auto":
            # Into a dictionary of its own, the caller's is never written to; saved, so that it need not be found again.
            self.replay_buffer_kwargs = {**self.replay_buffer_kwargs, "frames": self._frames_of_env()}
        if self.replay_buffer_class is None:
            self.replay_buffer_class = self._default_buffer_class()
        self._require_prioritized(self.replay_buffer_class)
        if self.replay_buffer is None:
            self.replay_buffer = self._make_buffer()
        self._require_supported(self.replay_buffer)
        self.replay_buffer.beta = max(self.replay_buffer.beta, saved_beta)
        with warnings.catch_warnings():
            # SB3 ignores `n_steps` for a buffer class that it does not know, and says so. Ours has received it.
            warnings.filterwarnings("ignore", message=f"`n_steps={self.n_steps}` is ignored")
            super()._setup_model()

    def _make_buffer(self) -> PrioritizedReplayBuffer:
        assert self.replay_buffer_class is not None and issubclass(self.replay_buffer_class, PrioritizedReplayBuffer)
        return self.replay_buffer_class(
            self.buffer_size,
            self.observation_space,
            self.action_space,
            device=self.device,
            n_envs=self.n_envs,
            optimize_memory_usage=self.optimize_memory_usage,
            **self._buffer_kwargs(),
        )

    def _require_prioritized(self, buffer_class: type[ReplayBuffer]) -> None:
        if not issubclass(buffer_class, PrioritizedReplayBuffer):
            ours = prioritized_class_of(buffer_class)
            raise ValueError(
                f"{type(self).__name__} needs a prioritized replay buffer, and {buffer_class.__name__} is not: "
                f"use {'a subclass of PrioritizedReplayBuffer' if ours is None else ours.__name__}"
                + ("" if ours is not None and issubclass(ours, HerReplayBuffer) else ", or replay_buffer_class=None")
            )

    def _require_supported(self, buffer: PrioritizedReplayBuffer) -> None:
        if buffer.scheme.replaces_loss and not self.has_scalar_td_loss:
            raise NotImplementedError(
                f"{type(self).__name__} with {buffer.scheme} is not supported: the scheme replaces the loss of a scalar TD "
                f"error, and this algorithm regresses quantiles. Use the proportional, rank or uniform scheme"
            )

        if isinstance(buffer, PrioritizedSequenceReplayBuffer) and not self.learns_from_sequences:
            raise NotImplementedError(
                f"{type(self).__name__} with {type(buffer).__name__} is not supported: it has no memory, and learns from "
                "single transitions"
            )

        if buffer.settings.actor_batch != "prioritized" and not self.has_actor:
            raise NotImplementedError(
                f"{type(self).__name__} with actor_batch={buffer.settings.actor_batch!r} is not supported: it has no actor"
            )

    def _default_buffer_class(self) -> type[PrioritizedReplayBuffer]:
        return PrioritizedDictReplayBuffer if isinstance(self.observation_space, spaces.Dict) else PrioritizedReplayBuffer

    def _frames_of_env(self) -> int | dict[str, int]:
        """
        :return: number of frames that the environment stacks; for Dict observations by key, all but goals
        :raises ValueError: if it does not stack frames
        """
        stack = None if self.env is None else unwrap_vec_wrapper(self.env, VecFrameStack)
        if stack is None:
            raise ValueError(
                "frames='auto' found no VecFrameStack in the environment: write the number of frames in an observation, e.g. "
                "frames=4 for FrameStackObservation(env, 4), or frames=1 where none are stacked"
            )
        n_frames = int(stack.stacked_obs.n_stack)
        if not isinstance(self.observation_space, spaces.Dict):
            return n_frames
        parts = self.observation_space.spaces.items()
        return {key: n_frames for key, part in parts if isinstance(part, spaces.Box) and key not in GOALS}

    def _buffer_kwargs(self) -> dict[str, Any]:
        """
        :return: keyword arguments of the buffer, in a dictionary of their own: the caller's is never written to
        """
        buffer_kwargs = {"n_steps": self.n_steps, "gamma": self.gamma, **self.replay_buffer_kwargs}
        if issubclass(self.replay_buffer_class or ReplayBuffer, HerReplayBuffer):
            # In here and not in the attribute: environments are not saved.
            assert self.env is not None, "HER needs an environment: pass one to the constructor or to load()"
            buffer_kwargs["env"] = self.env
        if self.n_steps > 1 and buffer_kwargs["n_steps"] != self.n_steps:
            raise ValueError(f"n_steps={self.n_steps} contradicts replay_buffer_kwargs={self.replay_buffer_kwargs}")
        return buffer_kwargs


class _Means:
    """
    Means over the gradient steps of one call of ``train``. The numbers stay on their device, where nobody waits for them after
    every step, until there are many: then they are added up, so that memory is bounded.
    """

    _MANY = 128

    def __init__(self) -> None:
        self._waiting: dict[str, list[th.Tensor]] = defaultdict(list)
        self._weights: list[th.Tensor] = []
        # Sum and number of the values, by name.
        self._sums: dict[str, tuple[float, int]] = defaultdict(lambda: (0.0, 0))

    def add(self, weights: th.Tensor, metrics: dict[str, th.Tensor]) -> None:
        """
        :param weights: importance-sampling weights, shape (batch_size, 1)
        :param metrics: scalars to log
        """
        self._weights.append(weights)
        for name, value in metrics.items():
            self._waiting[name].append(value.detach())
        if len(self._weights) == self._MANY:
            self._add_up()

    def compute(self) -> dict[str, float]:
        """
        :return: means, by the names that they are logged under
        """
        self._add_up()
        return {name: total / count for name, (total, count) in self._sums.items()}

    def _add_up(self) -> None:
        for name, values in self._waiting.items():
            self._extend(name if "/" in name else f"train/{name}", [value.item() for value in values])
        if self._weights:
            first = self._weights[0]
            weights = (first if len(self._weights) == 1 else th.cat(self._weights, dim=1)).cpu().numpy()
            totals = np.add.reduce(weights)
            self._extend("per/mean_weight", totals / len(weights))
            # Kish: (sum w)^2 / sum w^2, here as a fraction of the batch; 1 if all weights are equal.
            effective_sizes = np.square(totals) / (np.add.reduce(weights * weights) * len(weights))
            self._extend("per/effective_sample_size", effective_sizes)
        self._waiting.clear()
        self._weights.clear()

    def _extend(self, name: str, values: Any) -> None:
        total, count = self._sums[name]
        self._sums[name] = (total + float(np.sum(values, dtype=np.float64)), count + len(values))


def weighted_mean(values: th.Tensor, weights: th.Tensor | None) -> th.Tensor:
    """
    :param values: shape (batch_size, 1)
    :param weights: of mean 1, in the same shape; ``None``: all equal
    :return: their mean
    """
    return values.mean() if weights is None else (weights * values).mean()


def minimise(loss: th.Tensor, optimizer: th.optim.Optimizer, max_grad_norm: float | None = None) -> None:
    """
    One step of an optimizer.

    :param loss: scalar
    :param optimizer: of the parameters to change
    :param max_grad_norm: clip the norm of the gradient; ``None``: do not
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    optimizer.zero_grad()
    loss.backward()
    if max_grad_norm is not None:
        th.nn.utils.clip_grad_norm_(parameters, max_grad_norm)
    optimizer.step()


def _step_together(optimizer: th.optim.Optimizer) -> None:
    """
    Step all parameters in a few calls, not one after the other; the numbers are the same. By itself PyTorch does so on GPUs.

    :param optimizer: left as it is where its constructor was told which way to go
    """
    for group in optimizer.param_groups:
        if "foreach" in group and group["foreach"] is None and not group.get("fused"):
            group["foreach"] = True


@contextlib.contextmanager
def frozen(optimizer: th.optim.Optimizer) -> Iterator[None]:
    """
    What is computed in here has no gradient with respect to the parameters of an optimizer, but goes through them. The loss of
    an actor leads through the critic, whose own gradient nobody uses then, and which takes half of the time on the way back.

    :param optimizer: of the parameters to leave out
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


def polyak_update(parameters: Iterable[th.Tensor], targets: Iterable[th.Tensor], tau: float) -> None:
    """
    Move targets towards parameters by the fraction tau. The same numbers as SB3's, in two calls for all tensors together.

    :param parameters: of the network
    :param targets: of the target network
    :param tau: 1 copies
    """
    target_list = [target.detach() for target in targets]
    if target_list:
        th._foreach_mul_(target_list, 1 - tau)
        th._foreach_add_(target_list, [parameter.detach() for parameter in parameters], alpha=tau)
