"""Saving and loading demonstrations: they are written once, and are restored with their masses."""

import numpy as np
import pytest

from sb3_per import PrioritizedHerReplayBuffer
from sb3_per.integrations.saved_demonstrations import add_saved_demonstrations
from sb3_per.persistence.buffer_files import SavedBuffer, load_buffer, save_buffer
from sb3_per.persistence.generations import Manifest, manifest_names_in
from tests.helpers.buffers import assert_same_batches, fill, make_buffer
from tests.helpers.demonstrations import bounded, demonstration_ids, demonstrations, mixed, record
from tests.helpers.her import Player, make_env, make_her
from tests.helpers.messages import no_user_warnings


def assert_same_draws(first, second):
    batches = []
    for buffer in (first, second):
        np.random.seed(0)
        batches.append(buffer.sample(64))
    assert_same_batches(*batches)
    np.testing.assert_array_equal(batches[0].is_demonstration, batches[1].is_demonstration)


@pytest.mark.parametrize("scheme", ["proportional", "rank"])
def test_demonstrations_are_restored_with_the_buffer(tmp_path, scheme):
    settings = dict(scheme=scheme, demonstration_fraction=0.4, demonstration_fraction_end=0.2, n_steps=3)
    buffer = mixed(**settings)
    buffer.update_beta(0.5)
    save_buffer(buffer, tmp_path / "b.buffer")
    assert_same_draws(load_buffer(make_buffer(12, 2, **settings), tmp_path / "b.buffer"), buffer)


def test_demonstrations_are_written_once(tmp_path):
    """
    Later saves refer to the file of the first save, also after a load. Demonstrations that are added later are saved as well.
    """
    path, buffer = tmp_path / "b.buffer", mixed()
    saved = SavedBuffer(path)

    def parts():
        manifest = Manifest.read(path / manifest_names_in(path)[0])
        return [part.name for part in manifest.of_stream("demonstrations/rows")]

    saved.save(buffer)
    first = parts()
    fill([buffer], 5)
    buffer.update_priorities(demonstration_ids(buffer), np.arange(7.0))
    saved.save(buffer)
    assert parts() == first and len(first) == 1
    saved = SavedBuffer(path)
    loaded = saved.load(make_buffer(12, 2, demonstration_fraction=0.25))
    assert_same_draws(loaded, buffer)
    saved.save(loaded)
    assert parts() == first
    loaded.add_demonstrations(*demonstrations(loaded.observation_space, 3, seed=1))
    saved.save(loaded)
    assert_same_draws(load_buffer(buffer, path), loaded)


def test_demonstrations_load_with_another_size_or_scheme(tmp_path):
    buffer = mixed()
    save_buffer(buffer, tmp_path / "b.buffer")
    larger = load_buffer(make_buffer(30, 2, demonstration_fraction=0.25), tmp_path / "b.buffer")
    np.random.seed(0)
    ids = demonstration_ids(larger)
    np.testing.assert_array_equal(ids, demonstration_ids(buffer))
    with pytest.warns(UserWarning, match="largest priority"):
        other = load_buffer(make_buffer(12, 2, demonstration_fraction=0.25, scheme="lap"), tmp_path / "b.buffer")
    batch = other.sample(28)
    assert [(batch.indices == i).sum() for i in ids] == [1] * 7


def test_loading_a_save_without_demonstrations_removes_the_current_ones(tmp_path):
    plain = make_buffer(12, 2)
    fill([plain], 20)
    save_buffer(plain, tmp_path / "b.buffer")
    loaded = load_buffer(mixed(), tmp_path / "b.buffer")
    assert len(loaded.demonstrations) == 0 and loaded.size() == plain.size()


def test_frames_of_demonstrations_are_restored_after_a_second_addition(tmp_path):
    from gymnasium import spaces

    from sb3_per import PrioritizedReplayBuffer
    from tests.helpers.frames import ACTIONS, Stream, shape_of

    def new():
        space = spaces.Box(0, 255, shape_of("channels first", 4), np.uint8)
        return PrioritizedReplayBuffer(24, space, ACTIONS, "cpu", 1, frames=4, demonstration_fraction=1.0)

    buffer, stream, observations = new(), Stream("channels first", 4, np.uint8, 1, 0), []
    for n in (30, 50):
        obs, next_obs, dones, infos = (list(part) for part in zip(*(stream.step() for _ in range(n)), strict=True))
        observations += obs
        rest = (np.zeros((n, 1, 1)), np.zeros((n, 1)), np.array(dones), infos)
        buffer.add_demonstrations(np.array(obs), np.array(next_obs), *rest)
        save_buffer(buffer, tmp_path / "b.buffer")
    loaded = load_buffer(new(), tmp_path / "b.buffer")
    assert_same_draws(loaded, buffer)
    batch = loaded.sample(100)
    rows = batch.indices - demonstration_ids(loaded)[0]
    np.testing.assert_array_equal(batch.observations.numpy(), np.array(observations)[rows, 0])


