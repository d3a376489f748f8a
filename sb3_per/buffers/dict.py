"""Prioritized replay of Dict observations."""

from collections.abc import Callable
from typing import Any

from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per.buffers.replay import PrioritizedReplayBuffer


class PrioritizedDictReplayBuffer(PrioritizedReplayBuffer, DictReplayBuffer):  # type: ignore[misc]
    """
    :class:`PrioritizedReplayBuffer` for Dict observation spaces. n-step returns work here as well, unlike in SB3.

    :param args: SB3's arguments, see ``stable_baselines3.common.buffers.DictReplayBuffer``
    :param kwargs: SB3's keyword arguments and those of :class:`PrioritizedReplayBuffer`
    :raises NotImplementedError: for ``optimize_memory_usage=True``, which SB3 does not have for Dict observations
    """

    def __init__(self, *args: Any, optimize_memory_usage: bool = False, **kwargs: Any):
        if optimize_memory_usage:
            raise NotImplementedError("optimize_memory_usage=True is not supported for Dict observation spaces")
        super().__init__(*args, **kwargs)

    @classmethod
    def _stores(cls, buffer: ReplayBuffer) -> bool:
        return isinstance(buffer, DictReplayBuffer) and not isinstance(buffer, HerReplayBuffer)

    def _map_obs(self, function: Callable[..., Any], obs: Any, *args: Any) -> Any:
        return {key: function(array, *args) for key, array in obs.items()}
