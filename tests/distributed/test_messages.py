"""Messages of actors: infos and recorded steps."""

from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback

from sb3_per import PERDQN, PrioritizedReplayBuffer
from sb3_per.distributed.worker import Recorder
from tests.distributed.envs import Tracked
from tests.distributed.helpers import local, small


class Speaks(Tracked):
    """Put what ``make`` returns into each info."""

    def __init__(self, make: Any):
        super().__init__()
        self.make = make

    def step(self, action: Any) -> Any:
        *others, _ = super().step(action)
        return *others, {"said": self.make()}


def test_infos_may_hold_objects_of_local_classes():
    class Mark:
        pass

    seen = []

    class Look(BaseCallback):
        def _on_step(self) -> bool:
            seen.extend(info["said"] for info in self.locals["infos"])
            return True

    small(PERDQN, local(Speaks, env_kwargs=dict(make=Mark))).learn(20, callback=Look())
    assert len(seen) == 20 and all(isinstance(said, Mark) for said in seen)


def test_a_recorder_without_steps_returns_empty_arrays():
    box = spaces.Box(-1, 1, (3,), np.float32)
    recorder = Recorder(PrioritizedReplayBuffer(8, box, box, n_envs=2))
    recorder.clear()
    steps = recorder.steps()
    assert steps["rewards"].shape == (0, 2) and steps["obs"].shape == (0, 2, 3) and recorder.infos == []
