"""Prioritized replay of Dict observations."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per.buffers.replay import PrioritizedReplayBuffer
from sb3_per.utils.signatures import extends_signature

if TYPE_CHECKING:
    import torch as th
    from gymnasium import spaces
    from typing_extensions import Unpack

    from sb3_per.buffers.settings import PrioritizedKwargs

    def _init(
        self: Any,
        buffer_size: int,
        observation_space: spaces.Dict,
        action_space: spaces.Space,
        device: th.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        **kwargs: Unpack[PrioritizedKwargs],
    ) -> None: ...
else:
    _init = DictReplayBuffer.__init__


class PrioritizedDictReplayBuffer(PrioritizedReplayBuffer, DictReplayBuffer):  # type: ignore[misc]
    """
    :class:`PrioritizedReplayBuffer` (Schaul et al. 2016, arXiv 1511.05952) for Dict observation spaces. n-step returns work
    here as well, unlike in SB3. With ``"MultiInputPolicy"`` the algorithms take it without being told.

    ::

        buffer = PrioritizedDictReplayBuffer(10_000, env.observation_space, env.action_space, alpha=0.6, n_steps=3)

    :param args: SB3's arguments, see ``stable_baselines3.common.buffers.DictReplayBuffer``
    :param kwargs: SB3's keyword arguments and those of :class:`PrioritizedReplayBuffer`
    :raises NotImplementedError: for ``optimize_memory_usage=True``, which SB3 does not have for Dict observations
    """

    @extends_signature(_init, PrioritizedReplayBuffer.__init__)
    def __init__(self, *args: Any, optimize_memory_usage: bool = False, **kwargs: Any):
        if optimize_memory_usage:
            raise NotImplementedError("optimize_memory_usage=True is not supported for Dict observation spaces")
        super().__init__(*args, **kwargs)

    @classmethod
    def _stores(cls, buffer: ReplayBuffer) -> bool:
        return isinstance(buffer, DictReplayBuffer) and not isinstance(buffer, HerReplayBuffer)

    def _map_obs(self, function: Callable[..., Any], obs: Any, *args: Any) -> Any:
        return {key: function(array, *args) for key, array in obs.items()}
