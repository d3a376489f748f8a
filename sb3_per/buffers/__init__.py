"""Replay buffers: storage is Stable-Baselines3's, drawing is ours. One file a kind."""

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
