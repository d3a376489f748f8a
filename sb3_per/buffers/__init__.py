"""SB3's storage with prioritized draws; one file per kind of buffer."""

from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per.buffers.her import PrioritizedHerReplayBuffer as PrioritizedHerReplayBuffer
from sb3_per.buffers.replay import PrioritizedDictReplayBuffer as PrioritizedDictReplayBuffer
from sb3_per.buffers.replay import PrioritizedReplayBuffer as PrioritizedReplayBuffer
from sb3_per.buffers.samples import PrioritizedReplayBufferSamples as PrioritizedReplayBufferSamples
from sb3_per.buffers.samples import SequenceReplayBufferSamples as SequenceReplayBufferSamples
from sb3_per.buffers.sequences import PrioritizedDictSequenceReplayBuffer as PrioritizedDictSequenceReplayBuffer
from sb3_per.buffers.sequences import PrioritizedSequenceReplayBuffer as PrioritizedSequenceReplayBuffer
from sb3_per.buffers.settings import IgnoredSettingWarning as IgnoredSettingWarning

#: Prioritized counterparts of exactly these classes of SB3.
PRIORITIZED_CLASSES: dict[type[ReplayBuffer], type[PrioritizedReplayBuffer]] = {
    ReplayBuffer: PrioritizedReplayBuffer,
    NStepReplayBuffer: PrioritizedReplayBuffer,
    DictReplayBuffer: PrioritizedDictReplayBuffer,
    HerReplayBuffer: PrioritizedHerReplayBuffer,
}
