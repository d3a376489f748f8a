"""The sampler alone, with a ring and no storage: which slots have a mass, and which mass."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_per.buffers.transition_set import CompleteTransitions
from sb3_per.sampling.mass_tree import NothingToDrawError
from sb3_per.sampling.sampler import DrawSettings, Sampler
from sb3_per.sampling.schemes import Proportional
from sb3_per.storage.ring import Ring

ALPHA, EPSILON = 0.5, 1e-3


class Pair:
    """A sampler, and a dictionary of the masses that it should have by slot."""

    def __init__(self, n_rows: int, n_envs: int, shares_next_obs: bool, seed: int):
        self.ring = Ring(n_rows, n_envs, shares_next_obs)
        self.sampler = Sampler(Proportional(ALPHA, EPSILON), CompleteTransitions(self.ring), DrawSettings())
        self.rng = np.random.default_rng(seed)
        self.masses: dict[int, float] = {}
        self.max_priority = 1.0

    def slots_of_row(self, step: int) -> list[int]:
        return [step % self.ring.n_rows * self.ring.n_envs + env for env in range(self.ring.n_envs)]

    def expect_new(self, slots: list[int]) -> None:
        self.masses |= dict.fromkeys(slots, self.max_priority**ALPHA)

    def forget_incomplete(self) -> None:
        """The newest next observation of an environment has overwritten its oldest observation, in the next row."""
        for env, next_step in enumerate(self.ring.next_steps.tolist()):
            if self.ring.shares_next_obs and next_step - self.ring.first_step >= self.ring.n_rows:
                self.masses.pop(next_step % self.ring.n_rows * self.ring.n_envs + env, None)

    def row(self) -> None:
        """Write a row of all environments, of which the ring alone knows."""
        if self.sampler.is_outdated or not self.ring.all_at_same_step:
            return
        self.expect_new(self.slots_of_row(self.ring.max_next_step))
        self.ring.advance_all()
        self.forget_incomplete()

    def steps(self, is_interrupted: bool = False) -> None:
        """Write steps of some environments, at once with their masses."""
        envs = np.flatnonzero(self.rng.random(self.ring.n_envs) < 0.5)
        slots = (self.ring.rows_of_next(envs, 1) * self.ring.n_envs + envs).reshape(-1)
        self.expect_new(slots.tolist())
        try:
            with self.sampler.changing_candidates():
                self.sampler.remove(slots)
                self.ring.advance(envs, 1)
                if is_interrupted:
                    raise KeyboardInterrupt
                self.sampler.insert_new(slots)
                self.sampler.remove(self.ring.incomplete_slots())
        except KeyboardInterrupt:
            pass
        self.forget_incomplete()

    def steps_that_are_interrupted(self) -> None:
        self.steps(is_interrupted=True)

    def update(self) -> None:
        """Set the priorities of some slots, one of them twice."""
        slots = self.rng.permutation(sorted(self.masses))[: self.rng.integers(4)].astype(np.int64)
        slots = np.append(slots, slots[:1])
        errors = self.rng.exponential(size=(len(slots), 1))
        self.sampler.update(slots, *self.sampler.evaluate(errors))
        for slot, error in zip(slots.tolist(), errors[:, 0].tolist(), strict=True):
            self.masses[slot] = (error + EPSILON) ** ALPHA
            self.max_priority = max(self.max_priority, error + EPSILON)

    def clear(self) -> None:
        self.sampler.mark_outdated()
        self.ring.clear()
        self.sampler.clear()
        self.masses.clear()

    def draw(self) -> None:
        """Every mass is drawn in proportion, up to the one draw by which a slice may differ."""
        if not self.masses:
            with pytest.raises(NothingToDrawError):
                self.sampler.draw(1)
            return
        n = 500
        slots, relative_probabilities = self.sampler.draw(n)
        total = sum(self.masses.values())
        drawn = np.bincount(slots, minlength=self.ring.capacity)
        expected = np.zeros(self.ring.capacity)
        expected[list(self.masses)] = np.array(list(self.masses.values())) / total
        assert (np.abs(drawn - n * expected) < 2.0).all()
        np.testing.assert_allclose(relative_probabilities, len(self.masses) * expected[slots])

    def check(self) -> None:
        expected = np.zeros(self.ring.capacity)
        expected[list(self.masses)] = list(self.masses.values())
        np.testing.assert_allclose(self.sampler.masses(), expected)
        assert self.sampler.can_draw() == bool(self.masses)
        assert self.sampler.max_priority == pytest.approx(self.max_priority)


OPERATIONS = (
    Pair.row,
    Pair.steps,
    Pair.steps_that_are_interrupted,
    Pair.update,
    Pair.clear,
    Pair.draw,
)


@settings(max_examples=200)
@given(
    n_rows=st.integers(2, 5),
    n_envs=st.integers(1, 3),
    shares_next_obs=st.booleans(),
    operations=st.lists(st.tuples(st.sampled_from(OPERATIONS), st.booleans()), min_size=15, max_size=25),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_slots_with_a_mass_are_those_that_can_be_drawn(n_rows, n_envs, shares_next_obs, operations, seed):
    """A check looks at the masses, which brings the tree up to date. So it comes only after some of the operations."""
    pair = Pair(n_rows, n_envs, shares_next_obs, seed)
    for operation, is_checked in operations:
        operation(pair)
        if is_checked:
            pair.check()
    pair.check()
