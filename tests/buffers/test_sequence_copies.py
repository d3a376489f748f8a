"""Copies of sequence buffers, changes of size and settings, and conversion between transitions and windows."""

import contextlib
import copy
import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_per import (
    PrioritizedReplayBuffer,
    PrioritizedSequenceReplayBuffer,
)
from sb3_per.persistence.buffer_files import load_buffer, save_buffer
from tests.helpers.buffers import assert_same_batches, assert_same_state, fill
from tests.helpers.sequence_reference import SHAPES, SPACES, Reference, make_sequences, played


@pytest.mark.parametrize(
    "scheme, how, n_played",
    [("proportional", "pickle", 95), ("rank", "deepcopy", 3), ("rank", "state", 95)],
)
def test_copies_in_mid_episode_continue_like_the_original(how, n_played, scheme):
    """The copy keeps the same draws, windows and recurrent states while both receive the same steps."""
    buffer = make_sequences(40, 2, n_steps=2, scheme=scheme)
    reference = Reference(buffer, p_end=0.05)
    reference.play(n_played, p_told=0.02)
    if buffer.masses.any():
        batch = buffer.sample(9)
        buffer.update_priorities(batch.indices, np.random.default_rng(0).normal(size=(4, 9)))
    reference.play(2)
    if how == "state":
        clone = type(buffer).from_replay_buffer(copy.deepcopy(buffer))
    else:
        clone = pickle.loads(pickle.dumps(buffer)) if how == "pickle" else copy.deepcopy(buffer)
        assert_same_state(clone, buffer)
    reference.buffers = (buffer, clone)
    for _ in range(8):
        reference.check(clone)
        np.testing.assert_array_equal(clone.priorities, buffer.masses)
        reference.play(6)
    batches = []
    for each in (buffer, clone):
        np.random.seed(0)
        batches.append(each.sample(20))
    assert_same_batches(*batches)


