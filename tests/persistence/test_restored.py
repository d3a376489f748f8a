"""A save can always be loaded again: with black frames, with frames that were stored again, and before the first draw."""

import itertools
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from sb3_per import PrioritizedDictReplayBuffer, PrioritizedReplayBuffer
from sb3_per.monitoring.monitor import DrawRecord
from sb3_per.persistence.buffer_files import load_buffer, save_buffer
from sb3_per.persistence.generations import manifests_in
from tests.persistence.saved import assert_same, assert_same_newest_steps, change_manifest, make, names_of, snapshot
from tests.utils import add_one, fill, make_buffer

IMAGE = spaces.Box(0, 255, (4, 3, 3), np.uint8)
TWO_IMAGES = spaces.Dict({"depth": IMAGE, "colour": IMAGE})
ACTION = spaces.Discrete(3)


def framed(space: spaces.Space, n_rows: int = 6, frames: int | None = 4) -> PrioritizedReplayBuffer:
    """Return an empty buffer of two environments, whose observations are stacks of frames."""
    is_dict = isinstance(space, spaces.Dict)
    cls = PrioritizedDictReplayBuffer if is_dict else PrioritizedReplayBuffer
    by_key = dict.fromkeys(TWO_IMAGES, frames) if is_dict and frames else frames
    return cls(2 * n_rows, space, ACTION, "cpu", 2, frames=by_key)


def add_stacks(buffer: PrioritizedReplayBuffer, stacks: Any) -> None:
    """Add steps to all environments. Each observation is the next observation of the step before."""
    for obs, next_obs in itertools.pairwise(stacks):
        buffer.add(obs, next_obs, np.zeros((2, 1)), np.ones(2), np.zeros(2), [{}, {}])


def stacks_of(n: int, seed: int = 0) -> list[np.ndarray]:
    """Return stacks of 4 frames for two environments. Each stack has one new frame."""
    film = np.random.default_rng(seed).integers(0, 256, (2, n + 4, 3, 3)).astype(np.uint8)
    return [film[:, i : i + 4] for i in range(n + 1)]


# ---- a save must be loadable


@pytest.mark.parametrize("n_before", [0, 3, 20])
def test_black_frames_can_be_loaded(n_before, tmp_path):
    """All observations in the buffer are black. In some cases, earlier steps had other frames."""
    buffer, black = framed(IMAGE), np.zeros((2, *IMAGE.shape), np.uint8)
    add_stacks(buffer, stacks_of(n_before))
    add_stacks(buffer, [black] * 13)
    for _ in range(2):
        save_buffer(buffer, tmp_path / "x.buffer")
        loaded = load_buffer(framed(IMAGE), tmp_path / "x.buffer")
        assert_same(snapshot(loaded), snapshot(buffer))
        assert not loaded.sample(5).observations.any()
        for each in (loaded, buffer):
            add_stacks(each, stacks_of(2))
        assert_same_newest_steps(loaded, buffer)
        save_buffer(loaded, tmp_path / "x.buffer")
        assert_same_newest_steps(load_buffer(framed(IMAGE), tmp_path / "x.buffer"), buffer)
        add_stacks(buffer, [black] * 13)


def test_a_key_that_is_always_black_can_be_loaded(tmp_path):
    buffer = framed(TWO_IMAGES)
    add_stacks(buffer, [{"depth": np.zeros_like(stack), "colour": stack} for stack in stacks_of(9)])
    save_buffer(buffer, tmp_path / "x.buffer")
    assert_same(snapshot(load_buffer(framed(TWO_IMAGES), tmp_path / "x.buffer")), snapshot(buffer))


@pytest.mark.parametrize("part, name, value", [("weights", "beta", 1.5), ("sampler", "max_priority", -1.0)])
def test_a_buffer_that_could_not_be_loaded_is_not_saved(part, name, value, tmp_path):
    """A value that was set by hand is out of range. Every save then raises an error, and the files of the last save stay."""
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
    assert_same(snapshot(load_buffer(framed(IMAGE), path)), snapshot(buffer))


