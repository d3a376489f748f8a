"""Loading into a buffer of another size, with other frames or another scheme, and refusal of buffers that do not fit."""

import re
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import sb3_per.persistence.streams as streams
from sb3_per import PrioritizedReplayBuffer, Proportional
from sb3_per.persistence.buffer_files import SavedBuffer, load_buffer, save_buffer
from sb3_per.persistence.generations import DamagedFileError
from tests.helpers.buffers import ACTION_SPACES, OBSERVATION_SPACES, fill, make_buffer
from tests.helpers.messages import no_user_warnings
from tests.helpers.saved import Player, assert_same, assert_same_newest_steps, column, make, snapshot


@pytest.mark.parametrize(
    "kind, n_rows, steps_per_save",
    [
        ("plain", 3, [20, 3, 40, 1]),
        ("memory", 15, [9, 7]),
        ("frames", 40, [40, 3]),
        ("rank", 15, [20, 3, 40, 1]),
    ],
)
def test_the_newest_steps_that_fit_are_loaded(kind, n_rows, steps_per_save, tmp_path, monkeypatch):
    """
    Each environment gets its newest transitions, with their masses and new ids. 16 rows were saved, in several files, before
    and after the ring has wrapped. The loaded buffer can be used, saved and loaded like any other.
    """
    monkeypatch.setattr(streams, "_SMALL_BYTES", 0)
    monkeypatch.setattr(streams, "_SMALL_SHARE", 0)
    buffer, saved = make(kind), SavedBuffer(tmp_path / "x.buffer")
    player = Player(buffer, seed=n_rows)
    for n in steps_per_save:
        player.play(n)
        saved.save(buffer)
    loaded = load_buffer(make(kind, n_rows), saved.path)
    assert loaded.buffer_size == n_rows
    is_rank = kind == "rank"
    assert_same_newest_steps(loaded, buffer, with_masses=not is_rank)
    if is_rank:
        n = loaded.size()
        order = [np.argsort(np.concatenate([column(b, e)["masses"][-n:] for e in range(2)])) for b in (loaded, buffer)]
        np.testing.assert_array_equal(*order)
    assert (loaded.beta, loaded.max_priority) == (buffer.beta, buffer.max_priority)
    assert loaded.transition_ids[loaded.transition_ids >= 0].min(initial=10**9) >= buffer.numbering.next_id
    Player(loaded, seed=1).play(5)
    saved.save(loaded)
    assert_same(snapshot(load_buffer(make(kind, n_rows), saved.path)), snapshot(loaded))


def test_her_draws_only_complete_episodes_after_loading(tmp_path):
    buffer, n_rows = make("her"), 6
    Player(buffer).play(40)
    save_buffer(buffer, tmp_path / "x.buffer")
    loaded = load_buffer(make("her", n_rows), tmp_path / "x.buffer")
    assert_same_newest_steps(loaded, buffer, with_masses=False)
    n = loaded.size()
    rows, old_rows = ((b.pos - n + np.arange(n)) % b.buffer_size for b in (loaded, buffer))
    for env in range(2):
        since_start = (old_rows - buffer.ep_start[old_rows, env]) % buffer.buffer_size
        is_whole = (since_start <= np.arange(n)) & (buffer.ep_length[old_rows, env] > 0)
        np.testing.assert_array_equal(loaded.ep_length[rows, env], is_whole * buffer.ep_length[old_rows, env])
        np.testing.assert_array_equal(((rows - loaded.ep_start[rows, env]) % n_rows)[is_whole], since_start[is_whole])
        np.testing.assert_array_equal(loaded.masses[rows, env], is_whole * buffer.masses[old_rows, env])
    Player(loaded).play(30)


@pytest.mark.parametrize("n_rows", [9, 40])
def test_complete_sequences_are_loaded(n_rows, tmp_path):
    """A sequence that can be drawn after loading has the mass, the steps and the states of the saved buffer."""
    buffer = make("sequences")
    rng = np.random.default_rng(0)
    for _ in range(25):
        obs, done = rng.uniform(-1, 1, (2, 3)).astype(np.float32), rng.random(2) < 0.1
        buffer.add(obs, obs, obs[:, :2], obs[:, 0], done, [{}, {}], states=[rng.normal(size=(1, 2, 2))])
    save_buffer(buffer, tmp_path / "x.buffer")
    loaded = load_buffer(make("sequences", n_rows), tmp_path / "x.buffer")
    assert_same_newest_steps(loaded, buffer, with_masses=False)
    n, ids = loaded.size(), loaded.transition_ids
    old_ids = ids - loaded.numbering.next_id + buffer.numbering.next_id
    for row, env in np.argwhere(loaded.masses > 0):
        slot, old_slot = row * 2 + env, old_ids[row, env] % 32
        assert loaded.masses[row, env] == buffer.masses.reshape(-1)[old_slot] > 0
        new, old = (b.read_drawn(np.array([s])) for b, s in ((loaded, slot), (buffer, old_slot)))
        for name in ("observations", "actions", "rewards", "mask"):
            np.testing.assert_array_equal(getattr(new, name), getattr(old, name), err_msg=name)
        for state, saved in zip(new.states, old.states, strict=True):
            np.testing.assert_array_equal(state, saved)
    assert n == min(16, n_rows) and (n_rows < 16 or loaded.masses.any())
    Player(loaded).play(20)