@pytest.mark.parametrize("n_rows, n_played", [(15, 95), (41, 95), (90, 12)])
def test_loading_into_another_size_keeps_the_newest_windows(n_rows, n_played, tmp_path):
    """Every window that is kept has the right contents, its own recurrent state and its own mass."""
    buffer = make_sequences(40, 2, n_steps=2)
    reference = Reference(buffer, p_end=0.05)
    reference.play(n_played, p_told=0.02)
    if buffer.masses.any():
        batch = buffer.sample(9)
        buffer.update_priorities(batch.indices, np.random.default_rng(0).normal(size=(4, 9)))
    save_buffer(buffer, tmp_path / "x.buffer")
    other = load_buffer(make_sequences(n_rows, 2, n_steps=2), tmp_path / "x.buffer")
    masses = dict(zip(buffer.rewards.ravel().tolist(), buffer.masses.ravel().tolist(), strict=True))
    slots = np.flatnonzero(other.masses)
    for slot in slots:
        mass = masses[float(other.rewards.ravel()[slot])]
        assert other.masses.ravel()[slot] in (mass, other.scheme.new_mass(other.max_priority))
    reference.buffers = (other,)
    for _ in range(n_rows // 10 + 2):
        reference.check(other, is_whole=False)
        reference.play(12)
    reference.check(other)


@pytest.mark.parametrize("source, n_played", [("stock", 70), ("prioritized", 14)])
def test_transitions_become_windows(source, n_played):
    """Episode borders come from the dones, and recurrent states are zero."""
    cls: Any = ReplayBuffer if source == "stock" else PrioritizedReplayBuffer
    plain = cls(60, *SPACES, device="cpu", n_envs=2)
    reference = Reference(plain)
    reference.play(n_played, plain=True)
    kwargs: dict[str, Any] = dict(sequence_length=4, burn_in=3, state_shapes=SHAPES)
    buffer = PrioritizedSequenceReplayBuffer.from_replay_buffer(plain, **kwargs)
    reference.buffers = (buffer,)
    for steps in reference.steps:
        # The buffer lost the steps before its oldest step, so an episode starts at that step.
        n_before = steps[-30].t if n_played > 30 else 0
        for i in range(-30, 0) if n_before else ():
            if steps[i].t == n_before + 30 + i:
                steps[i] = steps[i]._replace(t=steps[i].t - n_before)
    for _ in range(20):
        reference.check(buffer, is_whole=False)
        reference.play(3)
    reference.check(buffer)


@pytest.mark.parametrize("changed", [dict(alpha=0.3), dict(beta_end=0.9), dict(eta=0.1), dict(n_steps=3), dict(burn_in=1)])
def test_priorities_stay_unless_the_scheme_or_the_windows_change(changed):
    """Windows and states are compared too, but a change of `burn_in` moves the prefixes, so only later ones count."""
    buffer = make_sequences(40, 2, sequence_period=2, n_steps=2)
    reference = Reference(buffer, p_end=0.1)
    reference.play(95)
    buffer.update_priorities(buffer.sample(9).indices, np.full((4, 9), 3.0))
    before, ids = buffer.masses, buffer.transition_ids
    moves_states = "burn_in" in changed
    with pytest.warns(UserWarning, match="states of the stored steps") if moves_states else contextlib.nullcontext():
        after = PrioritizedSequenceReplayBuffer.from_replay_buffer(buffer, **changed)
    for name, value in changed.items():
        assert value in (getattr(after, name, None), getattr(after.settings, name, None))
    np.testing.assert_array_equal(after.transition_ids, ids)
    keeps = set(changed) <= {"beta_end", "eta"}
    assert (after.masses == before).all() == keeps
    reference.buffers = (after,)
    if not moves_states:
        reference.check(after, is_whole=keeps)
    reference.play(60)
    reference.check(after)


def test_windows_become_new_transitions():
    """Every transition can be drawn, with the priority of a new one."""
    buffer = played()
    plain = PrioritizedReplayBuffer.from_replay_buffer(buffer)
    assert type(plain) is PrioritizedReplayBuffer
    assert (plain.masses[:50] == plain.masses[0, 0]).all()
    assert plain.sample(30).observations.shape == (30, 2)


def test_windows_follow_the_storage_that_another_form_makes():
    """With other `frames`, the steps move to new arrays. Ends of episodes that come later must be seen there."""
    space = spaces.Box(0, 255, (2, 3, 3), np.uint8)
    settings: dict[str, Any] = dict(sequence_length=3, burn_in=1)
    plain = PrioritizedSequenceReplayBuffer(40, space, spaces.Discrete(2), "cpu", 2, **settings)
    fill([plain], 11)
    twin = copy.deepcopy(plain)
    framed = PrioritizedSequenceReplayBuffer.from_replay_buffer(twin, frames=2)
    fill([plain, framed], 23, seed=1)
    np.testing.assert_array_equal(framed.priorities, plain.masses)
    np.random.seed(0)
    expected = plain.sample(20)
    np.random.seed(0)
    assert_same_batches(framed.sample(20), expected)


def test_a_load_says_that_states_are_missing(tmp_path):
    """Of steps that a buffer without states has stored, windows begin with zeros."""
    stored = make_sequences(40, 2, store_state=False)
    Reference(stored).play(30)
    save_buffer(stored, tmp_path / "x.buffer")
    with pytest.warns(UserWarning, match="states of the stored steps"):
        loaded = load_buffer(make_sequences(40, 2), tmp_path / "x.buffer")
    assert not any(state.any() for state in loaded.sample(30).states)
    load_buffer(make_sequences(40, 2, store_state=False), tmp_path / "x.buffer")  # nothing is missing


def numbered(n_rows: int, **settings: Any) -> PrioritizedSequenceReplayBuffer:
    box = spaces.Box(-1e6, 1e6, (1,), np.float32)
    arguments = dict(sequence_length=2, sequence_period=2, burn_in=1, **settings)
    return PrioritizedSequenceReplayBuffer(n_rows, box, spaces.Discrete(2), "cpu", **arguments)


def add_number(buffer: PrioritizedSequenceReplayBuffer, number: int, **optional: Any) -> None:
    obs = np.full((1, 1), number, np.float32)
    buffer.add(obs, obs + 1, np.zeros((1, 1)), np.zeros(1), np.zeros(1), [{}], **optional)


def test_a_longer_burn_in_reads_no_row_from_before_the_oldest_one(tmp_path):
    """In a larger buffer these rows were never written."""
    buffer = numbered(20)
    for number in range(35):
        add_number(buffer, number)
    save_buffer(buffer, tmp_path / "x.buffer")
    longer = PrioritizedSequenceReplayBuffer.from_replay_buffer(load_buffer(numbered(100), tmp_path / "x.buffer"), burn_in=8)
    batch = longer.sample(64)
    assert (batch.prefix_lengths == 8).all()
    for i in range(64):
        first = float(batch.observations[0, i, 0])
        np.testing.assert_array_equal(batch.prefix[:, i, 0], first - np.arange(8, 0, -1))


def test_a_start_of_an_episode_is_kept_if_the_buffer_grows_meanwhile():
    state = np.full((1, 1, 1), 9.0, np.float32)
    grown, reference = (numbered(n_rows, state_shapes=((1, 1),)) for n_rows in (8, 16))
    for buffer in (grown, reference):
        for number in range(8):
            add_number(buffer, number)
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
        array = getattr(grown, name)
        setattr(grown, name, np.concatenate([array, np.zeros_like(array)]))
    grown.buffer_size, grown.full, grown.pos = 16, False, 8
    for buffer in (grown, reference):
        add_number(buffer, 100, episode_starts=np.array([True]), states=(state,))
        for number in (101, 102, 103):
            add_number(buffer, number)
        for name in ("dones", "timeouts"):
            np.testing.assert_array_equal(getattr(grown, name)[:12], getattr(buffer, name)[:12])
    batches = [buffer.sample(40) for buffer in (grown, reference)]
    assert len({frozenset(batch.observations[0, :, 0].tolist()) for batch in batches}) == 1
