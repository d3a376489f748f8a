"""Which transition is in which slot, against a list of everything that was ever written."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_per.sampling.transition_ids import TransitionIds


class Written:
    """Ids, and the row and environment of every transition that was written since the last time the ids started over."""

    def __init__(self, n_rows: int, n_envs: int, shares_next_obs: bool):
        self.numbering = TransitionIds(n_rows, n_envs, shares_next_obs)
        self.steps: list[int] = []

    def add(self) -> None:
        self.steps.append(self.numbering.next_step)
        self.numbering.next_step += 1

    def start_over(self, n_present: int) -> None:
        self.numbering.start_over(n_present)
        self.steps = list(range(self.numbering.first_step, self.numbering.next_step))
        assert len(self.steps) == n_present and self.numbering.first_step % self.numbering.n_rows == 0

    @property
    def held(self) -> list[int]:
        """Ids of the transitions that can be drawn."""
        n_rows, n_envs = self.numbering.n_rows, self.numbering.n_envs
        steps = self.steps[-n_rows:]
        if self.numbering.shares_next_obs and len(steps) == n_rows:
            steps = steps[1:]
        return [step * n_envs + env for step in steps for env in range(n_envs)]


@settings(max_examples=100)
@given(
    n_rows=st.integers(2, 6),
    n_envs=st.integers(1, 3),
    shares_next_obs=st.booleans(),
    operations=st.lists(st.sampled_from(["add"] * 8 + ["start over", "rows by hand"]), max_size=40),
)
def test_ids_follow_from_slots_and_slots_from_ids(n_rows, n_envs, shares_next_obs, operations):
    written = Written(n_rows, n_envs, shares_next_obs)
    numbering = written.numbering
    for operation in operations:
        if operation == "add":
            written.add()
        else:
            before = numbering.next_id
            written.start_over(0 if operation == "start over" else n_rows - 1)
            assert written.held == [] or min(written.held) >= before
        held = np.array(written.held, np.int64)
        assert (numbering.n, numbering.capacity) == (len(held), n_rows * n_envs)
        n_present = min(len(written.steps), n_rows)
        assert numbering.agree(numbering.next_step % n_rows, n_present == n_rows)
        assert not numbering.agree((numbering.next_step + 1) % n_rows, n_present == n_rows)
        np.testing.assert_array_equal(numbering.slots(), held % numbering.capacity)
        np.testing.assert_array_equal(numbering.in_slots(numbering.slots()), held)
        slots, is_held = numbering.find(held)
        np.testing.assert_array_equal(slots, held % numbering.capacity)
        assert is_held is None
        if len(held):
            assert numbering.oldest_id == held[0]
            assert numbering.start_of_newest(len(held)) == held[0] % numbering.capacity
            np.testing.assert_array_equal(
                numbering.newest(np.array([0, len(held) - 1]), len(held)), held[[0, -1]] % numbering.capacity
            )
        every_id = np.arange(numbering.next_id)
        is_held = numbering.find(every_id)[1]
        assert set(every_id if is_held is None else every_id[is_held]) == set(written.held)


@pytest.mark.parametrize("wrong", [-1, 8, 10**9])
def test_an_id_that_was_never_issued_is_refused(wrong):
    numbering = TransitionIds(5, 2)
    numbering.next_step = 4
    with pytest.raises(IndexError, match=rf"id {wrong} was never issued.*the next one is 8"):
        numbering.find(np.array([3, wrong]))


@settings(max_examples=100)
@given(n_rows=st.integers(1, 5), n_counted=st.integers(0, 12), n_more=st.integers(0, 12))
def test_rows_until_counts_what_was_written_since(n_rows, n_counted, n_more):
    """Whole laps apart, which leave no trace in a full buffer."""
    numbering = TransitionIds(n_rows, 2)
    numbering.next_step = n_counted
    n_written = n_counted + n_more
    found = numbering.rows_until(n_written % n_rows, n_written >= n_rows)
    assert found is not None and (n_more - found) % n_rows == 0
    if n_more < n_rows:
        assert found == n_more


def test_rows_that_were_forgotten_are_noticed():
    numbering = TransitionIds(5, 1)
    numbering.next_step = 4
    assert numbering.rows_until(2, full=False) is None  # backwards
    numbering.next_step = 13
    assert numbering.rows_until(0, full=False) is None  # emptied
