"""SB3's storage with prioritized draws; one file per kind of buffer."""

from sb3_per.buffers.dict import PrioritizedDictReplayBuffer as PrioritizedDictReplayBuffer
from sb3_per.buffers.her import PrioritizedHerReplayBuffer as PrioritizedHerReplayBuffer
from sb3_per.buffers.replay import PrioritizedReplayBuffer as PrioritizedReplayBuffer
from sb3_per.buffers.samples import PrioritizedReplayBufferSamples as PrioritizedReplayBufferSamples
from sb3_per.buffers.samples import SequenceReplayBufferSamples as SequenceReplayBufferSamples
from sb3_per.buffers.sequences import PrioritizedDictSequenceReplayBuffer as PrioritizedDictSequenceReplayBuffer
from sb3_per.buffers.sequences import PrioritizedSequenceReplayBuffer as PrioritizedSequenceReplayBuffer
from sb3_per.buffers.settings import IgnoredSettingWarning as IgnoredSettingWarning
