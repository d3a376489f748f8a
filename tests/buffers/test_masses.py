"""Which mass a transition gets when it can be drawn: its own, or that of a new one; and what a user's classes make of it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sb3_per import PAL, PriorityScheme
from sb3_per.persistence.buffer_files import load_buffer, save_buffer
from sb3_per.sampling.shuffled import Shuffled
from tests.helpers.buffers import (
    assert_same_state,
    contents_of,
    drawable_ids,
    fill,
    filled_buffer,
    make_buffer,
)
from tests.helpers.demonstrations import demonstration_ids, demonstrations, mixed
from tests.helpers.saved import Player, make


class Halves(PriorityScheme):
    """A scheme of a user's, with nothing but a priority."""

    def priority(self, abs_td_errors: np.ndarray) -> np.ndarray:
        return 0.5 + 0.5 * abs_td_errors


def steps_with(n_steps: int, n_envs: int = 2) -> tuple[Any, ...]:
    """Make arguments of ``extend`` for a buffer of vectors."""
    zeros = np.zeros((n_steps, n_envs))
    vectors = np.zeros((n_steps, n_envs, 3))
    return vectors, vectors, np.zeros((n_steps, n_envs, 2)), zeros, zeros, [[{}] * n_envs] * n_steps


# ---- classes of a user


class ThroughLists(Halves):
    """Returns what NumPy makes of Python's numbers: integers, in an array that is not contiguous."""

    def mass(self, priority: Any) -> np.ndarray:
        return np.repeat(np.asarray(priority, np.int64) + 1, 2)[::2]


class TooFew(Halves):
    """Forgets the last transition."""

    def mass(self, priority: Any) -> np.ndarray:
        return np.asarray(priority)[..., :-1] if np.ndim(priority) else priority


class OneForAll(Halves):
    """Has one priority for the whole batch, if an error is large."""

    def priority(self, abs_td_errors: np.ndarray) -> np.ndarray:
        return abs_td_errors.mean() if abs_td_errors.max() > 2.0 else super().priority(abs_td_errors)


class Peculiar(Halves):
    """Gives a list of priorities, or one that is not a number, or a mass that is not allowed."""

    def __init__(self, what: str):
        super().__init__(alpha=1.0)
        self.what = what

    def priority(self, abs_td_errors: np.ndarray) -> Any:
        priorities = super().priority(abs_td_errors)
        if self.what == "list":
            return priorities.tolist()
        return np.where(abs_td_errors > 2.0, np.nan, priorities) if self.what == "nan" else priorities

    def mass(self, priority: Any) -> np.ndarray:
        factors = {"no mass": 0.0, "negative": -1.0, "too large": 1e300}
        return priority * factors.get(self.what, 1.0) if np.ndim(priority) else priority  # a new one is allowed


def test_masses_of_a_user_may_be_of_any_type():
    buffer = make_buffer(4, scheme=ThroughLists(alpha=1.0))
    fill([buffer], 4)
    assert buffer.update_priorities(np.arange(4), [1.0, 9.0, 5.0, 3.0]) == 4
    np.testing.assert_array_equal(buffer.masses[:, 0], [2, 6, 4, 3])


def ways_to_set(buffer: Any, td_errors: np.ndarray) -> list[Callable[[], Any]]:
    """List the ways in which the TD errors of two environments become masses."""
    obs, next_obs, actions, rewards, dones, _ = steps_with(1)
    return [
        lambda: buffer.update_priorities(drawable_ids(buffer)[:2], td_errors),
        lambda: buffer.add(obs[0], next_obs[0], actions[0], rewards[0], dones[0], [{}, {}], td_errors=td_errors),
    ]


def test_a_list_of_priorities_is_as_good_as_an_array():
    td_errors = np.array([3.0, 8.0])
    for i in range(len(ways_to_set(make_buffer(4, 2), td_errors))):
        twins = [make_buffer(4, 2, scheme=s, initial_priority="td_error") for s in (Peculiar("list"), Halves(alpha=1.0))]
        fill(twins, 2)
        for buffer in twins:
            ways_to_set(buffer, td_errors)[i]()
        np.testing.assert_array_equal(twins[0].masses, twins[1].masses)
        assert twins[0].max_priority == twins[1].max_priority
        assert {2.0, 4.5} <= set(twins[0].priorities.ravel())


@pytest.mark.parametrize(
    "scheme, message",
    [
        (TooFew(alpha=1.0), r"mass\(\) gave shape \(1,\)"),
        (OneForAll(alpha=1.0), r"priority\(\) gave shape \(\)"),
        (Peculiar("nan"), r"priority\(\) gave nan: it must be finite"),
        (Peculiar("no mass"), r"mass\(\) gave 0\.0: it must be above 0 and at most 1e\+290"),
        (Peculiar("negative"), r"mass\(\) gave -2\.0: it must be above 0"),
        (Peculiar("too large"), r"mass\(\) gave 2e\+300: it must be .* at most 1e\+290"),
    ],
    ids=str,
)
def test_every_way_refuses_the_same_masses(scheme, message):
    """Updates and steps that come with TD errors. Nothing has changed then; a kernel would read beyond the end of an array."""
    buffer = make_buffer(4, 2, scheme=scheme, initial_priority="td_error")
    fill([buffer], 3)
    before = contents_of(buffer)
    for way in ways_to_set(buffer, np.array([3.0, 3.0])):
        with pytest.raises(ValueError, match=message):
            way()
        assert_same_state(contents_of(buffer), before)