@pytest.mark.parametrize("frames, n_rows", [(None, 5), ({"image": 3, "a/../b": 3}, 40)], ids=str)
def test_frames_of_the_model_win_over_saved_ones(frames, n_rows, tmp_path):
    """Frames, scheme and size all differ from the saved buffer."""
    buffer = make("frames")
    Player(buffer, seed=3).add(40)
    save_buffer(buffer, tmp_path / "x.buffer")
    with pytest.warns(UserWarning, match="all transitions get the largest priority"):
        loaded = load_buffer(make("frames", n_rows, frames=frames, scheme="rank"), tmp_path / "x.buffer")
    assert_same_newest_steps(loaded, buffer, with_masses=False)
    assert loaded.settings.frames == frames
    assert np.count_nonzero(loaded.masses) == loaded.numbering.n


# ---- another scheme


class Own(Proportional):
    """A user's scheme."""


@pytest.mark.parametrize("changed", [dict(scheme="rank"), dict(scheme=Own())], ids=str)
def test_loading_with_another_scheme_sets_all_priorities_to_the_largest(changed, tmp_path):
    """Loading warns, also in the opposite direction. Transition ids, beta and the largest priority stay."""
    buffer, path = make_buffer(20, 2), tmp_path / "x.buffer"
    fill([buffer], 15)
    buffer.update_priorities(np.arange(30), np.arange(30.0))
    save_buffer(buffer, path)
    with pytest.warns(UserWarning, match=r"'proportional'.*'alpha': 0\.6.*, and this buffer has .*all transitions get the"):
        loaded = load_buffer(make_buffer(20, 2, **changed), path)
    assert (loaded.max_priority, loaded.beta) == (buffer.max_priority, buffer.beta)
    np.testing.assert_array_equal(loaded.transition_ids, buffer.transition_ids)
    assert (loaded.masses[:15] > 0).all()
    if changed.get("scheme") != "rank":
        np.testing.assert_array_equal(loaded.masses[:15], float(loaded.scheme.new_mass(loaded.max_priority)))
    save_buffer(loaded, path)
    with pytest.warns(UserWarning, match="all transitions"):
        back = load_buffer(buffer, path)
    assert len(np.unique(back.priorities[:15])) == 1


class Squares(Own):
    """Another scheme of a user's with the same settings, and other priorities."""

    def priority(self, abs_td_errors: np.ndarray) -> np.ndarray:
        return abs_td_errors**2 + self.epsilon


class FirstCritic(Own):
    """One that differs only with several critics."""

    def reduce(self, abs_td_errors: np.ndarray) -> np.ndarray:
        return abs_td_errors[:, 0]


class Capped(Own):
    """One that differs only for large errors."""

    def mass(self, priority: Any) -> np.ndarray:
        return np.minimum(super().mass(priority), 4.0)


class Rounded(Own):
    """The same scheme on a processor whose powers differ in the last digit."""

    def mass(self, priority: Any) -> np.ndarray:
        return np.nextafter(super().mass(priority), np.inf)


@pytest.mark.parametrize("scheme", [Squares(), FirstCritic(), Capped()], ids=lambda scheme: type(scheme).__name__)
def test_schemes_of_a_user_are_told_apart_by_their_masses(scheme, tmp_path):
    """Files have no names of classes. Loading with other masses does what `from_replay_buffer` does."""
    buffer, path = make_buffer(20, 2, scheme=Own()), tmp_path / "x.buffer"
    fill([buffer], 15)
    buffer.update_priorities(np.arange(30), np.arange(30.0))
    save_buffer(buffer, path)
    with pytest.warns(UserWarning, match=r"was saved with .*'masses': .*all transitions get the largest priority"):
        loaded = load_buffer(make_buffer(20, 2, scheme=scheme), path)
    taken = PrioritizedReplayBuffer.from_replay_buffer(buffer, scheme=scheme)
    np.testing.assert_array_equal(loaded.masses, taken.priorities)
    assert len(np.unique(loaded.masses[:15])) == 1


@pytest.mark.parametrize(
    "scheme, other", [("proportional", Proportional(alpha=0.6)), (Own(), Own()), (Own(), Rounded())], ids=str
)
def test_priorities_survive_if_the_settings_of_the_scheme_are_equal(scheme, other, tmp_path):
    buffer = make_buffer(20, 2, scheme=scheme)
    fill([buffer], 15)
    buffer.update_priorities(np.arange(30), np.arange(30.0))
    save_buffer(buffer, tmp_path / "x.buffer")
    with no_user_warnings():
        loaded = load_buffer(make_buffer(20, 2, scheme=other), tmp_path / "x.buffer")
    np.testing.assert_array_equal(loaded.masses, buffer.masses)


