"""The public names of the package, which :mod:`sb3_per` offers. To import them loads PyTorch, Stable-Baselines3 and numba."""

from sb3_per.algorithms.crossq import PERCrossQ
from sb3_per.algorithms.dqn import PERDQN
from sb3_per.algorithms.qrdqn import PERQRDQN
from sb3_per.algorithms.recurrent.dqn import R2D2, PERRecurrentDQN
from sb3_per.algorithms.recurrent.sac import PERRecurrentSAC
from sb3_per.algorithms.sac import PERSAC
from sb3_per.algorithms.td3 import PERDDPG, PERTD3
from sb3_per.algorithms.torch_loop import PrioritizedOffPolicyMixin
from sb3_per.algorithms.tqc import PERTQC
from sb3_per.buffers import (
    IgnoredSettingWarning,
    PrioritizedDictReplayBuffer,
    PrioritizedDictSequenceReplayBuffer,
    PrioritizedHerReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedReplayBufferSamples,
    PrioritizedSequenceReplayBuffer,
    SequenceReplayBufferSamples,
)
from sb3_per.integrations.minari import from_minari
from sb3_per.monitoring.monitor import PriorityMonitor
from sb3_per.persistence.checkpoint_callback import BufferCheckpointCallback, latest_checkpoint
from sb3_per.sampling.schemes import LAP, PAL, PriorityScheme, Proportional, RankBased, Uniform
from sb3_per.sampling.sum_tree import SumTree

__all__ = [
    "LAP",
    "PAL",
    "PERDDPG",
    "PERDQN",
    "PERQRDQN",
    "PERSAC",
    "PERTD3",
    "PERTQC",
    "R2D2",
    "BufferCheckpointCallback",
    "IgnoredSettingWarning",
    "PERCrossQ",
    "PERRecurrentDQN",
    "PERRecurrentSAC",
    "PrioritizedDictReplayBuffer",
    "PrioritizedDictSequenceReplayBuffer",
    "PrioritizedHerReplayBuffer",
    "PrioritizedOffPolicyMixin",
    "PrioritizedReplayBuffer",
    "PrioritizedReplayBufferSamples",
    "PrioritizedSequenceReplayBuffer",
    "PriorityMonitor",
    "PriorityScheme",
    "Proportional",
    "RankBased",
    "SequenceReplayBufferSamples",
    "SumTree",
    "Uniform",
    "from_minari",
    "latest_checkpoint",
]
