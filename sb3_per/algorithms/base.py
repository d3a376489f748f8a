"""
The training loop of all prioritized algorithms, and their choice of a buffer.

Write the mixin left of the stock algorithm: ``class PERSAC(PrioritizedOffPolicyMixin, SAC)``. The algorithm implements
``_value_losses`` and ``_gradient_step``.
"""

import warnings
from collections import defaultdict
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.save_util import recursive_getattr
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, unwrap_vec_wrapper
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per.algorithms.acting import ActingMixin
from sb3_per.algorithms.constructors import require_arguments, require_order, signature_of
from sb3_per.algorithms.demonstrations import PretrainingMixin, demonstration_metrics
from sb3_per.algorithms.optimizers import step_together
from sb3_per.buffers import (
    PrioritizedDictReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedReplayBufferSamples,
    PrioritizedSequenceReplayBuffer,
)
from sb3_per.persistence.model_zip import PRIORITIZED_CLASSES, CheckpointMixin
from sb3_per.storage.frames import GOALS


class PrioritizedOffPolicyMixin(PretrainingMixin, ActingMixin, CheckpointMixin):
    """
    Prioritized experience replay for an off-policy algorithm of SB3 or sb3-contrib.

    The constructor is that of the stock algorithm. ``replay_buffer_class=None`` picks the prioritized buffer that fits the
    observation space, and a buffer class of SB3 is replaced by its prioritized counterpart. ``replay_buffer_kwargs``
    configures the buffer, see :class:`~sb3_per.buffers.PrioritizedReplayBuffer`; ``n_steps`` and ``gamma`` reach it too.

    :raises TypeError: for an unknown keyword, or if the stock algorithm stands left of this class
    :raises ValueError: for any other ``replay_buffer_class`` that is not prioritized, or an ``n_steps`` that contradicts the
        one in ``replay_buffer_kwargs``
    """

    replay_buffer: PrioritizedReplayBuffer

    #: Whether the loss is one of scalar TD errors, which LAP and PAL replace by their own.
    has_scalar_td_loss: ClassVar[bool] = True

    #: Arguments of the stock constructor that have another default here.
    defaults: ClassVar[dict[str, Any]] = {}

    # The buffer whose newest step comes right before `_last_obs`.
    _continued_buffer: PrioritizedReplayBuffer | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.__signature__ = signature_of(cls, cls.defaults)  # type: ignore[attr-defined]

    # Type checkers must look past this class, at the constructor of the stock algorithm.
    if not TYPE_CHECKING:

        def __new__(cls, *args, **kwargs):  # noqa: D102
            require_order(cls, PrioritizedOffPolicyMixin)
            require_arguments(cls, kwargs)
            return super().__new__(cls)

    # ---- what an algorithm brings

    def _value_losses(self, batch: PrioritizedReplayBufferSamples) -> tuple[th.Tensor, th.Tensor]:
        """
        Compute the losses of the value networks. Nothing changes but random generators and statistics of batch normalization.

        :param batch: drawn transitions
        :return: the algorithm's own unreduced loss, shape (batch_size, n), and signed unweighted TD errors, target minus
            estimate, shape (batch_size, n_critics), both with gradient
        """
        raise NotImplementedError(f"{type(self).__name__} must implement _value_losses(), which returns losses and TD errors")

    def _gradient_step(
        self, batch: PrioritizedReplayBufferSamples, gradient_step: int
    ) -> tuple[th.Tensor, dict[str, th.Tensor]]:
        """
        Update the networks once. The loss of the value networks is :meth:`_value_loss`.

        :param batch: drawn transitions
        :param gradient_step: number of this step within the current call of :meth:`train`, from 0
        :return: signed unweighted TD errors of shape (batch_size, n_critics), on any device; and scalar tensors to log, e.g.
            ``{"critic_loss": loss}``. The log shows their means over the gradient steps
        """
        raise NotImplementedError

    # ---- what an algorithm may use

    def _value_loss(self, batch: PrioritizedReplayBufferSamples) -> tuple[th.Tensor, th.Tensor]:
        """
        Compute the loss of the value networks by the scheme.

        :param batch: drawn transitions
        :return: loss, a scalar, and the TD errors, shape (batch_size, n_critics)
        """
        losses, td_errors = self._value_losses(batch)
        return self.replay_buffer.scheme.loss(losses, td_errors, batch.weights), td_errors

    def _td_target(self, batch: PrioritizedReplayBufferSamples, next_values: th.Tensor) -> th.Tensor:
        """
        Compute the targets of the value networks.

        :param batch: drawn transitions
        :param next_values: values of the next observations, shape (batch_size, n)
        :return: reward + discount * next value, or the reward alone at a terminal state, shape (batch_size, n)
        """
        discounts = self.gamma if batch.discounts is None else batch.discounts
        return batch.rewards + (1 - batch.dones) * discounts * next_values

    def _actor_batch(self, batch: PrioritizedReplayBufferSamples) -> tuple[Any, th.Tensor | float]:
        """
        Choose what the actor learns from, by the setting ``actor_batch``.

        The batch of the critics is full of large TD errors. The critics are wrong there, and so is the gradient that they
        give the actor (arXiv 2209.00532).

        :param batch: batch of the critics
        :return: observations, and weights of mean 1, shape (batch_size, 1), or 1.0 if all are equal
        """
        buffer = self.replay_buffer
        if buffer.settings.actor_batch == "uniform":
            return buffer.sample_observations(len(batch.indices), env=self._vec_normalize_env), 1.0
        if buffer.settings.actor_batch == "prioritized":
            return batch.observations, 1.0
        assert batch.n_p is not None, "A batch that was made by hand has no probabilities"
        weights = 1.0 / batch.n_p
        return batch.observations, buffer.to_torch((weights / weights.mean()).astype(np.float32).reshape(-1, 1))

    def td_errors(self, batch: PrioritizedReplayBufferSamples) -> th.Tensor:
        """
        Compute TD errors without an update, with the code of a gradient step. Only random generators change.

        :param batch: transitions, drawn or made by hand
        :return: signed TD errors without gradient, shape (batch_size, n_critics)
        """
        statistics = [(buffer, buffer.clone()) for buffer in self.policy.buffers()]
        with th.no_grad():
            td_errors = self._value_losses(batch)[1]
            for buffer, before in statistics:
                buffer.copy_(before)
        return td_errors

    def _optimizers(self) -> list[th.optim.Optimizer]:
        """List the optimizers, which are saved with the model. Their learning rate follows the schedule."""
        names = self._get_torch_save_params()[0]
        return [recursive_getattr(self, name) for name in names if name.endswith("optimizer")]

    # ---- the loop

    def train(self, gradient_steps: int, batch_size: int | None = None) -> None:
        """
        Repeat: draw a batch, update the networks, update the priorities.

        :param gradient_steps: number of updates
        :param batch_size: number of transitions of an update; ``None``: that of the constructor
        """
        buffer = self.replay_buffer
        # Dropout and batch norm behave differently while training.
        self.policy.set_training_mode(True)
        optimizers = self._optimizers()
        self._update_learning_rate(optimizers)
        for optimizer in optimizers:
            step_together(optimizer)
        if self._progress_is_current:
            buffer.update_beta(self._current_progress_remaining)

        weights, metrics = [], defaultdict(list)
        arguments: dict[str, Any] = {"env": self._vec_normalize_env}
        for gradient_step in range(gradient_steps):
            self._n_updates += 1
            if buffer.settings.recency < 1.0 and gradient_steps > 1:
                arguments["position"] = (gradient_step + 1) / gradient_steps
            batch = buffer.sample(self.batch_size if batch_size is None else batch_size, **arguments)
            td_errors, of_step = self._gradient_step(batch, gradient_step)
            n_written = buffer.update_priorities(batch.indices, td_errors)
            if n_written is not None:  # a buffer of the user's own may return nothing
                self.n_stale_updates += len(batch.indices) - n_written
            weights.append(batch.weights)
            if batch.is_demonstration is not None:
                of_step |= demonstration_metrics(buffer, batch.is_demonstration, td_errors)
            for name, value in of_step.items():
                metrics[name if "/" in name else f"train/{name}"].append(value.detach())

        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        for name, values in metrics.items():
            self.logger.record(name, sum(value.item() for value in values) / len(values))
        if weights:  # in one go: small operations at every step would slow training down
            for name, number in weight_metrics(th.cat(weights, dim=1).cpu().numpy()).items():
                self.logger.record(name, number)
        self.logger.record("per/beta", buffer.beta)
        self.logger.record("per/max_priority", buffer.max_priority)

    def _setup_learn(self, *args: Any, **kwargs: Any) -> tuple[int, BaseCallback]:
        buffer, last_obs = self.replay_buffer, self._last_obs
        if buffer is not None:
            self._require_prioritized(type(buffer))
        prepared = super()._setup_learn(*args, **kwargs)
        if buffer is not None and not (self._last_obs is last_obs and buffer is self._continued_buffer):
            # The environments were reset, or the buffer is of another run: the next step does not follow its newest one.
            buffer.end_episodes()
        self._continued_buffer, self._progress_is_current = buffer, True
        return prepared

    # ---- the buffer

    def _setup_model(self) -> None:
        saved_beta = self._restore_settings()
        if self.replay_buffer_kwargs.get("frames") == "auto":
            # In a new dictionary, since the caller's must not change. Saved with the model.
            self.replay_buffer_kwargs = self.replay_buffer_kwargs | {"frames": frames_of_env(self.env, self.observation_space)}
        # A class of SB3 is replaced by its prioritized counterpart.
        buffer_class = self.replay_buffer_class or ReplayBuffer
        ours = PRIORITIZED_CLASSES.get(buffer_class)
        if ours is not None:
            buffer_class = ours if issubclass(ours, HerReplayBuffer) else self._default_buffer_class()
        self.replay_buffer_class = buffer_class
        self._require_prioritized(self.replay_buffer_class)
        if self.replay_buffer is None:
            self.replay_buffer = self._make_buffer()
        self.replay_buffer.beta = max(self.replay_buffer.beta, saved_beta)
        with warnings.catch_warnings():
            # SB3 warns that it ignores `n_steps` for a buffer class that it does not know. Ours has received it.
            warnings.filterwarnings("ignore", message=f"`n_steps={self.n_steps}` is ignored")
            super()._setup_model()
        self._require_supported(self.replay_buffer)

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
            raise ValueError(
                f"{type(self).__name__} needs a prioritized replay buffer, and {buffer_class.__name__} is not: use a subclass "
                "of PrioritizedReplayBuffer, or replay_buffer_class=None"
            )

    def _require_supported(self, buffer: PrioritizedReplayBuffer) -> None:
        if buffer.scheme.replaces_loss and not self.has_scalar_td_loss:
            raise NotImplementedError(
                f"{type(self).__name__} with {buffer.scheme} is not supported: the scheme replaces the loss of a scalar TD "
                f"error, and this algorithm regresses quantiles. Use the proportional, rank or uniform scheme"
            )
        is_recurrent = issubclass(self._default_buffer_class(), PrioritizedSequenceReplayBuffer)
        if isinstance(buffer, PrioritizedSequenceReplayBuffer) and not is_recurrent:
            raise NotImplementedError(
                f"{type(self).__name__} with {type(buffer).__name__} is not supported: it is not recurrent and learns from "
                "single transitions. Use a recurrent algorithm, such as PERRecurrentDQN"
            )
        if buffer.settings.actor_batch != "prioritized" and not hasattr(self.policy, "actor"):
            raise NotImplementedError(
                f"{type(self).__name__} with actor_batch={buffer.settings.actor_batch!r} is not supported: it has no "
                "actor. Leave the setting out"
            )

    def _default_buffer_class(self) -> type[PrioritizedReplayBuffer]:
        return PrioritizedDictReplayBuffer if isinstance(self.observation_space, spaces.Dict) else PrioritizedReplayBuffer

    def _buffer_kwargs(self) -> dict[str, Any]:
        """Collect the keyword arguments of the buffer in a new dictionary."""
        buffer_kwargs = {"n_steps": self.n_steps, "gamma": self.gamma, **self.replay_buffer_kwargs}
        if issubclass(self.replay_buffer_class or ReplayBuffer, HerReplayBuffer):
            # Not in the attribute, which is saved: environments are not.
            assert self.env is not None, "HER needs an environment: pass one to the constructor or to load()"
            buffer_kwargs["env"] = self.env
        if self.n_steps > 1 and buffer_kwargs["n_steps"] != self.n_steps:
            raise ValueError(f"n_steps={self.n_steps} contradicts replay_buffer_kwargs={self.replay_buffer_kwargs}")
        return buffer_kwargs


