"""
The replay buffers.

What a user calls:

- ``replay.py`` and ``sb3_attributes.py``: SB3's interface; ``her.py``, ``sequences.py``: other kinds of buffers
- ``samples.py``: batches; ``settings.py``: settings of all buffers; ``hooks.py``: which methods a user's class may override

What is behind the interface:

- ``transition_set.py``: a set of transitions with a ring, a storage and a sampler: write, draw, read, update; and which of
  them can be drawn
- ``mixture.py``: a second set for demonstrations, and batches of both; ``demonstration_methods.py``: the methods for them
- ``window_set.py``, ``complete_windows.py``, ``recurrent_states.py``, ``window_kernels.py``: the set of a buffer of sequences

On the way in:

- ``inputs.py``: checks of steps; ``action_scaling.py``: actions of demonstrations are scaled
- ``recordings.py``: what other buffers bring as demonstrations; ``conversion.py``: from one buffer to another
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