def test_a_generation_with_an_impossible_value_is_skipped(tmp_path):
    """The checksums of the generation are correct. The older generation is loaded."""
    buffer, path = make_buffer(), tmp_path / "x.buffer"
    for i in range(2):
        fill([buffer], 3)
        save_buffer(buffer, path, i)
    newest, _ = manifests_in(path)
    change_manifest(path / newest, lambda content: content["numbers"].update({"weights/beta": 7.0}))
    with pytest.warns(UserWarning, match=r"beta must be in .* An older generation was loaded instead"):
        assert load_buffer(buffer, path).size() == 3


# ---- frames that are stored again


@pytest.mark.parametrize(
    "n_before, n_between, n_after, others",
    [(2, 0, 0, [None]), (2, 3, 8, [2, None]), (9, 0, 1, [2, None]), (9, 3, 0, [None]), (9, 3, 8, [2, None])],
)
def test_frames_are_saved_again_after_their_settings_changed(n_before, n_between, n_after, others, tmp_path):
    """The buffer gets other frame settings for a while, and then those of the first save again."""
    buffer, path, stacks = framed(IMAGE), tmp_path / "x.buffer", stacks_of(20, 1)
    add_stacks(buffer, stacks[: n_before + 1])
    save_buffer(buffer, path)
    for frames in others:
        buffer = PrioritizedReplayBuffer.from_replay_buffer(buffer, frames=frames)
        add_stacks(buffer, stacks[n_before : n_before + n_between + 1])
    buffer = PrioritizedReplayBuffer.from_replay_buffer(buffer, frames=4)
    add_stacks(buffer, stacks[n_before + n_between : n_before + n_between + n_after + 1])
    save_buffer(buffer, path)
    assert_same_newest_steps(load_buffer(framed(IMAGE), path), buffer)


# ---- masses, draw record and lock


@pytest.mark.parametrize("n_rows", [16, 4])
def test_given_masses_are_saved_before_the_first_draw(n_rows, tmp_path):
    """Until the first draw, masses that come with transitions are not in the tree."""
    buffer = make("actors", scheme="proportional")
    for envs, n in (([0, 1], 3), ([1], 7), ([1], 5)):
        rewards, errors = np.zeros((n, len(envs))), np.arange(1.0, n * len(envs) + 1).reshape(n, len(envs))
        obs = np.zeros((n, len(envs), 3), np.float32)
        buffer.add_steps(np.array(envs), obs, obs, obs[..., :2], rewards, rewards, rewards, errors)
    save_buffer(buffer, tmp_path / "x.buffer")
    loaded = load_buffer(make("actors", n_rows, scheme="proportional"), tmp_path / "x.buffer")
    assert_same_newest_steps(loaded, buffer)
    assert len(np.unique(loaded.priorities)) > 3


@pytest.mark.parametrize("n_rows", [5, 10])
def test_the_draw_record_of_a_loaded_buffer_is_empty(n_rows, tmp_path):
    """The draw record of the buffer that loads does not change."""
    buffer, current = make_buffer(10), make_buffer(n_rows)
    fill([buffer], 25)
    save_buffer(buffer, tmp_path / "x.buffer")
    fill([current], 30)
    current.draw_record = DrawRecord(n_rows, n_batches=3)
    current.sample(8)
    loaded = load_buffer(current, tmp_path / "x.buffer")
    assert loaded.draw_record is not None and not loaded.draw_record.batches
    assert loaded.draw_record.counts(loaded.transition_ids[loaded.transition_ids >= 0]).sum() == 0
    for _ in range(5):
        loaded.sample(8)
    assert loaded.draw_record.counts(loaded.transition_ids[loaded.transition_ids >= 0]).sum() == 40
    assert len(loaded.draw_record.batches) == 3
    assert current.draw_record.counts(current.transition_ids[current.transition_ids >= 0]).sum() == 8


def test_saving_does_not_follow_a_linked_lock_file(tmp_path):
    buffer, path, victim = make_buffer(), tmp_path / "x.buffer", tmp_path / "victim"
    add_one(buffer)
    save_buffer(buffer, path)
    (path / ".lock").unlink(missing_ok=True)
    (path / ".lock").symlink_to(victim)
    victim.write_text("precious")
    with pytest.raises(OSError, match=r"\.lock"):
        save_buffer(buffer, path)
    assert victim.read_text() == "precious"
