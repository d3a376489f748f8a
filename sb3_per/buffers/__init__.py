"""SB3's storage with prioritized draws; one file per kind of buffer."""

from sb3_per.buffers.dict import PrioritizedDictReplayBuffer
from sb3_per.buffers.her import PrioritizedHerReplayBuffer
from sb3_per.buffers.replay import PrioritizedReplayBuffer
from sb3_per.buffers.samples import PrioritizedReplayBufferSamples, SequenceReplayBufferSamples
from sb3_per.buffers.sequences import PrioritizedDictSequenceReplayBuffer, PrioritizedSequenceReplayBuffer
from sb3_per.buffers.settings import IgnoredSettingWarning

__all__ = [
    "IgnoredSettingWarning",
    "PrioritizedDictReplayBuffer",
    "PrioritizedDictSequenceReplayBuffer",
    "PrioritizedHerReplayBuffer",
    "PrioritizedReplayBuffer",
    "PrioritizedReplayBufferSamples",
    "PrioritizedSequenceReplayBuffer",
    "SequenceReplayBufferSamples",
]
