"""`to_replay_buffer` gives SB3's own class back, with the same transitions."""

import copy
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.save_util import save_to_pkl
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per import PERDQN
from sb3_per.buffers import PRIORITIZED_CLASSES
from sb3_per.buffers.sequences import PrioritizedSequenceReplayBuffer
from sb3_per.buffers.slots import keyed
from tests.helpers.buffers import (
    ACTION_SPACES,
    OBSERVATION_SPACES,
    assert_same_batches,
    counting_env,
    fill,
    make_buffer,
    stock_like,
)
from tests.helpers.messages import caught_user_warnings, no_user_warnings

MEMORY: dict[str, Any] = dict(optimize_memory_usage=True, handle_timeout_termination=False)

KINDS: dict[str, tuple[type[ReplayBuffer], str, dict[str, Any]]] = {
    "plain": (ReplayBuffer, "box", {}),
    "memory": (ReplayBuffer, "box", MEMORY),
    "dict": (DictReplayBuffer, "dict", dict(handle_timeout_termination=False)),
    "n steps": (NStepReplayBuffer, "box", dict(n_steps=3, gamma=0.9)),
    "her": (HerReplayBuffer, "her", dict(goal_selection_strategy="final", n_sampled_goal=2, copy_info_dict=True)),
}


def stock_buffer(kind: str, n_steps: int) -> Any:
    cls, obs_space, kwargs = KINDS[kind]
    if obs_space != "her":
        buffer = cls(20, OBSERVATION_SPACES[obs_space], ACTION_SPACES["box"], "cpu", 2, **kwargs)
    else:
        env = counting_env(goals=True)
        buffer = HerReplayBuffer(20, env.observation_space, env.action_space, env, "cpu", 2, **kwargs)
    fill([buffer], n_steps, p_end=0.4)
    return buffer


def copy_of(buffer: Any) -> Any:
    copied = copy.deepcopy(buffer)  # SB3 leaves the environment out
    if isinstance(buffer, HerReplayBuffer):
        copied.set_env(buffer.env)
    return copied


def assert_same_draws(actual: Any, expected: Any) -> None:
    batches = []
    for buffer in (actual, expected):
        np.random.seed(0)
        batches.append(buffer.sample(40))
    assert_same_batches(*batches)


@pytest.mark.parametrize("kind, n_steps", [(kind, (5, 10, 27)[i % 3]) for i, kind in enumerate(KINDS)])
def test_a_stock_buffer_comes_back_with_the_same_batches(kind, n_steps):
    """Bit for bit, now and after more steps; the arrays are shared."""
    given = stock_buffer(kind, n_steps)
    reference = copy_of(given)
    with no_user_warnings():
        returned = PRIORITIZED_CLASSES[type(given)].from_replay_buffer(given).to_replay_buffer()
    assert type(returned) is type(given)
    assert vars(returned).keys() == vars(given).keys()
    for name in ("observations", "actions", "rewards", "dones", "timeouts"):
        shared, own = keyed(getattr(returned, name)), keyed(getattr(given, name))
        assert all(shared[key] is own[key] for key in own)
    assert_same_draws(returned, reference)
    fill([returned, reference], 7, seed=1, p_end=0.4)
    assert_same_draws(returned, reference)


@pytest.mark.parametrize("form, n_steps", [("frames", 13), ("frames in a folder", 4)])
def test_other_forms_of_storage_are_copied(form, n_steps, tmp_path):
    settings: dict[str, Any] = {}
    if "frames" in form:
        settings["frames"] = 2
    if "folder" in form:
        settings["storage_folder"] = str(tmp_path / "folder")
    buffer = make_buffer(8, 2, "image", **settings)
    plain = stock_like(buffer)
    fill([buffer, plain], n_steps)
    with no_user_warnings():
        returned = buffer.to_replay_buffer()
    assert type(returned.observations) is type(returned.actions) is np.ndarray
    assert_same_draws(returned, plain)
    fill([returned, plain], 3, seed=1)
    assert_same_draws(returned, plain)


def test_what_sb3_does_not_hold_is_named():
    buffer = make_buffer(8, 1, "dict", n_steps=3, demonstration_fraction=0.5)
    fill([buffer], 5)
    buffer.add_demonstrations_from(buffer)
    with caught_user_warnings() as warned:
        assert type(buffer.to_replay_buffer()) is DictReplayBuffer
    assert warned == ["DictReplayBuffer of SB3 does not hold everything. Left out: 5 demonstrations, n_steps=3"]
    sequences = PrioritizedSequenceReplayBuffer(
        20, OBSERVATION_SPACES["box"], ACTION_SPACES["box"], "cpu", sequence_length=2, burn_in=1, state_shapes=((1, 4),)
    )
    fill([sequences], 5)
    with pytest.warns(UserWarning, match="Left out: recurrent states"):
        assert sequences.to_replay_buffer().pos == 5


def test_its_pickle_names_no_module_of_this_package():
    for kind in ("dict", "n steps", "her"):
        given = stock_buffer(kind, 13)
        buffer = PRIORITIZED_CLASSES[type(given)].from_replay_buffer(given)
        assert b"sb3_per" in pickle.dumps(buffer)
        assert b"sb3_per" not in pickle.dumps(buffer.to_replay_buffer())


@pytest.mark.slow
def test_its_pickle_loads_where_this_package_cannot_be_imported(tmp_path):
    buffer = make_buffer(8, 2, n_steps=3)
    fill([buffer], 13)
    save_to_pkl(tmp_path / "stock.pkl", buffer.to_replay_buffer())
    program = (
        "import sys; sys.modules['sb3_per'] = None\n"
        "from stable_baselines3.common.save_util import load_from_pkl\n"
        f"buffer = load_from_pkl({str(tmp_path / 'stock.pkl')!r})\n"
        "print(type(buffer).__name__, buffer.sample(4).rewards.shape)"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["NStepReplayBuffer", "torch.Size([4,", "1])"]


def test_a_stock_algorithm_learns_on_with_it(tmp_path):
    model = PERDQN("MlpPolicy", "CartPole-v1", buffer_size=200, learning_starts=10)
    model.learn(60)
    model.save(tmp_path / "model")
    save_to_pkl(tmp_path / "stock.pkl", model.replay_buffer.to_replay_buffer())
    stock = DQN.load(tmp_path / "model", env=model.env)
    stock.load_replay_buffer(tmp_path / "stock.pkl")
    assert type(stock.replay_buffer) is ReplayBuffer and stock.replay_buffer.size() == 60
    stock.learn(20, reset_num_timesteps=False)
    assert stock.replay_buffer.size() == 80


def test_no_truncation_stays_where_sb3_would_not_clear_it():
    """Without ``handle_timeout_termination``, a flag would stay for the next lap of SB3's buffer."""
    buffer = make_buffer(4, handle_timeout_termination=False)
    fill([buffer], 1)
    buffer.dones[:] = 0
    buffer.end_episodes()
    assert buffer.timeouts.any()
    stock = buffer.to_replay_buffer()
    assert not stock.timeouts.any() and not stock.dones.any()  # the same target
    fill([stock], 5)
    assert not stock.timeouts.any()
