"""The priority of a window comes from the TD errors of its steps."""

import copy

import numpy as np
import pytest
import torch as th

from sb3_per import Proportional
from sb3_per.sampling.shuffled import Shuffled
from tests.helpers.buffers import assert_same_state, contents_of
from tests.helpers.sequence_reference import Reference, make_sequences, played


@pytest.mark.parametrize("eta, reduction, n_critics", [(0.3, "mean", None), (0.0, "max", 2), (0.3, "min", 2)])
def test_window_priority_mixes_max_and_mean_of_td_errors(eta, n_critics, reduction):
    """p = eta max + (1 - eta) mean of the absolute errors of the learned steps; padding does not count."""
    buffer = played(eta=eta, td_error_reduction=reduction)
    rng = np.random.default_rng(0)
    batch = buffer.sample(20)
    assert 0 < batch.mask.float().mean() < 1
    td_errors = rng.normal(size=(6, 20) if n_critics is None else (6, 20, n_critics))
    expected, priorities = {}, [1.0]
    for b, id_ in enumerate(batch.indices.tolist()):
        steps = []
        for k in range(6):
            if batch.mask[k, b]:
                critics = np.abs(td_errors[k, b]).reshape(-1)
                steps.append({"mean": np.mean, "max": np.max, "min": np.min}[reduction](critics))
        priorities.append(eta * max(steps) + (1 - eta) * sum(steps) / len(steps) + 1e-3)
        expected[id_] = priorities[-1] ** 0.7  # of a window that was drawn twice, the last one counts
    for padding in (np.nan, 1e9, 0.0):
        td_errors[~batch.mask.numpy()] = padding
        for mask in (None, batch.mask, batch.mask.numpy().astype(np.float32)):
            for errors in (td_errors, th.tensor(td_errors, requires_grad=True)):
                changed = copy.deepcopy(buffer)
                assert changed.update_priorities(batch.indices, errors, mask) == 20
                masses = changed.priorities.ravel()[batch.indices % changed.priorities.size]
                np.testing.assert_allclose(masses, [expected[id_] for id_ in batch.indices.tolist()], rtol=1e-12)
                assert changed.max_priority == pytest.approx(max(priorities))


def test_stale_windows_are_skipped():
    """A window is stale once any row of its prefix or its state is lost, even if its own rows remain."""
    buffer = make_sequences(40, 1, sequence_length=3, burn_in=2)
    reference = Reference(buffer, p_end=0.4)
    reference.play(30)
    ids = buffer.transition_ids[buffer.masses > 0]
    n_stale = []
    for _ in range(30):
        reference.play(2)
        td_errors = np.full((3, len(ids)), 5.0)
        # Steps that were padding, or may have been, get NaN, which must not count.
        is_held = np.isin(ids, buffer.transition_ids[buffer.masses > 0])
        mask = np.zeros((3, len(ids)), bool)
        mask[:, is_held] = buffer.read_drawn(ids[is_held] % buffer.masses.size).mask if is_held.any() else False
        td_errors[1:] = np.where(mask[1:], td_errors[1:], np.nan)
        before = buffer.masses
        written = buffer.update_priorities(ids, td_errors)
        assert written == is_held.sum()
        changed = buffer.transition_ids[buffer.masses != before]
        assert set(changed) <= set(ids[is_held])
        n_stale.append(len(ids) - written)
    assert n_stale[0] == 0 and n_stale[-1] == len(ids) and sorted(n_stale) == n_stale


def test_a_bad_update_changes_nothing():
    for ids, td_errors, mask, error, message in [
        ([0, 10**6], np.ones((6, 2)), None, IndexError, "1000000"),
        ([-1], np.ones((6, 1)), None, IndexError, "-1"),
        ([0.5], np.ones((6, 1)), None, IndexError, "integers"),
        ([[0]], np.ones((6, 1)), None, ValueError, r"\(1, 1\)"),
        ([0], np.ones((5, 1)), None, ValueError, r"\(5, 1\), and must have shape \(6, 1\)"),
        ([0], np.ones((1, 6)), None, ValueError, r"\(1, 6\)"),
        ([0], np.ones(6), None, ValueError, r"\(6,\)"),
        ([0], np.ones((6, 1, 0)), None, ValueError, r"\(6, 1, 0\)"),
        ([0], np.full((6, 1), np.nan), None, ValueError, "nan"),
        ([0], np.full((6, 1), -np.inf), np.ones((6, 1)), ValueError, "inf"),
        ([0], np.ones((6, 1)), np.ones((1, 6)), ValueError, r"mask of shape \(1, 6\)"),
        ([0, 2], np.ones((6, 2)), np.arange(2) * np.ones((6, 1)), ValueError, "window 0"),
    ]:
        buffer = played()
        buffer.sample(1)
        before = contents_of(buffer)
        with pytest.raises(error, match=message):
            buffer.update_priorities(np.array(ids), td_errors, mask)
        assert_same_state(contents_of(buffer), before)


def test_an_update_of_zero_windows_writes_nothing():
    buffer = played()
    assert buffer.update_priorities(np.empty(0, np.int64), np.empty((6, 0))) == 0


def test_the_shuffled_control_gives_the_same_priorities_to_other_windows():
    """Single steps and padding are not shuffled: the masses are those of the scheme, in another order."""
    masses = []
    for scheme in (Proportional(alpha=0.7), Shuffled(Proportional(alpha=0.7))):
        buffer = make_sequences(60, 2, sequence_length=6, scheme=scheme)
        Reference(buffer, p_end=0.2).play(50)
        ids = buffer.transition_ids[buffer.masses > 0]
        # A few windows have all of the error.
        errors = np.where(np.arange(len(ids)) < 3, 10.0, 0.01) * np.ones((6, 1))
        assert buffer.update_priorities(ids, errors) == len(ids)
        masses.append(buffer.masses[buffer.masses > 0])
    np.testing.assert_allclose(np.sort(masses[0]), np.sort(masses[1]))
    assert (masses[0] != masses[1]).any()
