"""Saving models and buffers while actors collect steps."""

import pickle

import pytest
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback

from sb3_per import PERDQN
from tests.helpers.actor_envs import Tracked
from tests.helpers.actors import assert_rows_hold, local, small

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("name", ["buffer.pkl", "buffer.buffer"])
def test_a_model_saved_with_actors_loads(name, tmp_path):
    """The model loads with new actors, and as the stock algorithm without actors."""
    env = local(Tracked)
    model = small(PERDQN, env)
    model.learn(60)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / name)
    loaded = PERDQN.load(tmp_path / "model", env=local(Tracked))
    loaded.load_replay_buffer(tmp_path / name)
    assert loaded.replay_buffer.numbering.next_id == model.replay_buffer.numbering.next_id == 60
    loaded.env.seed(77)
    loaded.learn(60, reset_num_timesteps=False)
    assert loaded.num_timesteps == 120
    assert_rows_hold(loaded.replay_buffer)
    assert DQN.load(tmp_path / "model").num_timesteps == 60


def test_a_buffer_pickled_in_a_run_keeps_its_own_initial_priority(tmp_path):
    model = small(PERDQN, local(Tracked))
    priorities = []

    class Save(BaseCallback):
        def _on_step(self) -> bool:
            if self.n_calls == 15:
                model.save_replay_buffer(tmp_path / "buffer.pkl")
            priorities.append(pickle.loads(pickle.dumps(model.replay_buffer)).settings.initial_priority)
            return True

    model.learn(40, callback=Save())
    assert set(priorities) == {"max"}
    loaded = small(PERDQN, local(Tracked))
    loaded.load_replay_buffer(tmp_path / "buffer.pkl")
    assert loaded.replay_buffer.settings.initial_priority == "max"