# ---- masses that come with transitions


@pytest.mark.parametrize("n_before, n_steps", [(3, 2), (7, 6)])
def test_masses_go_to_their_own_rows_after_rows_that_wait(n_before, n_steps):
    """Nothing is drawn in between, so the rows before are not in the tree yet. They keep the mass of new transitions."""
    buffer = make_buffer(6, n_envs=2)
    fill([buffer], n_before)
    masses = np.arange(2.0, 2.0 + 2 * n_steps).reshape(n_steps, 2)
    buffer.extend(*steps_with(n_steps), masses)
    fill([buffer], 1)
    expected = np.zeros((6, 2))
    for step in range(n_before + n_steps + 1):
        own = 0 <= step - n_before < n_steps
        expected[step % 6] = masses[step - n_before] if own else 1.0
    np.testing.assert_array_equal(buffer.masses, expected)


class AlwaysEqual(Halves):
    """A scheme of a user's that draws uniformly."""

    draws_uniformly = True

    def mass(self, priority: Any) -> np.ndarray:
        return np.ones(np.shape(priority))


@pytest.mark.parametrize("scheme", ["uniform", "pal", AlwaysEqual(alpha=1.0), Shuffled(PAL())], ids=str)
def test_masses_are_refused_where_the_scheme_draws_uniformly(scheme):
    for changed in ({}, dict(age_decay=1.0), dict(stratified=False)):
        buffer = make_buffer(6, n_envs=2, scheme=scheme, **changed)
        fill([buffer], 3)
        before = contents_of(buffer)
        with pytest.raises(ValueError, match=r"masses have no meaning with \w+\(.*draws uniformly"):
            buffer.extend(*steps_with(2), np.ones((2, 2)))
        assert_same_state(contents_of(buffer), before)
        buffer.extend(*steps_with(2))
        assert buffer.size() == 5


def test_td_errors_go_to_their_own_rows_after_rows_that_wait():
    """The same for ``add``."""
    buffer = make_buffer(6, n_envs=2, alpha=1.0, initial_priority="td_error")
    fill([buffer], 2)
    obs, next_obs, actions, rewards, dones, infos = (part[0] for part in steps_with(1))
    buffer.add(obs, next_obs, actions, rewards, dones, infos, td_errors=[3.0, 4.0])
    fill([buffer], 1)
    np.testing.assert_allclose(buffer.masses, [[1, 1], [1, 1], [3, 4], [1, 1], [0, 0], [0, 0]], atol=2e-6)


# ---- hindsight


def goal_steps(buffer: Any, dones: Any) -> tuple[Any, ...]:
    """Make arguments of ``extend`` for a buffer with goals."""
    dones = np.asarray(dones, float)
    rng = np.random.default_rng(0)
    shape = dones.shape
    obs = {key: rng.uniform(-1, 1, (*shape, *part.shape)) for key, part in buffer.observation_space.spaces.items()}
    return obs, obs, np.zeros((*shape, 2)), np.zeros(shape), dones, [[{}] * shape[1]] * shape[0]


def in_a_directory(buffer: Any, folder: Any, n_more: int = 0) -> Any:
    """Make a copy by a directory."""
    save_buffer(buffer, folder / "x.buffer")
    return load_buffer(make("her", buffer.buffer_size + n_more), folder / "x.buffer")


@pytest.mark.parametrize("how", ["stays", "directory", "larger", "smaller", "from_replay_buffer"])
def test_the_own_mass_of_a_transition_waits_until_its_episode_ends(how, tmp_path):
    """Also while other episodes end, while priorities are updated and rise, and in a copy."""
    buffer = make("her")
    buffer.extend(*goal_steps(buffer, [[0, 0], [0, 1], [0, 0]]), np.arange(10.0, 16.0).reshape(3, 2))
    np.testing.assert_array_equal(buffer.masses[:3], [[0, 11], [0, 13], [0, 0]])
    buffer.update_priorities([1], [1e3])
    copies: dict[str, Callable[[], Any]] = {
        "stays": lambda: buffer,
        "directory": lambda: in_a_directory(buffer, tmp_path),
        "larger": lambda: in_a_directory(buffer, tmp_path, 3),
        "smaller": lambda: in_a_directory(buffer, tmp_path, -1),
        "from_replay_buffer": lambda: type(buffer).from_replay_buffer(buffer),
    }
    found = copies[how]()
    new_mass = float(found.scheme.new_mass(found.max_priority))
    assert new_mass > 50
    found.extend(*goal_steps(found, [[0, 0], [1, 0]]))
    np.testing.assert_allclose(found.masses[:5, 0], [10, 12, 14, new_mass, new_mass])
    found.end_episodes()
    np.testing.assert_allclose(found.masses[2:5, 1], [15, new_mass, new_mass])


