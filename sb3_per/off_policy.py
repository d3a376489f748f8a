"""
The mixin that ties an SB3 off-policy algorithm to a prioritized buffer: one training loop, the buffer, checkpoints.

It stands left of the algorithm, ``class PERSAC(PrioritizedOffPolicyMixin, SAC)``, and knows neither networks nor losses: an
algorithm brings its gradient step, :meth:`PrioritizedOffPolicyMixin._gradient_step`.
"""

import contextlib
import copy
import inspect
import io
import pathlib
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.save_util import data_to_json, json_to_data
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per.buffers import (
    PrioritizedDictReplayBuffer,
    PrioritizedHerReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedReplayBufferSamples,
)


def _keywords(function: Callable[..., None]) -> dict[str, inspect.Parameter]:
    """Keyword-only parameters of a function, by name."""
    parameters = inspect.signature(function).parameters
    return {name: parameter for name, parameter in parameters.items() if parameter.kind is inspect.Parameter.KEYWORD_ONLY}


SelfMixin = TypeVar("SelfMixin", bound="PrioritizedOffPolicyMixin")
_Init = TypeVar("_Init", bound=Callable[..., None])

# What a checkpoint of a stock algorithm names, and what takes its place here.
_PRIORITIZED_CLASSES: dict[type[ReplayBuffer], type[PrioritizedReplayBuffer]] = {
    ReplayBuffer: PrioritizedReplayBuffer,
    NStepReplayBuffer: PrioritizedReplayBuffer,
    DictReplayBuffer: PrioritizedDictReplayBuffer,
    HerReplayBuffer: PrioritizedHerReplayBuffer,
}

# The keyword arguments that SB3's buffers do not have.
_PRIORITIZED_SETTINGS = frozenset(_keywords(PrioritizedReplayBuffer.__init__) | _keywords(PrioritizedHerReplayBuffer.__init__))


