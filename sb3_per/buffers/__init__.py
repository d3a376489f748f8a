"""
The replay buffers.

What a user calls:

- ``replay.py``: SB3's interface; ``her.py``: with hindsight; ``sequences.py``: windows for recurrent agents
- ``samples.py``: batches; ``settings.py``: settings of all buffers

What they use:

- ``inputs.py``: checks of what comes in; ``slots.py``: reads SB3's arrays; ``n_step.py``: n-step returns
- ``rows.py``: counts the rows that SB3 writes, and inserts them into the tree; ``episodes.py``: the same with hindsight
- ``append.py``: many steps at once, from actors
- ``demonstrations.py``: a second buffer, and batches of both; ``action_scaling.py``: actions of demonstrations are scaled
- ``windows.py``: which windows can be drawn, and where their steps are; ``window_targets.py``: their targets
- ``state.py``: what files hold beside the rows; ``pickles.py``: pickles of older releases
- ``arrays.py``: other arrays than SB3's; ``frames.py``, ``frame_setting.py``: each frame once; ``files.py``: arrays in files
- ``conversion.py``: from one buffer to another; ``copies.py``: the two ways to make another buffer of the same class
- ``reminder.py``: the warning that nobody updates priorities
"""

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
