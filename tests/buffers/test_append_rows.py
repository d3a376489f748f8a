"""Steps of actors, which are appended to a buffer of one environment in chunks, against single steps."""

import copy
import functools
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_per import PrioritizedDictReplayBuffer, PrioritizedReplayBuffer
from sb3_per.persistence.buffer_files import load_buffer, save_buffer
from tests.helpers.buffers import make_buffer
from tests.helpers.frames import Stream, same_bytes
from tests.helpers.interrupts import interrupted

ARRAYS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


def chunk_of(rng: Any, n: int) -> dict[str, np.ndarray]:
    dones = rng.random(n) < 0.2
    return dict(
        obs=rng.random((n, 3)).astype(np.float32),
        next_obs=rng.random((n, 3)).astype(np.float32),
        actions=rng.random((n, 2)),
        rewards=rng.random(n),
        dones=dones,
        timeouts=dones & (rng.random(n) < 0.5),
    )


@pytest.mark.parametrize("n_rows, seed", [(1, 0), (5, 1), (37, 2), (37, 3)])
@pytest.mark.parametrize("scheme", ["proportional", "rank", "uniform"])
def test_chunks_equal_single_steps(n_rows, seed, scheme):
    """To the bit: arrays, masses, ids and batches, with draws and updates in between, and chunks larger than the buffer."""
    rng = np.random.default_rng(seed)
    settings: dict[str, Any] = dict(scheme=scheme, n_steps=3)
    if scheme != "uniform":
        settings["initial_priority"] = "td_error"
    chunks, single = (make_buffer(n_rows, **settings) for _ in range(2))
    for i in range(25):
        n = int(rng.integers(0, 60)) if i % 8 else 0  # the last chunk of actors may have no step of an environment that counts
        chunk = chunk_of(rng, n)
        td_errors = rng.normal(size=n) if (i % 16 == 0 or rng.random() < 0.5) and scheme != "uniform" else None
        chunks.append_rows(**chunk, td_errors=td_errors)
        for t in range(n):
            obs, next_obs, action, reward, done, timeout = (array[t : t + 1] for array in chunk.values())
            if t == n - 1 and not done[0]:
                done, timeout = np.array([True]), np.array([True])
            own = {} if td_errors is None else dict(td_errors=td_errors[t : t + 1])
            single.add(obs, next_obs, action, reward, done, [{"TimeLimit.truncated": bool(timeout[0])}], **own)
        for name in (*ARRAYS, "pos", "full", "transition_ids", "masses"):
            np.testing.assert_array_equal(getattr(chunks, name), getattr(single, name), err_msg=name)
        if single.size():
            batches = []
            for buffer in (chunks, single):
                np.random.seed(i)
                batches.append(buffer.sample(8))
                buffer.update_priorities(batches[-1].indices, np.arange(8.0))
            for one, other in zip(*batches, strict=True):
                np.testing.assert_array_equal(one, other)
        assert chunks.max_priority == single.max_priority


def test_no_return_runs_from_one_chunk_into_the_next():
    """Where SB3's buffer stores truncations as terminations, the end of a chunk is still none."""
    for handles_timeouts in (True, False):
        buffer = make_buffer(20, n_steps=5, gamma=0.5, handle_timeout_termination=handles_timeouts)
        for _ in range(2):
            chunk = chunk_of(np.random.default_rng(0), 4)
            chunk.update(rewards=np.ones(4), dones=np.zeros(4), timeouts=np.zeros(4))
            buffer.append_rows(**chunk)
        batch = buffer.read_drawn(np.arange(8))
        np.testing.assert_array_equal(batch.rewards.ravel(), [1.875, 1.75, 1.5, 1.0] * 2)
        np.testing.assert_array_equal(batch.discounts.ravel(), [0.0625, 0.125, 0.25, 0.5] * 2)
        assert not batch.dones.any()
    ends = dict(dones=np.array([0, 1, 0, 1]), timeouts=np.array([0, 1, 0, 0]))
    for handles_timeouts, expected in ((True, [0, 0, 0, 1]), (False, [0, 1, 0, 1])):
        buffer = make_buffer(20, handle_timeout_termination=handles_timeouts)
        buffer.append_rows(**{**chunk_of(np.random.default_rng(0), 4), **ends})
        np.testing.assert_array_equal(buffer.read_drawn(np.arange(4)).dones.ravel(), expected)


