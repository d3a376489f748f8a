"""Prioritized experience replay for Stable-Baselines3."""

from sb3_per.algorithms.dqn import PERDQN
from sb3_per.algorithms.sac import PERSAC
from sb3_per.buffers import PrioritizedDictReplayBuffer, PrioritizedReplayBuffer, PrioritizedReplayBufferSamples
from sb3_per.schemes import PriorityScheme, Proportional
from sb3_per.sum_tree import SumTree

__version__ = "0.1.0"

__all__ = [
    "PERDQN",
    "PERSAC",
    "PrioritizedDictReplayBuffer",
    "PrioritizedReplayBuffer",
    "PrioritizedReplayBufferSamples",
    "PriorityScheme",
    "Proportional",
    "SumTree",
]
