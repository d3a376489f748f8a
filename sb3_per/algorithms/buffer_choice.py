"""Choose the class and the settings of an algorithm's buffer, and refuse combinations that are not supported."""

from typing import Any, ClassVar

from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per.buffers import PrioritizedDictReplayBuffer, PrioritizedReplayBuffer, PrioritizedSequenceReplayBuffer
from sb3_per.buffers.settings import PrioritySettings
from sb3_per.utils.checks import Reasons, refuse


class BufferChoiceMixin(OffPolicyAlgorithm):
    """Choose the buffer that fits an algorithm, and check it."""

    replay_buffer: PrioritizedReplayBuffer

    #: Arguments of the algorithm that are settings of its buffer, with the default that ``replay_buffer_kwargs`` may replace.
    buffer_arguments: ClassVar[dict[str, Any]] = {"n_steps": PrioritySettings.n_steps, "gamma": PrioritySettings.gamma}

    #: Whether the loss is one of scalar TD errors, which LAP and PAL replace by their own.
    has_scalar_td_loss: ClassVar[bool] = True

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
            and not hasattr(self.policy, "actor")
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
