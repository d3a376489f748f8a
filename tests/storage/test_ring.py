"""The ring: which slot holds which transition, compared with lists of steps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sb3_per.storage.ring import Ring


class Lists:
    """A ring, and for each environment the list of the steps that it holds."""

    def __init__(self, n_rows: int, n_envs: int, shares_next_obs: bool):
        self.ring = Ring(n_rows, n_envs, shares_next_obs)
        self.begin = 0
        self.held: list[list[int]] = [[] for _ in range(n_envs)]

    def next_step(self, env: int) -> int:
        return self.held[env][-1] + 1 if self.held[env] else self.begin

    def slot_of(self, step: int, env: int) -> int:
        return step % self.ring.n_rows * self.ring.n_envs + env

    def complete(self) -> list[tuple[int, int]]:
        """List steps and environments of the complete transitions, the oldest step of each environment first."""
        found = []
        for env, steps in enumerate(self.held):
            lost = int(self.ring.shares_next_obs and len(steps) == self.ring.n_rows)
            found += [(step, env) for step in steps[lost:]]
        return found

    def advance(self, n_steps: int, envs: list[int] | None) -> None:
        """Write steps of some environments; ``None``: of all, by `advance_all` where that is allowed."""
        ring = self.ring
        if envs is not None:
            ring.advance(np.array(envs), n_steps)
        elif ring.all_at_same_step:
            for _ in range(n_steps):
                ring.advance_all()
        else:
            ring.advance(ring.all_envs, n_steps)
        for env in range(ring.n_envs) if envs is None else envs:
            end = self.next_step(env)
            self.held[env] = [*self.held[env], *range(end, end + n_steps)][-ring.n_rows :]

    def clear(self) -> None:
        self.ring.clear()
        most = max(self.next_step(env) for env in range(self.ring.n_envs))
        self.begin = -(-most // self.ring.n_rows) * self.ring.n_rows
        self.held = [[] for _ in self.held]


@st.composite
def lists(draw):
    """A ring after some steps of all or some environments; 0 steps empty it."""
    n_envs = draw(st.integers(1, 3))
    made = Lists(draw(st.integers(2, 6)), n_envs, draw(st.booleans()))
    some = st.lists(st.sampled_from(range(n_envs)), min_size=1, max_size=n_envs, unique=True)
    for n_steps, envs in draw(st.lists(st.tuples(st.integers(0, made.ring.n_rows), st.one_of(st.none(), some)), max_size=12)):
        if n_steps == 0:
            made.clear()
        else:
            made.advance(n_steps, envs)
    return made


@given(lists())
def test_slots_hold_the_ids_of_the_newest_steps(lists):
    ring = lists.ring
    ids = np.full(ring.capacity, -1)
    for env, steps in enumerate(lists.held):
        for step in steps:
            ids[lists.slot_of(step, env)] = step * ring.n_envs + env
    np.testing.assert_array_equal(ring.ids_at(np.arange(ring.capacity)), ids)
    assert ring.full == all(len(steps) == ring.n_rows for steps in lists.held)
    np.testing.assert_array_equal(ring.oldest_held, [steps[0] if steps else lists.begin for steps in lists.held])


@given(lists())
def test_an_id_was_issued_if_it_is_below_the_next_one_of_its_environment(lists):
    ring = lists.ring
    for env in range(ring.n_envs):
        following = lists.next_step(env) * ring.n_envs + env
        assert ring.issued_ids(env).endswith(f"the next one of environment {env} is {following}")
        assert not ring.was_issued(following)
        assert following < ring.n_envs or ring.was_issued(following - ring.n_envs)
    assert ring.next_id == max(lists.next_step(env) for env in range(ring.n_envs)) * ring.n_envs


@given(lists())
def test_complete_transitions_are_those_whose_observation_is_still_there(lists):
    ring, complete = lists.ring, sorted(lists.complete())
    assert ring.n_complete == len(complete)
    assert ring.complete_slots().tolist() == [lists.slot_of(*each) for each in complete]
    held = {(step, env) for env, steps in enumerate(lists.held) for step in steps}
    assert sorted(ring.incomplete_slots().tolist()) == sorted(lists.slot_of(*each) for each in held - set(complete))


@given(lists())
def test_a_transition_is_newer_if_fewer_steps_of_its_environment_follow(lists):
    """Of two with as many, the one of the environment with the higher number."""
    ring = lists.ring
    order = sorted(lists.complete(), key=lambda each: (each[0] - lists.next_step(each[1]), each[1]))
    for n in range(1, ring.n_complete + 1):
        assert sorted(ring.newest(np.arange(n), n)) == sorted(lists.slot_of(*each) for each in order[-n:])


def test_loading_a_position_outside_of_the_ring_is_refused():
    for added, begin in (([3], 0), ([3.0, 3.0], 0), ([3, -1], 0), ([8, 9], 3), ([3, 4], 4)):
        with pytest.raises(ValueError, match="no position in a ring of 4 rows"):
            Ring(4, 2).load({"added": np.array(added), "begin": begin})
