"""Saved buffers can be restored: black frames, frames that were stored anew, masses before the first draw."""

import itertools
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from sb3_per import PrioritizedDictReplayBuffer, PrioritizedReplayBuffer
from sb3_per.monitoring.draw_record import DrawRecord
from sb3_per.persistence.buffer_files import load_buffer, save_buffer
from sb3_per.persistence.generations import manifests_in
from tests.persistence.saved import assert_newest, assert_same, held, make, names_of, resign
from tests.utils import add_one, fill, make_buffer

IMAGE = spaces.Box(0, 255, (4, 3, 3), np.uint8)
TWO_IMAGES = spaces.Dict({"depth": IMAGE, "colour": IMAGE})
ACTION = spaces.Discrete(3)


def framed(space: spaces.Space, n_rows: int = 6, frames: int | None = 4) -> PrioritizedReplayBuffer:
    """A buffer of two environments with all observations in frames."""
    is_dict = isinstance(space, spaces.Dict)
    cls = PrioritizedDictReplayBuffer if is_dict else PrioritizedReplayBuffer
    by_key = dict.fromkeys(TWO_IMAGES, frames) if is_dict and frames else frames
    return cls(2 * n_rows, space, ACTION, "cpu", 2, frames=by_key)


def add_stacks(buffer: PrioritizedReplayBuffer, stacks: Any) -> None:
    """Steps of all environments; each observation is the next observation of the step before."""
    for obs, next_obs in itertools.pairwise(stacks):
        buffer.add(obs, next_obs, np.zeros((2, 1)), np.ones(2), np.zeros(2), [{}, {}])


def stacks_of(n: int, seed: int = 0) -> list[np.ndarray]:
    """Stacks of 4 frames, of two environments, that move on by a frame."""
    film = np.random.default_rng(seed).integers(0, 256, (2, n + 4, 3, 3)).astype(np.uint8)
    return [film[:, i : i + 4] for i in range(n + 1)]


# ---- a generation counts if it can be restored


@pytest.mark.parametrize("n_before", [0, 3, 20])
def test_black_frames_can_be_loaded(n_before, tmp_path):
    """All that is held is black; with and without frames that were there before."""
    buffer, black = framed(IMAGE), np.zeros((2, *IMAGE.shape), np.uint8)
    add_stacks(buffer, stacks_of(n_before))
    add_stacks(buffer, [black] * 13)
    for _ in range(2):
        save_buffer(buffer, tmp_path / "x.buffer")
        loaded = load_buffer(framed(IMAGE), tmp_path / "x.buffer")
        assert_same(held(loaded), held(buffer))
        assert not loaded.sample(5).observations.any()
        for each in (loaded, buffer):
            add_stacks(each, stacks_of(2))
        assert_newest(loaded, buffer)
        save_buffer(loaded, tmp_path / "x.buffer")
        assert_newest(load_buffer(framed(IMAGE), tmp_path / "x.buffer"), buffer)
        add_stacks(buffer, [black] * 13)


def test_a_key_that_is_always_black_can_be_loaded(tmp_path):
    buffer = framed(TWO_IMAGES)
    add_stacks(buffer, [{"depth": np.zeros_like(stack), "colour": stack} for stack in stacks_of(9)])
    save_buffer(buffer, tmp_path / "x.buffer")
    assert_same(held(load_buffer(framed(TWO_IMAGES), tmp_path / "x.buffer")), held(buffer))


@pytest.mark.parametrize("part, name, value", [("weights", "beta", 1.5), ("sampler", "max_priority", -1.0)])
def test_a_buffer_that_could_not_be_loaded_is_not_saved(part, name, value, tmp_path):
    """Values that were set by hand; what was saved before stays, however often that is tried."""
    buffer, path = framed(IMAGE), tmp_path / "x.buffer"
    add_stacks(buffer, stacks_of(9))
    save_buffer(buffer, path)
    before, good = names_of(path), getattr(getattr(buffer, part), name)
    setattr(getattr(buffer, part), name, value)
    for _ in range(3):
        add_stacks(buffer, stacks_of(2))
        with pytest.raises(ValueError, match=rf"could not be loaded again: .*{name} must be .* not {value}"):
            save_buffer(buffer, path)
    assert names_of(path) == before
    setattr(getattr(buffer, part), name, good)
    save_buffer(buffer, path)
    assert_same(held(load_buffer(framed(IMAGE), path)), held(buffer))


