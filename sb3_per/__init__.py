"""
Prioritized experience replay for Stable-Baselines3.

The first use of a public name imports all modules that have one. Until then PyTorch is not loaded, so that the help of the
command line answers at once.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sb3_per.algorithms.base import PrioritizedOffPolicyMixin
    from sb3_per.algorithms.crossq import PERCrossQ
    from sb3_per.algorithms.dqn import PERDQN
    from sb3_per.algorithms.qrdqn import PERQRDQN
    from sb3_per.algorithms.recurrent.dqn import R2D2, PERRecurrentDQN
    from sb3_per.algorithms.recurrent.sac import PERRecurrentSAC
    from sb3_per.algorithms.sac import PERSAC
    from sb3_per.algorithms.td3 import PERDDPG, PERTD3
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
    from sb3_per.monitoring.monitor import PriorityMonitor
    from sb3_per.persistence.checkpoint_callback import BufferCheckpointCallback, latest_checkpoint
    from sb3_per.persistence.minari import from_minari, to_minari
    from sb3_per.sampling.schemes import LAP, PAL, PriorityScheme, Proportional, RankBased, Uniform
    from sb3_per.sampling.sum_tree import SumTree

__version__ = "0.1.0"

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
    "to_minari",
]

_MODULES = (
    "sb3_per.algorithms.base",
    "sb3_per.algorithms.crossq",
    "sb3_per.algorithms.dqn",
    "sb3_per.algorithms.qrdqn",
    "sb3_per.algorithms.recurrent.dqn",
    "sb3_per.algorithms.recurrent.sac",
    "sb3_per.algorithms.sac",
    "sb3_per.algorithms.td3",
    "sb3_per.algorithms.tqc",
    "sb3_per.buffers",
    "sb3_per.monitoring.monitor",
    "sb3_per.persistence.checkpoint_callback",
    "sb3_per.persistence.minari",
    "sb3_per.sampling.schemes",
    "sb3_per.sampling.sum_tree",
)


if not TYPE_CHECKING:  # type checkers would take every name for one of this package

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        modules = [vars(importlib.import_module(module)) for module in _MODULES]
        globals().update({public: names[public] for names in modules for public in __all__ if public in names})
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