class PrioritizedOffPolicyMixin(OffPolicyAlgorithm):
    """
    Prioritized experience replay for an off-policy algorithm of SB3 or sb3-contrib.

    The constructor stays that of the algorithm. ``replay_buffer_class=None`` picks the prioritized buffer that fits the
    observation space, ``replay_buffer_kwargs`` configures it (see
    :class:`~sb3_per.buffers.PrioritizedReplayBuffer`), and ``n_steps`` reaches it.

    A subclass implements :meth:`_optimizers` and :meth:`_gradient_step`.

    :raises ValueError: at construction, for a ``replay_buffer_class`` that is not prioritized, or an ``n_steps`` that
        contradicts the one in ``replay_buffer_kwargs``
    """

    replay_buffer: PrioritizedReplayBuffer

    #: Whether the loss is one of scalar TD errors, which LAP and PAL replace by their own.
    has_scalar_td_loss: ClassVar[bool] = True

    # ---- what an algorithm brings

    def _optimizers(self) -> list[th.optim.Optimizer]:
        """
        :return: the optimizers whose learning rate follows the schedule
        """
        raise NotImplementedError

    def _gradient_step(
        self, batch: PrioritizedReplayBufferSamples, gradient_step: int
    ) -> tuple[th.Tensor, dict[str, th.Tensor]]:
        """
        One update of the networks. The loss of the value networks is
        ``self.replay_buffer.scheme.loss(losses, td_errors, batch.weights)``.

        :param batch: the drawn transitions
        :param gradient_step: number of this step within the current call of :meth:`train`, from 0
        :return: signed TD errors, unweighted, of shape (batch_size, n_critics), on any device; and scalar tensors to log,
            e.g. ``{"critic_loss": loss}``, averaged over the gradient steps that bring them
        """
        raise NotImplementedError

    def _td_target(self, batch: PrioritizedReplayBufferSamples, next_values: th.Tensor) -> th.Tensor:
        """
        :param batch: the drawn transitions
        :param next_values: value of the observations behind them, shape (batch_size, n)
        :return: rewards + discount * value, no value behind a terminal state, shape (batch_size, n)
        """
        discounts = self.gamma if batch.discounts is None else batch.discounts
        return batch.rewards + (1 - batch.dones) * discounts * next_values

    # ---- the loop

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
        buffer.update_beta(self._current_progress_remaining)

        history: dict[str, list[th.Tensor]] = defaultdict(list)
        weights: list[th.Tensor] = []
        for gradient_step in range(gradient_steps):
            self._n_updates += 1
            batch = buffer.sample(self.batch_size if batch_size is None else batch_size, env=self._vec_normalize_env)
            td_errors, metrics = self._gradient_step(batch, gradient_step)
            buffer.update_priorities(batch.indices, td_errors)

            weights.append(batch.weights)
            for name, value in metrics.items():
                history[name].append(value.detach())

        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        for name, values in history.items():
            self.logger.record(f"train/{name}", np.mean([value.item() for value in values]))
        if gradient_steps > 0:
            self._log_prioritization((weights[0] if len(weights) == 1 else th.cat(weights, dim=1)).cpu().numpy())

    def _log_prioritization(self, weights: np.ndarray) -> None:
        """
        :param weights: importance-sampling weights of a call of :meth:`train`, shape (batch_size, gradient_steps)
        """
        # Kish: (sum w)^2 / sum w^2, here as a fraction of the batch; 1 if all weights are equal.
        totals = np.add.reduce(weights)
        effective_sample_size = np.square(totals) / (np.add.reduce(weights * weights) * len(weights))
        self.logger.record("per/beta", self.replay_buffer.beta)
        self.logger.record("per/max_priority", self.replay_buffer.max_priority)
        self.logger.record("per/mean_weight", float(totals.sum()) / weights.size)
        self.logger.record("per/effective_sample_size", float(effective_sample_size.sum()) / weights.shape[1])

    # ---- the buffer

    def _setup_model(self) -> None:
        saved_beta = self._restore_settings()
        if self.replay_buffer_class is None:
            self.replay_buffer_class = self._default_buffer_class()
        self._require_prioritized(self.replay_buffer_class)
        buffer_kwargs = self._buffer_kwargs()
        if self.replay_buffer is None:
            self.replay_buffer = self.replay_buffer_class(
                self.buffer_size,
                self.observation_space,
                self.action_space,
                device=self.device,
                n_envs=self.n_envs,
                optimize_memory_usage=self.optimize_memory_usage,
                **buffer_kwargs,
            )
        self._require_supported(self.replay_buffer)
        self.replay_buffer.beta = max(self.replay_buffer.beta, saved_beta)
        with warnings.catch_warnings():
            # SB3 ignores `n_steps` for a buffer class that it does not know, and says so. Ours has received it.
            warnings.filterwarnings("ignore", message=f"`n_steps={self.n_steps}` is ignored")
            super()._setup_model()

    def _require_prioritized(self, buffer_class: type[ReplayBuffer]) -> None:
        if not issubclass(buffer_class, PrioritizedReplayBuffer):
            raise ValueError(
                f"{type(self).__name__} needs a prioritized replay buffer, and {buffer_class.__name__} is not: "
                f"use replay_buffer_class=None or a subclass of PrioritizedReplayBuffer"
            )

    def _require_supported(self, buffer: PrioritizedReplayBuffer) -> None:
        if buffer.scheme.replaces_loss and not self.has_scalar_td_loss:
            raise NotImplementedError(
                f"{type(self).__name__} with {buffer.scheme} is not supported: the scheme replaces the loss of a scalar TD "
                f"error, and this algorithm regresses quantiles. Use the proportional, rank or uniform scheme"
            )

    def _beta(self) -> float:
        """Exponent reached so far; 0 if the buffer was deleted to save memory, as SB3 allows."""
        buffer = getattr(self, "replay_buffer", None)
        return 0.0 if buffer is None else float(buffer.beta)

    def _default_buffer_class(self) -> type[PrioritizedReplayBuffer]:
        return PrioritizedDictReplayBuffer if isinstance(self.observation_space, spaces.Dict) else PrioritizedReplayBuffer

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

    def load_replay_buffer(self, path: str | pathlib.Path | io.BufferedIOBase, truncate_last_traj: bool = True) -> None:
        """
        See SB3. A prioritized buffer comes back with its priorities, ids, beta and maximum; a plain SB3 buffer becomes a
        prioritized one with the settings of this model, without copying its data.

        :param path: path to the pickled buffer
        :param truncate_last_traj: for HER, whether the last trajectory was finished
        """
        previous, beta = getattr(self, "replay_buffer", None), self._beta()
        super().load_replay_buffer(path, truncate_last_traj)
        loaded = self.replay_buffer
        try:
            if not isinstance(loaded, PrioritizedReplayBuffer):
                assert self.replay_buffer_class is not None and issubclass(self.replay_buffer_class, PrioritizedReplayBuffer)
                loaded = self.replay_buffer_class.from_replay_buffer(loaded, **self._buffer_kwargs())
                loaded.beta = max(loaded.beta, beta)
            self._require_supported(loaded)
        except Exception:
            vars(self)["replay_buffer"] = previous
            raise
        self.replay_buffer = loaded

    # ---- checkpoints

    def save(
        self,
        path: str | pathlib.Path | io.BufferedIOBase,
        exclude: Iterable[str] | None = None,
        include: Iterable[str] | None = None,
    ) -> None:
        """
        See SB3. The zip also loads as the stock algorithm: what SB3 cannot read travels under a name of its own.

        :param path: path of the zip file
        :param exclude: names of attributes to leave out in addition
        :param include: names of attributes to write nevertheless
        """
        checkpoint = copy.copy(self)
        settings = {k: v for k, v in self.replay_buffer_kwargs.items() if k in _PRIORITIZED_SETTINGS}
        if self.replay_buffer_class is PrioritizedHerReplayBuffer:
            checkpoint.replay_buffer_class = HerReplayBuffer
        checkpoint.replay_buffer_kwargs = {k: v for k, v in self.replay_buffer_kwargs.items() if k not in settings}
        # One string: SB3 unpickles what is not JSON, and a scheme object could only be unpickled where this package is.
        vars(checkpoint)["prioritized_replay"] = data_to_json({"settings": settings, "beta": self._beta()})
        super(PrioritizedOffPolicyMixin, checkpoint).save(path, exclude, include)

    def _excluded_save_params(self) -> list[str]:
        excluded = super()._excluded_save_params()
        if self.replay_buffer_class is self._default_buffer_class():
            return [*excluded, "replay_buffer_class"]
        return excluded

    @classmethod
    def load(
        cls: type[SelfMixin],
        path: str | pathlib.Path | io.BufferedIOBase,
        env: GymEnv | None = None,
        device: th.device | str = "auto",
        custom_objects: dict[str, Any] | None = None,
        print_system_info: bool = False,
        force_reset: bool = True,
        **kwargs: Any,
    ) -> SelfMixin:
        """
        See SB3. Also loads a zip of the stock algorithm.

        :param path: path of the zip file
        :param env: environment to go on with
        :param device: device of the networks
        :param custom_objects: objects that replace those of the zip
        :param print_system_info: print the system info of the zip and the current one
        :param force_reset: reset the environment before training
        :param kwargs: attributes to change
        :return: the model
        """
        replaced = {*kwargs, *(custom_objects or {})}
        # Attributes for `_setup_model`, which SB3 calls once the zip is read.
        kwargs["_buffer_class_is_saved"] = "replay_buffer_class" not in replaced
        if "replay_buffer_kwargs" in replaced:
            kwargs["prioritized_replay"] = None
        return super().load(path, env, device, custom_objects, print_system_info, force_reset, **kwargs)

    def _restore_settings(self) -> float:
        """
        Translate what a checkpoint has put into the attributes: SB3's buffer class, and the prioritized settings.

        :return: the beta that the saved run had reached
        """
        if vars(self).pop("_buffer_class_is_saved", False) and self.replay_buffer_class in _PRIORITIZED_CLASSES:
            if self.replay_buffer_class is NStepReplayBuffer and self.n_steps > 1:
                # Written by SB3 from the algorithm's own `n_steps` and `gamma`, which may have been changed by `load`.
                stock = self.replay_buffer_kwargs
                self.replay_buffer_kwargs = {k: v for k, v in stock.items() if k not in ("n_steps", "gamma")}
            self.replay_buffer_class = _PRIORITIZED_CLASSES[self.replay_buffer_class]
        saved = vars(self).pop("prioritized_replay", None)
        if saved is None:
            return 0.0
        saved = json_to_data(saved)
        self.replay_buffer_kwargs = {**self.replay_buffer_kwargs, **saved["settings"]}
        return float(saved["beta"])


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


def extends_signature(stock_init: Callable[..., None]) -> Callable[[_Init], _Init]:
    """
    Show help and editors the arguments of the stock constructor, and behind them the keywords that the decorated one adds.

    :param stock_init: constructor that receives ``*args`` and ``**kwargs``
    :return: the decorator
    """

    def decorate(init: _Init) -> _Init:
        stock = inspect.signature(stock_init)
        parameters = [*stock.parameters.values(), *_keywords(init).values()]
        init.__signature__ = stock.replace(parameters=parameters)  # type: ignore[attr-defined]
        return init

    return decorate
