"""Prioritized replay of Dict observations."""

from stable_baselines3.common.buffers import DictReplayBuffer

from sb3_per.buffers.replay import PrioritizedReplayBuffer


class PrioritizedDictReplayBuffer(PrioritizedReplayBuffer, DictReplayBuffer):  # type: ignore[misc]
    """
    :class:`PrioritizedReplayBuffer` (Schaul et al. 2016, arXiv 1511.05952) for Dict observation spaces. n-step returns work
    here too, unlike in SB3. With ``"MultiInputPolicy"`` the algorithms choose it themselves.

    ::

        buffer = PrioritizedDictReplayBuffer(10_000, env.observation_space, env.action_space, alpha=0.6, n_steps=3)

    The arguments are those of :class:`PrioritizedReplayBuffer`.

    :raises NotImplementedError: for ``optimize_memory_usage=True``, which SB3 does not have for Dict observations
    """