def test_a_generation_that_contradicts_itself_is_skipped(tmp_path):
    """Its checksums fit. The older generation is loaded."""
    buffer, path = make_buffer(), tmp_path / "x.buffer"
    for i in range(2):
        fill([buffer], 3)
        save_buffer(buffer, path, i)
    newest, _ = manifests_in(path)
    resign(path / newest, lambda content: content["numbers"].update({"weights/beta": 7.0}))
    with pytest.warns(UserWarning, match=r"beta must be in .* An older generation was loaded instead"):
        assert load_buffer(buffer, path).size() == 3


# ---- frames that are stored anew


@pytest.mark.parametrize(
    "n_before, n_between, n_after, others",
    [(2, 0, 0, [None]), (2, 3, 8, [2, None]), (9, 0, 1, [2, None]), (9, 3, 0, [None]), (9, 3, 8, [2, None])],
)
def test_frames_that_were_stored_anew_are_saved_anew(n_before, n_between, n_after, others, tmp_path):
    """With other settings for a while, and then with those that an earlier save was made with."""
    buffer, path, stacks = framed(IMAGE), tmp_path / "x.buffer", stacks_of(20, 1)
    add_stacks(buffer, stacks[: n_before + 1])
    save_buffer(buffer, path)
    for frames in others:
        buffer = PrioritizedReplayBuffer.from_replay_buffer(buffer, frames=frames)
        add_stacks(buffer, stacks[n_before : n_before + n_between + 1])
    buffer = PrioritizedReplayBuffer.from_replay_buffer(buffer, frames=4)
    add_stacks(buffer, stacks[n_before + n_between : n_before + n_between + n_after + 1])
    save_buffer(buffer, path)
    assert_newest(load_buffer(framed(IMAGE), path), buffer)


# ---- beside the contents


@pytest.mark.parametrize("n_rows", [16, 4])
def test_given_masses_are_saved_before_the_first_draw(n_rows, tmp_path):
    """Saved before anything was drawn, when they are not in the tree yet."""
    buffer = make("actors", scheme="proportional", kappa=1.0)
    for envs, n in (([0, 1], 3), ([1], 7), ([1], 5)):
        rewards, errors = np.zeros((n, len(envs))), np.arange(1.0, n * len(envs) + 1).reshape(n, len(envs))
        obs = np.zeros((n, len(envs), 3), np.float32)
        buffer.add_steps(np.array(envs), obs, obs, obs[..., :2], rewards, rewards, rewards, errors)
    save_buffer(buffer, tmp_path / "x.buffer")
    loaded = load_buffer(make("actors", n_rows, scheme="proportional", kappa=1.0), tmp_path / "x.buffer")
    assert_newest(loaded, buffer)
    assert len(np.unique(loaded.priorities)) > 3


@pytest.mark.parametrize("n_rows", [5, 10])
def test_draws_of_a_loaded_buffer_are_counted_anew(n_rows, tmp_path):
    buffer, live = make_buffer(10), make_buffer(n_rows)
    fill([buffer], 25)
    save_buffer(buffer, tmp_path / "x.buffer")
    fill([live], 30)
    live.draw_record = DrawRecord(n_rows, n_batches=3)
    live.sample(8)
    loaded = load_buffer(live, tmp_path / "x.buffer")
    assert loaded.draw_record is not None and not loaded.draw_record.batches
    assert loaded.draw_record.counts(loaded.transition_ids[loaded.transition_ids >= 0]).sum() == 0
    for _ in range(5):
        loaded.sample(8)
    assert loaded.draw_record.counts(loaded.transition_ids[loaded.transition_ids >= 0]).sum() == 40
    assert len(loaded.draw_record.batches) == 3
    assert live.draw_record.counts(live.transition_ids[live.transition_ids >= 0]).sum() == 8


def test_saving_follows_no_linked_lock(tmp_path):
    buffer, path, victim = make_buffer(), tmp_path / "x.buffer", tmp_path / "victim"
    add_one(buffer)
    save_buffer(buffer, path)
    (path / ".lock").unlink(missing_ok=True)
    (path / ".lock").symlink_to(victim)
    victim.write_text("precious")
    with pytest.raises(OSError, match=r"\.lock"):
        save_buffer(buffer, path)
    assert victim.read_text() == "precious"