def test_no_return_runs_from_single_steps_into_a_chunk():
    """A chunk need not follow them."""
    buffer = make_buffer(20, n_steps=5, gamma=0.5)
    chunk = {**chunk_of(np.random.default_rng(0), 3), **dict(rewards=np.ones(3), dones=np.zeros(3), timeouts=np.zeros(3))}
    for _ in range(3):
        buffer.add(*(array[:1] for array in list(chunk.values())[:5]), [{}])
    buffer.append_rows(**chunk)
    batch = buffer.read_drawn(np.arange(6))
    np.testing.assert_array_equal(batch.rewards.ravel(), [1.75, 1.5, 1.0] * 2)
    assert not batch.dones.any()


def test_a_truncation_of_a_chunk_does_not_stay_for_the_next_lap(tmp_path):
    """SB3 does not write `timeouts` without `handle_timeout_termination`: a termination would look like a truncation there."""
    buffer = make_buffer(4, n_steps=3, gamma=0.5, handle_timeout_termination=False)
    chunk = dict(chunk_of(np.random.default_rng(0), 2), dones=np.zeros(2), timeouts=np.zeros(2))
    buffer.append_rows(**chunk)
    assert buffer.timeouts[1, 0] == 1
    obs = np.zeros((1, 3), np.float32)
    save_buffer(buffer, tmp_path / "x.buffer")
    again = (copy.deepcopy(buffer), load_buffer(buffer, tmp_path / "x.buffer"), buffer)
    for each in again:
        for _ in range(6):
            each.add(obs, obs, np.zeros((1, 2)), np.ones(1), np.ones(1), [{}])
        assert (each.timeouts == 0).all()
        batch = each.sample(8)
        assert (batch.dones == 1).all() and (batch.rewards == 1).all()


def test_chunks_follow_single_steps_and_a_reset():
    rng = np.random.default_rng(0)
    buffer = make_buffer(7)
    chunk = chunk_of(rng, 5)
    for _ in range(3):
        buffer.add(*(array[:1] for array in list(chunk.values())[:5]), [{}])
    buffer.append_rows(**chunk)
    assert (buffer.pos, buffer.full, buffer.numbering.next_id) == (1, True, 8)
    buffer.reset()
    buffer.append_rows(**chunk)
    assert (buffer.pos, buffer.full, buffer.size()) == (5, False, 5)
    assert sorted(buffer.transition_ids.ravel()) == [-1, -1, 14, 15, 16, 17, 18]
    buffer.pos = 3  # by hand
    buffer.append_rows(**chunk)
    assert (buffer.pos, buffer.size()) == (1, 7)


@pytest.mark.parametrize("k", [1, 4])
def test_frames_of_chunks_are_stored_once(k):
    box = spaces.Box(0, 255, (k, 3, 5), np.uint8)
    action_space = spaces.Box(-1, 1, (2,))
    framed = PrioritizedReplayBuffer(300, box, action_space, "cpu", frames=k)
    plain = PrioritizedReplayBuffer(300, box, action_space, "cpu")
    streams = [Stream("channels first", k, np.uint8, 1, seed, junk=False) for seed in range(3)]
    for i in range(40):
        steps = [streams[i % 3].step() for _ in range(20)]
        obs, next_obs, dones = (np.concatenate([step[j] for step in steps]) for j in range(3))
        for buffer in (framed, plain):
            buffer.append_rows(obs, next_obs, np.zeros((20, 2)), np.zeros(20), dones, np.zeros(20))
    same_bytes(framed.observations[:], plain.observations)
    same_bytes(framed.next_observations[:], plain.next_observations)
    # Episodes of 7 steps on average, and chunks of 20, begin with a whole stack.
    assert framed.frames_per_transition < 1 + k / 7 + k / 20


def test_dict_observations_are_appended():
    space = spaces.Dict(a=spaces.Box(-1, 1, (3,)), b=spaces.Discrete(5))
    buffer = PrioritizedDictReplayBuffer(10, space, spaces.Box(-1, 1, (2,)), "cpu")
    obs = {"a": np.random.default_rng(0).random((4, 3)).astype(np.float32), "b": np.arange(4)}
    buffer.append_rows(obs, obs, np.zeros((4, 2)), np.zeros(4), np.zeros(4), np.zeros(4))
    np.testing.assert_array_equal(buffer.observations["a"][:4, 0], obs["a"])
    np.testing.assert_array_equal(buffer.next_observations["b"][:4, 0, 0], obs["b"])


