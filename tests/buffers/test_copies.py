"""A copy of a buffer continues exactly as the original does."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from sb3_per import PrioritizedHerReplayBuffer, PrioritizedReplayBuffer
from tests.helpers.buffers import (
    ACTION_SPACES,
    OBSERVATION_SPACES,
    assert_same_state,
    contents_of,
    counting_env,
    fill,
    filled_buffer,
    make_buffer,
)
from tests.helpers.sequence_reference import make_sequences
from tests.helpers.steps import step_of

SETTINGS: dict[str, dict[str, Any]] = {
    "dict": dict(obs_space="dict", beta_anneal_steps=10),
    "rank": dict(scheme="rank"),
    "td errors": dict(initial_priority="td_error", scheme="lap", unique=True),
}


def pickled(buffer: Any) -> Any:
    """Make a copy by a pickle."""
    return pickle.loads(pickle.dumps(buffer))


@pytest.mark.parametrize(
    "name, clone", [(name, (pickled, copy.deepcopy)[i % 2]) for i, name in enumerate(SETTINGS)], ids=SETTINGS
)
def test_copies_continue_like_the_original(name, clone):
    buffer = filled_buffer(**SETTINGS[name])
    for _ in range(3):
        buffer.update_priorities(buffer.sample(6).indices, np.arange(6) * 3.0)
    twin = clone(buffer)
    assert type(twin) is type(buffer)
    for each in (buffer, twin):
        np.random.seed(3)
        for _ in range(3):
            fill([each], 2)
            batch = each.sample(7)
            each.update_priorities(batch.indices, np.arange(7.0))
    assert_same_state(twin, buffer)
    before = contents_of(buffer)
    twin.update_priorities(twin.sample(5).indices, np.full(5, 1e3))
    fill([twin], 1)
    assert_same_state(contents_of(buffer), before)  # an update of the copy leaves the original unchanged


def unchangeable(value: Any) -> bool:
    return all(map(unchangeable, value)) if isinstance(value, tuple) else value is None or isinstance(value, (int, str))


@pytest.mark.parametrize("kind", ["plain", "her", "sequences"])
def test_each_part_of_a_buffer_is_named_so_that_a_copy_has_its_own(kind):
    """``make_parts`` sets nothing that can change without naming it. Shapes of a step are replaced as a whole."""
    env = counting_env(2, goals=True)
    buffer: Any = {
        "plain": make_buffer,
        "her": lambda: PrioritizedHerReplayBuffer(12, env.observation_space, env.action_space, env, "cpu", 2),
        "sequences": make_sequences,
    }[kind]()
    names: set[str] = set()

    class Noting(type(buffer)):
        def __setattr__(self, name: str, value: Any) -> None:
            names.add(name)
            super().__setattr__(name, value)

    buffer.__class__ = Noting
    buffer.make_parts()
    changeable = {name for name in names - {"step_shapes"} if not unchangeable(vars(buffer)[name])}
    assert {"numbering", "row_tracker"} <= changeable
    assert changeable | {"draw_record"} == set(buffer.part_names)
    assert len(buffer.part_names) == len(set(buffer.part_names))
    twin = copy.copy(buffer)
    for name in changeable:
        assert vars(twin)[name] is not vars(buffer)[name], name


class KeepsAll(PrioritizedReplayBuffer):
    """Pickles all attributes as they are."""

    def __getstate__(self) -> dict[str, Any]:
        return vars(self).copy()


@pytest.mark.parametrize("cls", [PrioritizedReplayBuffer, KeepsAll])
def test_a_pickle_holds_the_state_of_rows_that_wait(cls):
    """Also where a user's class says what is pickled."""
    buffer = cls(12, OBSERVATION_SPACES["box"], ACTION_SPACES["box"], "cpu", 2, initial_priority="td_error")
    fill([buffer], 2)
    buffer.sample(2)
    buffer.add(**step_of(buffer), td_errors=np.full(2, 0.5))
    np.testing.assert_array_equal(pickled(buffer).masses, buffer.masses)


@pytest.mark.filterwarnings("ignore:The last trajectory")
def test_a_pickle_of_a_hindsight_buffer_holds_episodes_that_wait():
    env = counting_env(2, goals=True)
    buffer = PrioritizedHerReplayBuffer(12, env.observation_space, env.action_space, env, "cpu", 2)
    fill([buffer], 3, p_end=0.0)
    buffer.truncate_last_trajectory()
    assert "env" not in buffer.__reduce_ex__(4)[2]
    twin = pickled(buffer)
    assert np.count_nonzero(twin.masses) == twin.draw_candidates().n == 6
