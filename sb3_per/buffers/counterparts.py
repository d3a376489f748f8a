"""Prioritized counterparts of SB3's buffers."""

from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per.buffers.dict import PrioritizedDictReplayBuffer
from sb3_per.buffers.her import PrioritizedHerReplayBuffer
from sb3_per.buffers.replay import PrioritizedReplayBuffer

#: Prioritized counterparts of exactly these classes of SB3.
PRIORITIZED_CLASSES: dict[type[ReplayBuffer], type[PrioritizedReplayBuffer]] = {
    ReplayBuffer: PrioritizedReplayBuffer,
    NStepReplayBuffer: PrioritizedReplayBuffer,
    DictReplayBuffer: PrioritizedDictReplayBuffer,
    HerReplayBuffer: PrioritizedHerReplayBuffer,
}
