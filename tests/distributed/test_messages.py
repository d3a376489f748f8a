"""Messages of actors: infos and recorded steps."""

from typing import Any

from stable_baselines3.common.callbacks import BaseCallback

from sb3_per import PERDQN
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
