"""Choose the class and the settings of an algorithm's buffer, and refuse combinations that are not supported."""

from typing import Any, ClassVar

from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, unwrap_vec_wrapper
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per.buffers import PrioritizedDictReplayBuffer, PrioritizedReplayBuffer, PrioritizedSequenceReplayBuffer
from sb3_per.buffers.settings import PrioritySettings
from sb3_per.storage.frame_setting import GOALS


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
        given = {name: getattr(self, name) for name in self.buffer_arguments}
        buffer_kwargs = {**given, **self.replay_buffer_kwargs}
        if self._has_her:
            # Not in the attribute, which is saved: environments cannot be saved.
            assert self.env is not None, "HER needs an environment: pass one to the constructor or to load()"
            buffer_kwargs["env"] = self.env
        # The dictionary may replace a default: SB3's own `NStepReplayBuffer` takes both settings there.
        for name, value in given.items():
            if value not in (self.buffer_arguments[name], buffer_kwargs[name]):
                raise ValueError(
                    f"{name}={value} contradicts replay_buffer_kwargs={self.replay_buffer_kwargs}: give {name} to "
                    f"{type(self).__name__} alone"
                )
        return buffer_kwargs

    @property
    def _has_her(self) -> bool:
        return issubclass(self.replay_buffer_class or ReplayBuffer, HerReplayBuffer)


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