def test_a_waiting_mass_goes_with_its_transition():
    """After a reset, a lap later, and where rows were set by hand, the row has the mass of a new transition."""
    buffer = make("her", 4)
    masses = np.full((2, 2), 7.0)
    buffer.extend(*goal_steps(buffer, np.zeros((2, 2))), masses)
    buffer.reset()
    buffer.extend(*goal_steps(buffer, [[0, 0], [1, 1]]))
    np.testing.assert_array_equal(buffer.masses[:2], 1.0)
    buffer.extend(*goal_steps(buffer, [[0, 0], [1, 1]]), masses)
    buffer.extend(*goal_steps(buffer, [[0, 0], [1, 1], [0, 0], [1, 1]]))
    np.testing.assert_array_equal(buffer.masses, 1.0)
    buffer.extend(*goal_steps(buffer, np.zeros((2, 2))), masses)
    buffer.full = False
    buffer.end_episodes()
    np.testing.assert_array_equal(buffer.masses[:2], 1.0)


# ---- asking changes nothing


@pytest.mark.parametrize("kind", ["her", "rank", "memory", "actors", "sequences"])
def test_asking_changes_nothing(kind):
    """A buffer that is asked after each operation continues as one that is not, while the largest priority rises."""
    asked, other = make(kind, 9), make(kind, 9)
    players = [Player(buffer, seed=1) for buffer in (asked, other)]
    for round_ in range(12):
        for player in players:
            player.add(3)
        state = contents_of(asked)
        assert asked.can_draw() == (asked.priorities > 0).any()
        assert asked.transition_ids.max() >= 0 and repr(asked)
        assert_same_state(contents_of(asked), state)
        if asked.can_draw():
            ids = drawable_ids(asked)[-2:]
            errors = np.full((3, 2) if kind == "sequences" else 2, 2.0**round_)
            for buffer in (asked, other):
                buffer.update_priorities(ids, errors)
    assert_same_state(contents_of(asked), contents_of(other))
    assert asked.max_priority > 100


# ---- updates of experience and demonstrations


class Rising(PriorityScheme):
    """Has an infinite priority, or a mass that is not a number, for large errors."""

    def __init__(self, wrong: str):
        super().__init__(alpha=1.0)
        self.wrong = wrong

    def priority(self, abs_td_errors: np.ndarray) -> np.ndarray:
        return np.where((abs_td_errors > 1e3) & (self.wrong == "priority"), np.inf, abs_td_errors + 0.1)

    def mass(self, priority: Any) -> np.ndarray:
        return np.where((np.asarray(priority) > 1e3) & (self.wrong == "mass"), np.nan, priority)


@pytest.mark.parametrize(
    "wrong, part",
    [("priority", "demonstrations"), ("mass", "experience"), ("mass", "demonstrations"), ("id", "experience")],
)
def test_a_mixture_refuses_an_update_before_it_writes_a_part_of_it(wrong, part):
    buffer = mixed(scheme=Rising(wrong), beta_start=0.0)
    own, given = drawable_ids(buffer)[:3], demonstration_ids(buffer)[:3]
    ids = np.concatenate([own, given])
    errors = np.full(6, 5.0)
    i = 1 if part == "experience" else 4
    if wrong == "id":
        ids[i] = 10**6
    else:
        errors[i] = 1e4
    before = contents_of(buffer)
    for order in (np.arange(6), np.arange(6)[::-1]):
        with pytest.raises((ValueError, IndexError), match=r"inf|nan|never issued"):
            buffer.update_priorities(ids[order], errors[order])
        assert_same_state(contents_of(buffer), before)


def test_the_largest_priority_of_each_part_is_its_own():
    """A large error of a demonstration leaves the mass of new experience as it was."""
    buffer = mixed(alpha=1.0)
    largest = buffer.max_priority
    buffer.update_priorities(demonstration_ids(buffer)[:1], [1e6])
    fill([buffer], 1)
    np.testing.assert_array_equal(buffer.masses[buffer.pos - 1], largest)
    n = len(buffer.demonstrations)
    buffer.add_demonstrations(*demonstrations(buffer.observation_space, 2))
    np.testing.assert_allclose(buffer.demonstrations.buffer.masses[n : n + 2], 1e6)


def test_priorities_are_copies():
    buffer = filled_buffer()
    before = buffer.masses
    buffer.masses[:] = 0.0
    np.testing.assert_array_equal(buffer.masses, before)


def test_priorities_are_the_masses():
    buffer = make_buffer(6, 2)
    fill([buffer], 4)
    buffer.update_priorities(buffer.sample(5).indices, np.arange(5.0))
    np.testing.assert_array_equal(buffer.priorities, buffer.masses)
    assert buffer.priorities.shape == (6, 2) and buffer.priorities is not buffer.priorities
