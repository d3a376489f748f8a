"""What a script changes on a buffer, and names that a user's class takes, count as with SB3's buffers."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.her.goal_selection_strategy import GoalSelectionStrategy
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per import PrioritizedHerReplayBuffer, PrioritizedReplayBuffer
from tests.helpers.buffers import (
    ACTION_SPACES,
    OBSERVATION_SPACES,
    assert_same_batches,
    counting_env,
    fill,
    make_buffer,
    stock_like,
)

ARRAYS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")
UNIFORM: dict[str, Any] = dict(scheme="uniform", stratified=False, alpha=None)

# ---- changes between two steps


def parts_of(buffer: Any, name: str) -> list[np.ndarray]:
    stored = getattr(buffer, name)
    return list(stored.values()) if isinstance(stored, dict) else [stored]


def change_all(buffer: Any, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Assign a changed copy of each array."""
    for name in ARRAYS:
        stored = getattr(buffer, name)
        changed = {key: change(part) for key, part in stored.items()} if isinstance(stored, dict) else change(stored)
        setattr(buffer, name, changed)


def timeouts_off(buffer: Any) -> None:
    buffer.handle_timeout_termination = False


def device_by_name(buffer: Any) -> None:
    buffer.device = "cpu"


def device_as_object(buffer: Any) -> None:
    buffer.device = th.device("cpu")


def scales_rewards(buffer: Any) -> None:
    buffer.rewards *= 0.1


def assigns_clipped_rewards(buffer: Any) -> None:
    buffer.rewards = np.sign(buffer.rewards)


def forgets_ends(buffer: Any) -> None:
    buffer.dones[:] = 0


def calls_all_ends_timeouts(buffer: Any) -> None:
    buffer.timeouts[:] = buffer.dones


def shifts_observations(buffer: Any) -> None:
    for part in parts_of(buffer, "observations") + parts_of(buffer, "next_observations"):
        part[:] = part - part.mean(axis=0).astype(part.dtype)


def empties(buffer: Any) -> None:
    buffer.reset()


def empties_by_hand(buffer: Any) -> None:
    buffer.pos, buffer.full = 0, False


def drops_the_last_steps(buffer: Any) -> None:
    buffer.pos -= 2


def shuffles_rows(buffer: Any) -> None:
    order = np.random.default_rng(1).permutation(buffer.size())
    for name in ARRAYS:
        for part in parts_of(buffer, name):
            part[: len(order)] = part[order]


def rewards_in_double(buffer: Any) -> None:
    buffer.rewards = buffer.rewards.astype(np.float64)


def in_fortran_order(buffer: Any) -> None:
    change_all(buffer, np.asfortranarray)


def keeps_the_newest_rows(buffer: Any) -> None:
    change_all(buffer, lambda part: np.concatenate([part[buffer.pos - 4 : buffer.pos], np.zeros_like(part[4:])]))
    buffer.pos, buffer.full = 4, False


def twice_the_size(buffer: Any) -> None:
    change_all(buffer, lambda part: np.concatenate([part, np.zeros_like(part)]))
    buffer.buffer_size *= 2


def half_the_size(buffer: Any) -> None:
    change_all(buffer, lambda part: part[:5].copy())
    buffer.buffer_size = 5
    buffer.pos, buffer.full = 0, True


def goes_through_a_pickle(buffer: Any) -> None:
    buffer.__dict__.update(pickle.loads(pickle.dumps(buffer)).__dict__)