@pytest.mark.parametrize("frames", [None, 2])
@pytest.mark.parametrize("n_before, n", [(3, 4), (8, 3), (8, 8), (11, 20)])
def test_an_interrupted_chunk_is_stored_as_a_whole_or_not_at_all(n_before, n, frames):
    """At any place: arrays, ids and masses are those before the call, or those after it, and never a mixture."""
    box = spaces.Box(-1, 1, (2, 3))

    def make_and_call(place: int | None) -> tuple[dict[str, np.ndarray], bool]:
        """Append a chunk to a buffer that is in use, and say what it holds, and whether the chunk has arrived."""
        buffer = PrioritizedReplayBuffer(8, box, spaces.Box(-1, 1, (2,)), "cpu", frames=frames)
        rng = np.random.default_rng(1)
        np.random.seed(0)
        for size in (n_before - 2, 2):
            buffer.append_rows(**stacked(chunk_of(rng, size)))
            buffer.update_priorities(buffer.sample(4).indices, rng.random(4))
        call = functools.partial(buffer.append_rows, **stacked(chunk_of(rng, n)), td_errors=rng.random(n))
        if place != -1:
            n_passed = interrupted(call, place)
            assert place is None or n_passed > place
            places.append(n_passed)
        held = {name: np.array(getattr(buffer, name)) for name in (*ARRAYS, "transition_ids", "masses", "pos", "full")}
        return held, buffer.numbering.next_step > n_before

    places: list[int] = []
    before, after = make_and_call(-1)[0], make_and_call(None)[0]
    n_arrived = 0
    for place in range(places[0]):
        held, has_arrived = make_and_call(place)
        n_arrived += has_arrived
        for name, expected in (after if has_arrived else before).items():
            np.testing.assert_array_equal(held[name], expected, err_msg=f"{name}, interrupted at place {place}")
    assert 0 < n_arrived < places[0]


def stacked(chunk: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Make observations of two rows."""
    return {name: np.stack((part, part), axis=1) if "obs" in name else part for name, part in chunk.items()}


def test_td_errors_count_with_any_initial_priority_but_not_with_a_uniform_draw():
    chunk = chunk_of(np.random.default_rng(0), 4)
    for initial_priority in ("max", "td_error"):
        buffer = make_buffer(10, alpha=1.0, epsilon=1e-6, initial_priority=initial_priority)
        buffer.append_rows(**chunk, td_errors=np.arange(4.0))
        np.testing.assert_allclose(buffer.masses[:4, 0], np.arange(4.0) + 1e-6)
        assert buffer.max_priority == 1.0
    for scheme in ("uniform", "pal"):
        buffer = make_buffer(10, scheme=scheme)
        with pytest.raises(ValueError, match=r"td_errors have no meaning with .*uniform"):
            buffer.append_rows(**chunk, td_errors=np.ones(4))
        assert buffer.size() == 0 and not buffer.observations.any()


def test_wrong_chunks_change_nothing():
    buffer = make_buffer(10)
    good = chunk_of(np.random.default_rng(0), 4)
    for name in good:
        with pytest.raises(ValueError, match=name.rstrip("s")):
            buffer.append_rows(**{**good, name: np.zeros((4, 7))})
    for rewards in (np.full(4, np.nan), [1.0, np.inf, 0.0, 0.0]):
        with pytest.raises(ValueError, match="finite"):
            buffer.append_rows(**{**good, "rewards": rewards})
    for td_errors in (np.zeros(5), np.full(4, np.nan)):
        with pytest.raises(ValueError, match="td_errors"):
            buffer.append_rows(**good, td_errors=td_errors)
    assert buffer.size() == 0 and not buffer.observations.any() and not buffer.masses.any()
    with pytest.raises(ValueError, match="n_envs=1, not 2"):
        make_buffer(10, 2).append_rows(**good)
    with pytest.raises(NotImplementedError, match="optimize_memory_usage"):
        make_buffer(10, optimize_memory_usage=True, handle_timeout_termination=False).append_rows(**good)


def test_stock_samples_of_appended_rows_are_the_same():
    """SB3's own code reads the rows."""
    buffer = make_buffer(10, scheme="uniform", stratified=False)
    buffer.append_rows(**chunk_of(np.random.default_rng(0), 8))
    stock = buffer.to_replay_buffer()
    assert type(stock) is ReplayBuffer
    batches = []
    for each in (buffer, stock):
        np.random.seed(0)
        batches.append(each.sample(6))
    for one, other in zip(batches[0][:5], batches[1][:5], strict=True):
        np.testing.assert_array_equal(one, other)