def test_a_saved_buffer_can_be_added_as_demonstrations(tmp_path):
    """A saved buffer with another action space and an empty directory are refused."""
    saved = make_buffer(12, 2, scheme="lap")
    fill([saved], 30)
    save_buffer(saved, tmp_path / "b.buffer")
    buffer = make_buffer(5, 3, demonstration_fraction=1.0)
    with no_user_warnings():  # the scheme of the saved buffer does not matter
        assert add_saved_demonstrations(buffer, tmp_path / "b.buffer") == 24
    assert set(buffer.sample(100).rewards.ravel().tolist()) == set(saved.rewards.ravel().tolist())
    with pytest.raises(ValueError, match="action_space"):
        add_saved_demonstrations(make_buffer(5, action_space="discrete"), tmp_path / "b.buffer")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="empty"):
        add_saved_demonstrations(buffer, tmp_path / "empty")


def test_demonstrations_of_a_saved_buffer_are_added_with_its_experience(tmp_path):
    for n_rows, name in ((12, "full.buffer"), (0, "empty.buffer")):
        saved = mixed(n_demonstrations=9)
        if n_rows == 0:
            saved.reset()
        save_buffer(saved, tmp_path / name)
        buffer = make_buffer(5, 3, demonstration_fraction=1.0)
        assert add_saved_demonstrations(buffer, tmp_path / name) == n_rows * 2 + 9
        expected = [*saved.rewards[:n_rows].ravel(), *saved.demonstrations.buffer.rewards[:9, 0]]
        assert sorted(buffer.demonstrations.buffer.rewards[: len(buffer.demonstrations), 0]) == sorted(expected)


def test_actions_of_a_saved_buffer_with_other_bounds_are_scaled_anew(tmp_path):
    saved, buffer = bounded(-4, 4), bounded(-1, 3)
    raw = np.random.default_rng(0).uniform(-1, 3, (6, 2, 2))
    record(saved, raw, is_demonstration=False)
    save_buffer(saved, tmp_path / "b.buffer")
    assert add_saved_demonstrations(buffer, tmp_path / "b.buffer") == 12
    expected = ((raw - 1) / 2).swapaxes(0, 1).reshape(12, 2)
    np.testing.assert_allclose(buffer.demonstrations.buffer.actions[:12, 0], expected, atol=1e-6)
    with pytest.raises(ValueError, match="outside of the action space"):
        add_saved_demonstrations(bounded(-1, 1), tmp_path / "b.buffer")


def test_a_saved_buffer_with_hindsight_may_have_another_number_of_environments(tmp_path):
    env, one_env = make_env(2), make_env(1)
    saved = make_her(PrioritizedHerReplayBuffer, env)
    Player(env, saved, seed=3).step(10)
    save_buffer(saved, tmp_path / "b.buffer")
    buffer = make_her(PrioritizedHerReplayBuffer, one_env, demonstration_fraction=0.5)
    assert add_saved_demonstrations(buffer, tmp_path / "b.buffer") == 20


def test_saved_observations_of_another_kind_are_refused(tmp_path):
    saved = make_buffer(12, 1, "dict")
    fill([saved], 5)
    save_buffer(saved, tmp_path / "b.buffer")
    with pytest.raises(ValueError, match=r"b\.buffer has observation_space"):
        add_saved_demonstrations(make_buffer(5), tmp_path / "b.buffer")


def test_an_older_save_is_added_where_the_newest_is_damaged(tmp_path):
    saved = make_buffer(12)
    fill([saved], 5)
    for _ in range(2):
        save_buffer(saved, tmp_path / "b.buffer")
        fill([saved], 1)
    newest = tmp_path / "b.buffer" / manifest_names_in(tmp_path / "b.buffer")[0]
    newest.write_bytes(newest.read_bytes()[:60])
    with pytest.warns(UserWarning):
        assert add_saved_demonstrations(make_buffer(5, demonstration_fraction=0.5), tmp_path / "b.buffer") == 5


def test_a_save_without_last_observations_is_refused(tmp_path):
    saved = make_buffer(12, optimize_memory_usage=True, handle_timeout_termination=False)
    fill([saved], 5)
    save_buffer(saved, tmp_path / "b.buffer")
    with pytest.raises(ValueError, match="was saved with optimize_memory_usage=True"):
        add_saved_demonstrations(make_buffer(5, demonstration_fraction=0.5), tmp_path / "b.buffer")