def frames_of_env(env: VecEnv | None, space: spaces.Space) -> int | dict[str, int]:
    """
    Find the number of frames that an environment stacks.

    :param env: environment of a model
    :param space: its observations
    :return: number of frames; for Dict observations by key, without goals
    :raises ValueError: if the environment has no ``VecFrameStack``
    """
    stack = None if env is None else unwrap_vec_wrapper(env, VecFrameStack)
    if stack is None:
        raise ValueError(
            "frames='auto' found no VecFrameStack in the environment: give the number of frames in an observation, e.g. "
            "frames=4 for FrameStackObservation(env, 4), or frames=1 if none are stacked"
        )
    n_frames = int(stack.stacked_obs.n_stack)
    if not isinstance(space, spaces.Dict):
        return n_frames
    return {key: n_frames for key, part in space.spaces.items() if isinstance(part, spaces.Box) and key not in GOALS}


def weight_metrics(weights: np.ndarray) -> dict[str, float]:
    """
    Summarize importance-sampling weights for the log.

    :param weights: float32 array of shape (batch_size, n_batches)
    :return: means over the batches, by name; the effective sample size is Kish's (sum w)^2 / sum w^2 as a fraction of the
        batch, 1 if all weights are equal
    """
    totals = weights.sum(axis=0)
    effective_sizes = np.square(totals) / (np.square(weights).sum(axis=0) * len(weights))
    return {
        "per/mean_weight": float(totals.sum(dtype=np.float64)) / weights.size,
        "per/effective_sample_size": float(effective_sizes.sum(dtype=np.float64)) / len(totals),
    }