def test_loading_with_other_windows_sets_all_priorities_to_the_largest(tmp_path):
    buffer = make("sequences")
    Player(buffer).play(14)
    save_buffer(buffer, tmp_path / "x.buffer")
    with pytest.warns(UserWarning, match="all transitions get the largest priority"):
        loaded = load_buffer(make("sequences", n_steps=3), tmp_path / "x.buffer")
    np.testing.assert_array_equal(loaded.rewards, buffer.rewards)
    masses = loaded.masses[loaded.masses > 0]
    assert len(masses) and len(np.unique(masses)) == 1


# ---- what does not fit


def buffer_with(name: str, value: Any) -> PrioritizedReplayBuffer:
    arguments: dict[str, Any] = dict(
        observation_space=OBSERVATION_SPACES["box"], action_space=ACTION_SPACES["box"], n_envs=2, device="cpu"
    )
    return PrioritizedReplayBuffer(40, **{**arguments, name: value})


MISFITS: list[tuple[str, Any, str]] = [
    ("observation_space", spaces.Box(-1, 1, (4,), np.float32), "'shape': [3]"),
    ("observation_space", spaces.Box(-1, 1, (3,), np.float64), "'dtype': 'float32'"),
    ("observation_space", spaces.MultiDiscrete([3, 3, 3]), "'type': 'box'"),
    ("action_space", spaces.Box(-2, 2, (2,), np.float32), "'low': [-1.0, -1.0]"),
    ("action_space", spaces.Discrete(4), "'type': 'box'"),
    ("n_envs", 4, "2"),
]


def test_other_spaces_or_numbers_of_environments_are_refused(tmp_path):
    """The error names the setting and the saved value. The buffer in RAM does not change."""
    buffer = make_buffer(20, 2)
    fill([buffer], 15)
    save_buffer(buffer, tmp_path / "x.buffer")
    for name, value, saved in MISFITS:
        current = buffer_with(name, value)
        fill([current], 3)
        before = snapshot(current)
        with pytest.raises(ValueError, match=rf"{name} .*{re.escape(saved)}.*, and the model has"):
            load_buffer(current, tmp_path / "x.buffer")
        assert_same(snapshot(current), before)
    with pytest.raises(ValueError, match="has optimize_memory_usage False, and the model has True"):
        load_buffer(make("memory"), tmp_path / "x.buffer")


def test_sequences_with_other_settings_are_refused(tmp_path):
    save_buffer(make("sequences"), tmp_path / "x.buffer")
    with pytest.raises(ValueError, match="has sequences"):
        load_buffer(make("sequences", sequence_period=3), tmp_path / "x.buffer")
    with pytest.raises(ValueError, match="has kind sequences, and the model has transitions"):
        load_buffer(make("plain"), tmp_path / "x.buffer")


def test_other_bounds_of_observations_are_allowed(tmp_path):
    """Observations are stored unscaled. Only actions are scaled by the bounds of their space."""
    buffer = make_buffer(20, 2)
    fill([buffer], 15)
    save_buffer(buffer, tmp_path / "x.buffer")
    unbounded = buffer_with("observation_space", spaces.Box(-np.inf, np.inf, (3,), np.float32))
    assert_same_newest_steps(load_buffer(unbounded, tmp_path / "x.buffer"), buffer)


def test_arrays_of_another_type_are_refused(tmp_path):
    """The files are whole, so they are not reported as damaged. The buffer in RAM does not change."""
    buffer, current = make_buffer(20, 2), make_buffer(20, 2)
    buffer.observations = buffer.observations.astype(np.float16)
    fill([buffer, current], 15)
    save_buffer(buffer, tmp_path / "x.buffer")
    before = snapshot(current)
    with pytest.raises(ValueError, match=r"has arrays_by_row .*<f2") as error:
        load_buffer(current, tmp_path / "x.buffer")
    assert not isinstance(error.value, DamagedFileError)
    assert_same(snapshot(current), before)


def test_the_oldest_step_is_left_out_whose_observation_was_overwritten(tmp_path):
    """With `optimize_memory_usage`, a full buffer has the newest next observation in its place."""
    buffer = make("memory", 8, 1)
    for i in range(11):
        obs = np.full((2, 1, 3), [[[i]], [[i + 1]]], np.float32)
        buffer.add(*obs, np.zeros((1, 2)), np.zeros(1), np.zeros(1), [{}])
    save_buffer(buffer, tmp_path / "x.buffer")
    loaded = load_buffer(make("memory", 20, 1), tmp_path / "x.buffer")
    batch = loaded.sample(100)
    assert set(batch.observations[:, 0].tolist()) == set(range(4, 11))
    np.testing.assert_array_equal(batch.next_observations, batch.observations + 1)
