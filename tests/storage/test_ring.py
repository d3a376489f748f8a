"""The ring: which slot holds which transition, compared with lists of steps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_per.storage.ring import Ring


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_slots_ids_and_newest_steps_equal_lists_of_steps(data):
    n_rows, n_envs, shares_next_obs = data.draw(st.integers(2, 6)), data.draw(st.integers(1, 3)), data.draw(st.booleans())
    ring, held, begin = Ring(n_rows, n_envs, shares_next_obs), [[] for _ in range(n_envs)], 0
    everybody = list(range(n_envs))
    some = st.lists(st.sampled_from(everybody), min_size=1, max_size=n_envs, unique=True)
    for n_steps, envs in data.draw(st.lists(st.tuples(st.integers(0, n_rows), st.one_of(st.none(), some)), max_size=12)):
        if n_steps == 0:
            ring.clear()
            most = max([begin, *(steps[-1] + 1 for steps in held if steps)])
            begin, held = -(-most // n_rows) * n_rows, [[] for _ in range(n_envs)]
        else:
            if envs is not None:
                ring.advance(np.array(envs), n_steps)
            elif ring.all_at_same_step:
                for _ in range(n_steps):
                    ring.advance_all()
            else:
                ring.advance(ring.all_envs, n_steps)
            for env in everybody if envs is None else envs:
                end = held[env][-1] + 1 if held[env] else begin
                held[env] = [*held[env], *range(end, end + n_steps)][-n_rows:]

        ids = np.full(ring.capacity, -1)
        for env, steps in enumerate(held):
            for step in steps:
                ids[step % n_rows * n_envs + env] = step * n_envs + env
        slots = np.arange(ring.capacity)
        np.testing.assert_array_equal(ring.ids_at(slots), ids)
        assert ring.full == all(len(steps) == n_rows for steps in held)
        for env, steps in enumerate(held):  # the id that a message names is the next one
            following = (steps[-1] + 1 if steps else begin) * n_envs + env
            assert ring.issued_ids(env).endswith(f"the next one of environment {env} is {following}")
            assert not ring.was_issued(following) and (following < n_envs or ring.was_issued(following - n_envs))
        assert ring.next_id == max([begin, *(steps[-1] + 1 for steps in held if steps)]) * n_envs
        complete = [steps[int(shares_next_obs) :] if len(steps) == n_rows else steps for steps in held]
        assert ring.n_complete == sum(map(len, complete))
        by_id = sorted((step * n_envs + env, step % n_rows * n_envs + env) for env in everybody for step in complete[env])
        assert ring.complete_slots().tolist() == [slot for _, slot in by_id]
        lost = [held[env][0] % n_rows * n_envs + env for env in everybody if len(complete[env]) < len(held[env])]
        assert sorted(ring.incomplete_slots().tolist()) == sorted(lost)
        oldest = [steps[0] if steps else begin for steps in held]
        np.testing.assert_array_equal(ring.oldest_held, oldest)
        # From old to new: first by the number of later steps of the environment, then by the environment.
        order = sorted((-(held[env][-1] - step), env, step) for env in everybody for step in complete[env])
        expected = [step % n_rows * n_envs + env for _, env, step in order]
        for n in range(1, ring.n_complete + 1):
            assert sorted(ring.newest(np.arange(n), n)) == sorted(expected[-n:])


def test_loading_a_position_outside_of_the_ring_is_refused():
    for added, begin in (([3], 0), ([3.0, 3.0], 0), ([3, -1], 0), ([8, 9], 3), ([3, 4], 4)):
        with pytest.raises(ValueError, match="no position in a ring of 4 rows"):
            Ring(4, 2).load({"added": np.array(added), "begin": begin})
