"""Choose the class and the settings of an algorithm's buffer, and refuse combinations that are not supported."""

import warnings
from typing import Any, ClassVar

from gymnasium import spaces
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.preprocessing import get_action_dim, get_obs_shape
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per.buffers import (
    PRIORITIZED_CLASSES,
    PrioritizedDictReplayBuffer,
    PrioritizedHerReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedSequenceReplayBuffer,
)
from sb3_per.buffers.settings import PrioritySettings
from sb3_per.storage.frame_setting import frames_of_env, require_stack_of_env
from sb3_per.utils.checks import Reasons, refuse


class BufferChoiceMixin(OffPolicyAlgorithm):
    """Choose the buffer that fits an algorithm, and check it."""

    #: Arguments of the algorithm that are settings of its buffer, with the default that ``replay_buffer_kwargs`` may replace.
    buffer_arguments: ClassVar[dict[str, Any]] = {"n_steps": PrioritySettings.n_steps, "gamma": PrioritySettings.gamma}

    #: Whether the loss is one of scalar TD errors, which LAP and PAL replace by their own.
    has_scalar_td_loss: ClassVar[bool] = True

    #: Whether a network other than the critics chooses actions.
    has_actor: ClassVar[bool] = True

    # Whether the newest step in the buffer comes right before `_last_obs`.
    _buffer_continues = False

    @property
    def replay_buffer(self) -> PrioritizedReplayBuffer:
        """
        The prioritized buffer.

        A buffer of SB3 that is assigned becomes prioritized: exactly its classes ``ReplayBuffer``, ``DictReplayBuffer``,
        ``NStepReplayBuffer`` and ``HerReplayBuffer``. It gets the settings of the model and shares its arrays, but not its
        position. So add further transitions to ``model.replay_buffer``, not to the buffer that was assigned.

        :raises ValueError: for any other class, or a buffer of another shape. Nothing changes then
        :raises NotImplementedError: for a buffer that the algorithm cannot learn from. Nothing changes then
        """
        try:
            buffer: PrioritizedReplayBuffer = vars(self)["replay_buffer"]
        except KeyError:
            raise AttributeError(f"The replay_buffer of this {type(self).__name__} was deleted") from None
        return buffer

    @replay_buffer.setter
    def replay_buffer(self, buffer: ReplayBuffer | None) -> None:
        if buffer is not None:
            buffer = self._prioritized(buffer)
            self._require_supported(buffer)
            buffer.reminder.learner = self._own_train()
        vars(self)["replay_buffer"] = buffer
        self._buffer_continues = False

    @replay_buffer.deleter
    def replay_buffer(self) -> None:
        del vars(self)["replay_buffer"]

    def _prioritized(self, buffer: ReplayBuffer) -> PrioritizedReplayBuffer:
        """
        Turn a buffer of SB3 into a prioritized one that shares its arrays.

        :param buffer: any buffer; a prioritized one is returned as it is
        :return: prioritized buffer, with the settings of this model if it was one of SB3
        """
        if isinstance(buffer, PrioritizedReplayBuffer):
            return buffer
        self._require_prioritized(PRIORITIZED_CLASSES.get(type(buffer), type(buffer)))
        self._require_fit(buffer)
        self._choose_buffer()  # a subclass may assign a buffer before `_setup_model`
        settings = self._buffer_kwargs()
        if isinstance(buffer, NStepReplayBuffer):
            settings["n_steps"] = buffer.n_steps
            settings["gamma"] = buffer.gamma
        becomes_her = isinstance(buffer, HerReplayBuffer) and not self._has_her
        buffer_class: Any = PrioritizedHerReplayBuffer if becomes_her else self.replay_buffer_class
        made: PrioritizedReplayBuffer = buffer_class.from_replay_buffer(buffer, **settings)
        made.device = self.device
        if buffer.size() == 0:
            warnings.warn(
                f"The empty {type(buffer).__name__} became a {type(made).__name__} that shares its arrays, not its position: "
                "add transitions to model.replay_buffer. What is added to the old buffer is never drawn",
                stacklevel=3,
            )
        return made

    def _own_train(self) -> str | None:
        """Name a ``train`` that a user wrote, which may forget the priorities; ``None`` if it is one of this package."""
        owner = next(base for base in type(self).__mro__ if "train" in vars(base))
        return None if owner.__module__.startswith("sb3_per.") else f"{owner.__name__}.train()"

    def _choose_buffer(self) -> None:
        """
        Settle the class and the settings of the buffer. A second call changes nothing.

        :raises TypeError: for settings that are no dictionary
        :raises ValueError: for a class that is not prioritized
        """
        if not isinstance(self.replay_buffer_kwargs, dict):
            raise TypeError(
                "replay_buffer_kwargs must be a dictionary of settings, e.g. dict(scheme='lap'), not "
                f"{self.replay_buffer_kwargs!r} ({type(self.replay_buffer_kwargs).__name__})"
            )
        if self.replay_buffer_kwargs.get("frames") == "auto":
            # In a new dictionary, since the caller's must not change. Saved with the model.
            self.replay_buffer_kwargs = self.replay_buffer_kwargs | {"frames": frames_of_env(self.env, self.observation_space)}
        require_stack_of_env(self.replay_buffer_kwargs.get("frames"), self.env)
        given = self.replay_buffer_class or ReplayBuffer
        is_default = given in PRIORITIZED_CLASSES and not self._has_her
        buffer_class = self._default_buffer_class() if is_default else PRIORITIZED_CLASSES.get(given, given)
        self._require_prioritized(buffer_class)
        self.replay_buffer_class = buffer_class

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
        if issubclass(buffer_class, PrioritizedReplayBuffer):
            return
        has_her = issubclass(buffer_class, HerReplayBuffer)
        base = PrioritizedHerReplayBuffer if has_her else self._default_buffer_class()
        name = type(self).__name__
        raise ValueError(
            f"{name} needs a prioritized replay buffer, and {buffer_class.__name__} is not: use a subclass of "
            f"{base.__name__}, or leave the choice of the buffer to {name}"
        )

    def _require_fit(self, buffer: ReplayBuffer) -> None:
        """
        Check HER, shapes and the number of environments.

        :raises ValueError: for a buffer that does not fit this model
        """
        if self._has_her and not isinstance(buffer, HerReplayBuffer):
            raise ValueError(f"The {type(buffer).__name__} does not fit this model, which needs a buffer with HER")
        facts = {
            "n_envs": (buffer.n_envs, self.n_envs),
            "observations of shape": (buffer.obs_shape, get_obs_shape(self.observation_space)),
            "actions of dimension": (buffer.action_dim, get_action_dim(self.action_space)),
        }
        for what, (found, expected) in facts.items():
            if found != expected:
                raise ValueError(
                    f"The {type(buffer).__name__} does not fit this model: it has {what} {found}, the model {expected}"
                )

    def _require_supported(self, buffer: PrioritizedReplayBuffer) -> None:
        refuse({f"{type(self).__name__} with {what}": reason for what, reason in self._unsupported(buffer).items()})

    def _unsupported(self, buffer: PrioritizedReplayBuffer) -> Reasons:
        """List what this algorithm cannot learn from."""
        scheme, actor_batch, sequences = buffer.scheme, buffer.settings.actor_batch, PrioritizedSequenceReplayBuffer
        return {
            str(scheme): scheme.replaces_loss
            and not self.has_scalar_td_loss
            and "the scheme replaces the loss of a scalar TD error, and this algorithm regresses quantiles. Use the "
            "proportional, rank or uniform scheme",
            type(buffer).__name__: isinstance(buffer, sequences)
            and not issubclass(self._default_buffer_class(), sequences)
            and "it is not recurrent and learns from single transitions. Use a recurrent algorithm, such as PERRecurrentDQN",
            f"actor_batch={actor_batch!r}": actor_batch != "prioritized"
            and not self.has_actor
            and "it has no actor. Leave the setting out",
        }

    def _default_buffer_class(self) -> type[PrioritizedReplayBuffer]:
        return PrioritizedDictReplayBuffer if isinstance(self.observation_space, spaces.Dict) else PrioritizedReplayBuffer

    def _buffer_kwargs(self) -> dict[str, Any]:
        """Collect the keyword arguments of the buffer in a new dictionary."""
        given = {name: getattr(self, name) for name in self.buffer_arguments}
        buffer_kwargs = {**given, **self.replay_buffer_kwargs}
        if self._has_her:
            # Not in the attribute, which is saved: environments cannot be saved.
            assert self.env is not None, "HER needs an environment: pass one to the constructor or to load()"
            buffer_kwargs["env"] = self.env
        # The dictionary may replace a default: SB3's own `NStepReplayBuffer` takes n_steps and gamma there.
        for name, value in given.items():
            if value not in (self.buffer_arguments[name], buffer_kwargs[name]):
                given_twice = f"{name}={value} contradicts replay_buffer_kwargs={self.replay_buffer_kwargs}"
                raise ValueError(f"{given_twice}: give {name} to {type(self).__name__} alone")
        return buffer_kwargs

    @property
    def _has_her(self) -> bool:
        return issubclass(self.replay_buffer_class or ReplayBuffer, HerReplayBuffer)
