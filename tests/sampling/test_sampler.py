"""The sampler alone, with ids and no arrays: which slots have a mass, and which mass."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_per.sampling.mass_tree import NothingToDrawError
from sb3_per.sampling.sampler import DrawSettings, Sampler
from sb3_per.sampling.schemes import Proportional
from sb3_per.sampling.transition_ids import TransitionIds

ALPHA, EPSILON = 0.5, 1e-3


class Pair:
    """A sampler, and a dictionary of the masses that it should have by slot."""

    def __init__(self, n_rows: int, n_envs: int, seed: int):
        self.numbering = TransitionIds(n_rows, n_envs)
        self.sampler = Sampler(Proportional(ALPHA, EPSILON), self.numbering, DrawSettings())
        self.rng = np.random.default_rng(seed)
        self.masses: dict[int, float] = {}
        self.max_priority = 1.0

    def insert(self) -> None:
        """Write some rows, and give them the mass of new transitions."""
        n = int(self.rng.integers(1, self.numbering.n_rows + 1))
        self.numbering.next_step += n
        slots = self.numbering.slots_of_newest_rows(n)
        self.sampler.insert(slots)
        self.masses |= dict.fromkeys(slots.tolist(), self.max_priority**ALPHA)

    def insert_with_masses(self) -> None:
        """Write a row of which some transitions bring a mass, which does not raise the maximum."""
        self.numbering.next_step += 1
        slots = self.numbering.slots_of_newest_rows(1)
        given = np.where(self.rng.random(len(slots)) < 0.5, self.rng.exponential(size=len(slots)) + 0.1, np.nan)
        given_values = np.full(self.numbering.capacity, np.nan)
        given_values[slots] = given
        self.sampler.insert(slots, given_values)
        new = self.max_priority**ALPHA
        self.masses |= {slot: new if np.isnan(mass) else mass for slot, mass in zip(slots.tolist(), given, strict=True)}

    def remove(self) -> None:
        slots = self.rng.permutation(sorted(self.masses))[: self.rng.integers(3)].astype(np.int64)
        self.sampler.remove(slots)
        for slot in slots.tolist():
            del self.masses[slot]

    def update(self) -> None:
        """Set the priorities of some slots, one of them twice."""
        slots = self.rng.permutation(sorted(self.masses))[: self.rng.integers(4)].astype(np.int64)
        slots = np.append(slots, slots[:1])
        if len(slots) == 0:
            return
        errors = self.rng.exponential(size=(len(slots), 1))
        self.sampler.update(slots, *self.sampler.evaluate(errors))
        for slot, error in zip(slots.tolist(), errors[:, 0].tolist(), strict=True):
            self.masses[slot] = (error + EPSILON) ** ALPHA
            self.max_priority = max(self.max_priority, error + EPSILON)

    def clear(self) -> None:
        self.numbering.start_over(0)
        self.sampler.clear()
        self.masses.clear()

    def draw(self) -> None:
        """Every mass is drawn in proportion, up to the one draw by which a slice may differ."""
        if not self.masses:
            with pytest.raises(NothingToDrawError):
                self.sampler.draw(1, self.numbering)
            return
        n = 500
        slots, relative_probabilities = self.sampler.draw(n, self.numbering)
        total = sum(self.masses.values())
        drawn = np.bincount(slots, minlength=self.numbering.capacity)
        expected = np.zeros(self.numbering.capacity)
        expected[list(self.masses)] = np.array(list(self.masses.values())) / total
        assert (np.abs(drawn - n * expected) < 2.0).all()
        np.testing.assert_allclose(relative_probabilities, self.numbering.n * expected[slots])

    def check(self) -> None:
        expected = np.zeros(self.numbering.capacity)
        expected[list(self.masses)] = list(self.masses.values())
        np.testing.assert_allclose(self.sampler.masses(), expected)
        assert self.sampler.max_priority == pytest.approx(self.max_priority)


OPERATIONS = (Pair.insert, Pair.insert_with_masses, Pair.remove, Pair.update, Pair.clear, Pair.draw)


@settings(max_examples=200)
@given(
    n_rows=st.integers(2, 5),
    n_envs=st.integers(1, 3),
    operations=st.lists(st.sampled_from(OPERATIONS), min_size=15, max_size=25),
    seed=st.integers(0, 2**32 - 1),
)
def test_slots_have_the_masses_that_they_were_given(n_rows, n_envs, operations, seed):
    pair = Pair(n_rows, n_envs, seed)
    for operation in operations:
        operation(pair)
        pair.check()


@pytest.mark.parametrize(
    "values", [[1.0] * 6, [1, 1, 1, np.nan], [1, 1, 1, -1.0], [1, 1, 1, 0.0], [1, 1, 1, np.inf], [1e308] * 4]
)
def test_masses_that_are_no_state_of_a_sampler_are_refused(values):
    sampler = Sampler(Proportional(ALPHA, EPSILON), TransitionIds(4, 1), DrawSettings())
    with pytest.raises(ValueError, match="mass"):
        sampler.load({"values": np.array(values)}, np.arange(4), is_whole=True)