CHANGES = [
    *(timeouts_off, device_by_name, device_as_object, scales_rewards, assigns_clipped_rewards, forgets_ends),
    *(calls_all_ends_timeouts, shifts_observations, empties, empties_by_hand, drops_the_last_steps, shuffles_rows),
    *(rewards_in_double, in_fortran_order, keeps_the_newest_rows, twice_the_size, half_the_size, goes_through_a_pickle),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("obs_space", ["box", "dict"])
def test_a_change_between_two_steps_counts_as_in_sb3(change, obs_space):
    """The arrays, counts and uniform draws are equal bit for bit, before and after the end of the buffer."""
    ours = make_buffer(10, 2, obs_space, **UNIFORM)
    stock = stock_like(ours)
    fill([ours, stock], 6, p_end=0.4)
    ours.sample(4)  # the rows are in the tree
    change(ours)
    change(stock)
    for seed in (1, 2):
        fill([ours, stock], 5, seed=seed, p_end=0.4)
        batches = []
        for buffer in (ours, stock):
            np.random.seed(seed)
            batches.append(buffer.sample(30))
        assert_same_batches(batches[0], batches[1], batches[1]._fields[:5])
    for name in ARRAYS:
        for one, other in zip(parts_of(ours, name), parts_of(stock, name), strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)
    assert (ours.pos, ours.full, ours.buffer_size, ours.size()) == (stock.pos, stock.full, stock.buffer_size, stock.size())


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_priorities_work_after_a_change_between_two_steps(change):
    """Each row that is held can be drawn, takes a priority, and no other one."""
    buffer = make_buffer(10, 2, alpha=1.0)
    fill([buffer], 6, p_end=0.4)
    buffer.update_priorities(buffer.sample(4).indices, np.full(4, 0.5))
    change(buffer)
    fill([buffer], 3, seed=1)
    masses = buffer.masses
    assert masses.shape == (buffer.buffer_size, 2)
    assert (masses[: buffer.size()] > 0).all() and (masses[buffer.size() :] == 0).all()
    ids = buffer.transition_ids[: buffer.size()].ravel()
    assert len(set(ids.tolist())) == len(ids) and (ids >= 0).all()
    assert buffer.update_priorities(ids, np.full(len(ids), 0.25)) == len(ids)
    np.testing.assert_allclose(buffer.masses[: buffer.size()], 0.25 + 1e-6)


GOALS: dict[str, Callable[[Any], None]] = {
    "no goals": lambda buffer: setattr(buffer, "her_ratio", 0.0),
    "one of five": lambda buffer: setattr(buffer, "her_ratio", 0.2),
    "last state": lambda buffer: setattr(buffer, "goal_selection_strategy", GoalSelectionStrategy.FINAL),
    "any state": lambda buffer: setattr(buffer, "goal_selection_strategy", GoalSelectionStrategy.EPISODE),
    "infos copied": lambda buffer: setattr(buffer, "copy_info_dict", True),
    "one goal of two": lambda buffer: setattr(buffer, "her_ratio", 1 - 1.0 / 2),
    "goals moved": lambda buffer: buffer.observations["desired_goal"].__iadd__(1),
    "reached elsewhere": lambda buffer: buffer.next_observations["achieved_goal"].__iadd__(1),
    "rewards away": lambda buffer: buffer.rewards.fill(0),
    "last episode cut": lambda buffer: buffer.truncate_last_trajectory(),
}


@pytest.mark.filterwarnings("ignore:The last trajectory")
@pytest.mark.parametrize("name", GOALS)
def test_a_change_of_a_hindsight_buffer_counts_as_in_sb3(name):
    env = counting_env(goals=True)
    buffers: list[Any] = [
        cls(40, env.observation_space, env.action_space, env, "cpu", 2, **settings)
        for cls, settings in ((PrioritizedHerReplayBuffer, UNIFORM), (HerReplayBuffer, {}))
    ]
    fill(buffers, 12, p_end=0.4)
    buffers[0].sample(4)
    batches = []
    for buffer in buffers:
        GOALS[name](buffer)
        np.random.seed(0)
        batches.append(buffer.sample(30))
    assert_same_batches(batches[0], batches[1], batches[1]._fields[:5])
    fill(buffers, 11, seed=1, p_end=0.4)
    batches = []
    for buffer in buffers:
        np.random.seed(1)
        batches.append(buffer.sample(30))
    assert_same_batches(batches[0], batches[1], batches[1]._fields[:5])


# ---- names

#: attributes and methods that a user's class may have; SB3's buffers have none of these names
NAMES = [
    *("infos", "costs", "weights", "next_actions", "log_probs", "values", "steps", "episodes", "episode_starts", "masks"),
    *("ids", "indices", "keys", "tree", "sampler", "candidates", "state", "states", "load", "save", "read", "write"),
    *("parts", "slots", "storage", "rng", "n_added", "count", "counter", "name", "kind", "config", "logger"),
    *("returns", "advantages", "dates", "lengths", "model", "data", "queue", "history", "version", "seed", "insert", "draw"),
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("early", [False, True], ids=["after", "before"])
def test_a_class_may_use_a_name_that_sb3_does_not(name, early):
    """Set before or after SB3's constructor, written at each step, and still there after a copy and a pickle."""

    def add(self: Any, *args: Any) -> None:
        getattr(self, name).append(len(getattr(self, name)))
        super(cls, self).add(*args)

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if early:
            setattr(self, name, [])
        super(cls, self).__init__(*args, **kwargs)
        if not early:
            setattr(self, name, [])

    assert not hasattr(ReplayBuffer, name)
    cls: Any = type("Own", (PrioritizedReplayBuffer,), {"add": add, "__init__": init})
    buffer = cls(10, OBSERVATION_SPACES["box"], ACTION_SPACES["box"], "cpu", 2, alpha=1.0)
    fill([buffer], 4)
    buffer.update_priorities(buffer.sample(4).indices, np.ones(4))
    fill([buffer], 3, seed=1)
    assert getattr(buffer, name) == list(range(7))
    twin = copy.deepcopy(buffer)
    for each in (buffer, twin):
        np.random.seed(0)
        each.drawn_here = each.sample(8)
    assert_same_batches(buffer.drawn_here, twin.drawn_here)
    assert getattr(twin, name) == list(range(7))
