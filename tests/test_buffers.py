"""Storage stays SB3's: the same rows give the same samples. What prioritization adds is held against obvious references."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer

from sb3_per import PrioritizedDictReplayBuffer, PrioritizedReplayBuffer
from tests.utils import ACTION_SPACES, OBSERVATION_SPACES, add_one, assert_same_state, fill, make_buffer, normalizer


def stock_like(buffer: PrioritizedReplayBuffer, cls: type[ReplayBuffer] | None = None, **kwargs: Any) -> ReplayBuffer:
    """SB3's own buffer with the same storage settings."""
    cls = cls or (DictReplayBuffer if isinstance(buffer, PrioritizedDictReplayBuffer) else ReplayBuffer)
    return cls(
        buffer.buffer_size * buffer.n_envs,
        buffer.observation_space,
        buffer.action_space,
        device="cpu",
        n_envs=buffer.n_envs,
        optimize_memory_usage=buffer.optimize_memory_usage,
        handle_timeout_termination=buffer.handle_timeout_termination,
        **kwargs,
    )


def stock_rows(stock: ReplayBuffer, indices: np.ndarray, env: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What SB3 returns for these transitions: it draws the env index itself, so its draw is replaced."""
    with monkeypatch.context() as patch:
        patch.setattr(np.random, "randint", lambda *args, **kwargs: indices % stock.n_envs)
        return stock._get_samples((indices // stock.n_envs) % stock.buffer_size, env=env)


def assert_same(actual: Any, expected: Any) -> None:
    """Equal to the bit, in value, shape and type."""
    if expected is None:
        assert actual is None
    elif isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        for key in expected:
            assert_same(actual[key], expected[key])
    else:
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        assert th.equal(actual, expected)


# VecNormalize normalizes Box observations.
SPACES_AND_NORMALIZATION = [*((name, False) for name in OBSERVATION_SPACES), ("box", True), ("box64", True)]


@pytest.mark.parametrize("obs_space, normalize", SPACES_AND_NORMALIZATION)
@pytest.mark.parametrize("n_rows_added", [4, 10, 17])
@pytest.mark.parametrize("n_envs", [1, 3])
def test_sample_equals_stock(obs_space, n_envs, n_rows_added, normalize, monkeypatch):
    buffer = make_buffer(n_envs=n_envs, obs_space=obs_space, alpha=0.0)
    stock = stock_like(buffer)
    fill([buffer, stock], n_rows_added)
    env = normalizer(buffer.observation_space, buffer.action_space) if normalize else None
    batch = buffer.sample(50, env=env)
    expected = stock_rows(stock, batch.indices, env, monkeypatch)
    assert expected._fields == batch._fields[:6]
    for name in expected._fields:
        assert_same(getattr(batch, name), getattr(expected, name))
    assert (batch.weights == 1).all()
    assert buffer.size() == stock.size()


@pytest.mark.parametrize("action_space", ACTION_SPACES)
def test_action_spaces(action_space, monkeypatch):
    buffer = make_buffer(n_envs=2, action_space=action_space)
    stock = stock_like(buffer)
    fill([buffer, stock], 14)
    batch = buffer.sample(30)
    assert_same(batch.actions, stock_rows(stock, batch.indices, None, monkeypatch).actions)


@pytest.mark.parametrize("n_rows_added", [5, 10, 23])
@pytest.mark.parametrize("n_envs", [1, 2])
def test_optimize_memory_usage(n_envs, n_rows_added, monkeypatch):
    """The row whose observation lies under the newest next observation has mass 0, cannot be drawn and cannot be updated."""
    buffer = make_buffer(n_envs=n_envs, optimize_memory_usage=True, handle_timeout_termination=False)
    stock = stock_like(buffer)
    plain = make_buffer(n_envs=n_envs, handle_timeout_termination=False)
    for _ in range(n_rows_added):
        # One by one: the invalid row moves with the cursor.
        fill([buffer, stock, plain], 1, seed=buffer.pos, p_end=0.0)
        if buffer.full:
            assert (buffer.priorities[buffer.pos] == 0).all()
        rows_with_mass = (buffer.priorities > 0).sum()
        assert rows_with_mass == (buffer.size() - buffer.full) * n_envs
        everything = np.arange(buffer._next_id)
        written = buffer.update_priorities(everything, np.ones(len(everything)))
        assert written == rows_with_mass
        assert (buffer.priorities > 0).sum() == rows_with_mass
        batch = buffer.sample(40)
        rows = (batch.indices // n_envs) % buffer.buffer_size
        assert not (buffer.full and buffer.pos in rows)
        expected = stock_rows(stock, batch.indices, None, monkeypatch)
        for name in expected._fields:
            assert_same(getattr(batch, name), getattr(expected, name))


def brute_force_n_step(steps: list[tuple[float, bool, bool]], start: int, n_steps: int, gamma: float) -> Any:
    """Return, number of the last step, and termination of the window that begins at ``start``, one step at a time."""
    value, discount = 0.0, 1.0
    for last in range(start, min(start + n_steps, len(steps))):
        reward, done, truncated = steps[last]
        value += discount * reward
        discount *= gamma
        if done or truncated:
            break
    return value, discount, last, float(steps[last][1] and not steps[last][2])


@pytest.mark.parametrize("obs_space, optimize_memory_usage", [("box", False), ("box", True), ("dict", False)])
@pytest.mark.parametrize("n_steps", [2, 3, 7, 40])
@pytest.mark.parametrize("n_envs", [1, 3])
def test_n_step_returns(n_envs, n_steps, obs_space, optimize_memory_usage):
    """Windows stop at terminations, truncations and the cursor; every step is a start; before and after wrap-around."""
    gamma, n_rows = 0.9, 12
    storage = dict(optimize_memory_usage=True, handle_timeout_termination=False) if optimize_memory_usage else {}
    buffer = make_buffer(n_rows, n_envs, obs_space, n_steps=n_steps, gamma=gamma, alpha=0.0, **storage)
    steps: list[list[tuple[float, bool, bool]]] = [[] for _ in range(n_envs)]
    next_obs_of: list[list[Any]] = [[] for _ in range(n_envs)]
    rng = np.random.default_rng(0)
    buffer.observation_space.seed(0)
    key = None if obs_space == "box" else "vec"
    obs = {key: rng.normal(size=(n_envs, 3)).astype(np.float32), "num": np.zeros(n_envs, dtype=int)}
    for _ in range(31):
        reward, done = rng.normal(size=n_envs).astype(np.float32), rng.random(n_envs) < 0.15
        truncated = done & (rng.random(n_envs) < 0.5) & (not optimize_memory_usage)
        next_obs = {key: rng.normal(size=(n_envs, 3)).astype(np.float32), "num": np.zeros(n_envs, dtype=int)}
        infos = [{"TimeLimit.truncated": bool(t)} for t in truncated]
        args = [obs, next_obs] if key else [obs[key], next_obs[key]]
        buffer.add(*args, np.zeros((n_envs, 2)), reward, done, infos)
        for e in range(n_envs):
            steps[e].append((float(reward[e]), bool(done[e]), bool(truncated[e])))
            next_obs_of[e].append(next_obs[key][e])
        obs = next_obs

        batch = buffer.sample(200)
        n_drawable = (buffer.size() - (optimize_memory_usage and buffer.full)) * n_envs
        if n_drawable <= 40:
            assert len(set(batch.indices)) == n_drawable  # 200 stratified draws: every step is a start
        actual_next = batch.next_observations[key] if key else batch.next_observations
        for i, index in enumerate(batch.indices):
            start, e = divmod(int(index), n_envs)
            value, discount, last, dones = brute_force_n_step(steps[e], start, n_steps, gamma)
            assert batch.rewards[i].item() == pytest.approx(value, rel=1e-5, abs=1e-5)
            assert batch.discounts[i].item() == pytest.approx(discount, rel=1e-5)
            assert batch.dones[i].item() == dones
            if not (optimize_memory_usage and steps[e][last][1]):  # overwritten by the reset observation, and not used
                np.testing.assert_array_equal(actual_next[i], next_obs_of[e][last])


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("n_rows_added", [4, 10, 17])
@pytest.mark.parametrize("n_steps", [2, 3, 5])
def test_n_step_sample_equals_stock(n_steps, n_rows_added, normalize, monkeypatch):
    buffer = make_buffer(n_envs=2, n_steps=n_steps, gamma=0.97, alpha=0.0)
    stock = stock_like(buffer, NStepReplayBuffer, n_steps=n_steps, gamma=0.97)
    fill([buffer, stock], n_rows_added)
    env = normalizer(buffer.observation_space, buffer.action_space) if normalize else None
    batch = buffer.sample(50, env=env)
    expected = stock_rows(stock, batch.indices, env, monkeypatch)
    for name in expected._fields:
        assert_same(getattr(batch, name), getattr(expected, name))


class ReferenceBuffer:
    """Priorities of a ring, one transition at a time: a dictionary from id to mass, and nothing clever."""

    def __init__(self, n_rows: int, n_envs: int, alpha: float, epsilon: float):
        self.n_rows, self.n_envs, self.alpha, self.epsilon = n_rows, n_envs, alpha, epsilon
        self.mass: dict[int, float] = {}
        self.max_priority = 1.0
        self.n_added = 0

    def add(self) -> None:
        for e in range(self.n_envs):
            self.mass[self.n_added * self.n_envs + e] = self.max_priority**self.alpha
            self.mass.pop((self.n_added - self.n_rows) * self.n_envs + e, None)
        self.n_added += 1

    def update(self, ids: list[int], td_errors: np.ndarray) -> int:
        written = 0
        for index, td_error in zip(ids, td_errors, strict=True):
            if index in self.mass:
                priority = float(np.mean(np.abs(td_error))) + self.epsilon
                self.mass[index] = priority**self.alpha
                self.max_priority = max(self.max_priority, priority)
                written += 1
        return written

    def priorities(self) -> np.ndarray:
        masses = np.zeros(self.n_rows * self.n_envs)
        for index, mass in self.mass.items():
            masses[index % len(masses)] = mass
        return masses.reshape(self.n_rows, self.n_envs)


@settings(max_examples=60)
@given(data=st.data())
def test_priorities_against_reference(data):
    """Any sequence of adds and updates, with stale ids, repeated ids and late batches, over several laps."""
    n_rows, n_envs = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 3))
    alpha, epsilon = data.draw(st.sampled_from([0.0, 0.6, 1.0, 2.0])), data.draw(st.sampled_from([1e-6, 0.1]))
    buffer = make_buffer(n_rows, n_envs, alpha=alpha, epsilon=epsilon)
    reference = ReferenceBuffer(n_rows, n_envs, alpha, epsilon)
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    issued: list[int] = []
    for operation in data.draw(st.lists(st.sampled_from(["add", "add", "update", "sample"]), max_size=30)):
        if operation == "add":
            issued += [reference.n_added * n_envs + e for e in range(n_envs)]
            add_one(buffer)
            reference.add()
        elif operation == "update" and issued:
            ids = rng.choice(issued, size=rng.integers(0, 9))
            td_errors = rng.normal(size=(len(ids), 2)) * 10.0 ** rng.integers(-6, 6)
            assert buffer.update_priorities(ids, td_errors) == reference.update(ids.tolist(), td_errors)
        elif operation == "sample" and issued:
            batch = buffer.sample(16)
            assert set(batch.indices) <= set(reference.mass)
            masses = np.array([reference.mass[i] for i in batch.indices])
            probabilities = masses / sum(reference.mass.values())
            weights = (len(reference.mass) * probabilities) ** -buffer.beta
            np.testing.assert_allclose(batch.weights[:, 0], weights / weights.max(), rtol=1e-5)
        np.testing.assert_allclose(buffer.priorities, reference.priorities(), rtol=1e-12)
        assert buffer.max_priority == pytest.approx(reference.max_priority, rel=1e-12)
    clone = pickle.loads(pickle.dumps(buffer))
    np.testing.assert_array_equal(clone.priorities, buffer.priorities)


def test_new_transitions_are_never_below_updated_ones():
    """Collected before, between and after updates, with errors below and above 1: nothing new starves."""
    buffer = make_buffer(50, n_envs=2)
    for size in (1e-3, 0.5, 40.0, 7.0, 1e-6):
        add_one(buffer)
        newest = buffer.priorities[buffer.pos - 1]
        assert (newest >= buffer.priorities.max()).all()
        batch = buffer.sample(20)
        buffer.update_priorities(batch.indices, np.full(20, size))
    assert buffer.max_priority == 40.0 + 1e-6


@pytest.mark.parametrize("stratified", [True, False])
@pytest.mark.parametrize("n_envs", [1, 4])
def test_draws_follow_the_priorities(stratified, n_envs):
    """Every environment is replayed, in proportion to the mass of its slots."""
    np.random.seed(0)
    buffer = make_buffer(8, n_envs, stratified=stratified, alpha=0.7)
    fill([buffer], 8)
    td_errors = np.random.default_rng(1).exponential(size=8 * n_envs)
    buffer.update_priorities(np.arange(8 * n_envs), td_errors)
    expected = buffer.priorities.ravel() / buffer.priorities.sum()
    n_batches, batch_size = 400, 64
    counts = np.zeros(8 * n_envs)
    for _ in range(n_batches):
        drawn = np.bincount(buffer.sample(batch_size).indices, minlength=8 * n_envs)
        if stratified:
            assert (np.abs(drawn - batch_size * expected) < 2).all()
        counts += drawn
    n_draws = n_batches * batch_size
    deviation = np.sqrt(n_draws * expected * (1 - expected))
    assert (np.abs(counts - n_draws * expected) < 5 * deviation).all()


def test_updates_reach_the_transition_that_was_drawn():
    """The row of the batch, its id and the slot that is updated are the same transition, for every environment."""
    buffer = make_buffer(9, n_envs=3)
    for step in range(14):
        obs = np.arange(3)[:, None] * 0.1 + np.full((3, 3), step)
        infos = [{}] * 3
        buffer.add(obs, obs, np.zeros((3, 2)), step * 3.0 + np.arange(3), np.zeros(3), infos)
    batch = buffer.sample(100)
    # The reward was chosen to be the id.
    np.testing.assert_array_equal(batch.rewards[:, 0].numpy(), batch.indices)
    buffer.update_priorities(batch.indices, batch.indices + 1.0)
    for index in np.unique(batch.indices):
        row, env = (index // 3) % 9, index % 3
        assert buffer.rewards[row, env] == index
        assert buffer.priorities[row, env] == pytest.approx((index + 1.0 + 1e-6) ** 0.6)


def test_stale_ids_are_recognised_any_number_of_laps_later():
    buffer = make_buffer(4, n_envs=2)
    fill([buffer], 4)
    first = buffer.sample(8)
    add_one(buffer)
    before = buffer.priorities
    # ids 0 and 1 were overwritten; the others are still there
    assert buffer.update_priorities(np.arange(8), np.full(8, 3.0)) == 6
    np.testing.assert_array_equal(buffer.priorities[0], before[0])
    np.testing.assert_allclose(buffer.priorities[1:], (3.0 + 1e-6) ** 0.6)
    fill([buffer], 41)
    before, max_priority = buffer.priorities, buffer.max_priority
    assert buffer.update_priorities(first.indices, np.full(8, 1e9)) == 0
    np.testing.assert_array_equal(buffer.priorities, before)
    assert buffer.max_priority == max_priority
    assert buffer.sample(8).indices.min() >= (46 - 4) * 2


@pytest.mark.parametrize("n_rows_added", [3, 5, 13])
def test_reset(n_rows_added):
    buffer = make_buffer(5, n_envs=2)
    fill([buffer], n_rows_added)
    old = buffer.sample(16).indices
    buffer.update_priorities(old, np.full(16, 7.0))
    buffer.reset()
    assert (buffer.size(), buffer.pos, buffer.full) == (0, 0, False)
    assert (buffer.priorities == 0).all()
    with pytest.raises(ValueError, match="empty"):
        buffer.sample(4)
    assert buffer.update_priorities(old, np.ones(16)) == 0
    fill([buffer], 2)
    new = buffer.sample(50).indices
    assert set(new).isdisjoint(old)
    assert len(set(new)) == 4
    assert buffer.update_priorities(old, np.full(16, 99.0)) == 0
    assert buffer.update_priorities(new, np.full(50, 2.0)) == 50
    np.testing.assert_allclose(buffer.priorities[:2], (2.0 + 1e-6) ** 0.6)
    assert (buffer.priorities[2:] == 0).all()


def test_extend():
    one_by_one, at_once = make_buffer(6, n_envs=2), make_buffer(6, n_envs=2)
    rng = np.random.default_rng(0)
    obs, next_obs = rng.random((2, 9, 2, 3), dtype=np.float32)
    actions, rewards, dones = rng.random((9, 2, 2)), rng.random((9, 2)), rng.random((9, 2)) < 0.3
    infos = [[{}, {}]] * 9
    at_once.extend(obs, next_obs, actions, rewards, dones, infos)
    for step in zip(obs, next_obs, actions, rewards, dones, infos, strict=True):
        one_by_one.add(*step)
    assert_same_state(at_once, one_by_one)


@pytest.mark.parametrize("obs_space", ["box", "dict"])
@pytest.mark.parametrize("clone", [copy.deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))])
def test_copies_continue_alike(clone, obs_space):
    """Priorities, ids, beta and maximum survive; the copy and the original share nothing."""
    buffer = make_buffer(5, 2, obs_space, beta_anneal_steps=10)
    fill([buffer], 8)
    buffer.update_priorities(buffer.sample(6).indices, np.arange(6) * 3.0)
    twin = clone(buffer)
    assert type(twin) is type(buffer)
    for each in (buffer, twin):
        np.random.seed(3)
        fill([each], 2)
        batch = each.sample(7)
        each.update_priorities(batch.indices, np.arange(7.0))
    assert_same_state(twin, buffer)
    before = buffer.priorities
    twin.update_priorities(twin.sample(5).indices, np.full(5, 1e3))
    np.testing.assert_array_equal(buffer.priorities, before)


def test_beta_by_samples():
    buffer = make_buffer(beta_start=0.3, beta_end=0.9, beta_anneal_steps=20)
    fill([buffer], 3)
    seen = []
    for _ in range(30):
        seen.append(buffer.beta)
        buffer.sample(2)
    np.testing.assert_allclose(seen, np.minimum(0.3 + 0.6 * np.arange(30) / 20, 0.9))
    assert buffer.beta == 0.9
    buffer.update_beta(0.5)  # progress is not what was asked for
    assert buffer.beta == 0.9


def test_beta_by_progress():
    buffer = make_buffer(beta_start=0.2, beta_end=0.8)
    fill([buffer], 3)
    for progress_remaining, beta in [(1.0, 0.2), (0.5, 0.5), (0.9, 0.5), (0.25, 0.65), (0.0, 0.8), (-0.1, 0.8), (1.0, 0.8)]:
        buffer.update_beta(progress_remaining)
        assert buffer.beta == pytest.approx(beta)
        buffer.sample(2)
        assert buffer.beta == pytest.approx(beta)  # sampling alone does not anneal


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_weights(beta):
    """(N P(i))^-beta over the largest of the batch; N counts what can be drawn, over all environments; no unfilled slot."""
    buffer = make_buffer(20, n_envs=2, beta_start=beta, beta_end=1.0)
    fill([buffer], 7)
    buffer.update_priorities(np.arange(14), np.random.default_rng(0).exponential(size=14))
    batch = buffer.sample(64)
    masses = buffer.priorities.ravel()
    assert np.count_nonzero(masses) == 14
    expected = (14 * masses[batch.indices] / masses.sum()) ** -beta
    assert batch.weights.dtype == th.float32
    assert batch.weights.shape == (64, 1)
    assert batch.weights.max().item() == 1.0
    np.testing.assert_allclose(batch.weights[:, 0], expected / expected.max(), rtol=1e-6)


@pytest.mark.parametrize("alpha, td_error", [(200.0, 0.0), (60.0, 1e-7), (50.0, 1e30)])
def test_extreme_exponents(alpha, td_error):
    """Neither underflow nor overflow makes a transition undrawable or a weight NaN."""
    buffer = make_buffer(4, alpha=alpha)
    fill([buffer], 4)
    buffer.update_priorities(np.arange(4), np.full(4, td_error))
    assert (buffer.priorities > 0).all()
    assert np.isfinite(buffer.priorities.sum())
    batch = buffer.sample(8)
    assert (batch.weights == 1).all()
    buffer.update_priorities([0], [1.0])
    assert th.isfinite(buffer.sample(8).weights).all()


@pytest.mark.parametrize("n_rows_added", [4, 10, 27])
@pytest.mark.parametrize("obs_space", ["box", "dict", "memory"])
def test_from_replay_buffer(obs_space, n_rows_added):
    """A plain buffer becomes a prioritized one that shares its arrays; everything that can be drawn is at the maximum."""
    storage: dict[str, Any] = {}
    if obs_space == "memory":
        obs_space, storage = "box", dict(optimize_memory_usage=True, handle_timeout_termination=False)
    buffer = make_buffer(10, 2, obs_space, **storage)
    stock = stock_like(buffer)
    fill([stock, buffer], n_rows_added)
    adopted = type(buffer).from_replay_buffer(stock, n_steps=2, alpha=0.5)
    assert adopted.n_steps == 2
    for name in ("observations", "actions", "rewards", "dones", "timeouts"):
        assert getattr(adopted, name) is getattr(stock, name)
    np.testing.assert_array_equal(adopted.priorities, buffer.priorities)
    fill([adopted, buffer], 3, seed=1)
    np.testing.assert_array_equal(adopted.priorities, buffer.priorities)
    batch = adopted.sample(20)
    rows, envs = (batch.indices // 2) % 10, batch.indices % 2
    np.testing.assert_array_equal(batch.actions, adopted.actions[rows, envs])
    assert adopted.update_priorities(batch.indices, np.full(20, 0.1)) == 20
    assert (adopted.priorities[rows, envs] == (0.1 + 1e-6) ** 0.5).all()


def test_arrays_filled_by_hand():
    """Without `add`, by writing to SB3's arrays, `pos` and `full`: all of it can be drawn."""
    buffer = make_buffer(6, n_envs=2)
    buffer.rewards[:] = np.arange(12).reshape(6, 2)
    buffer.full = True
    batch = buffer.sample(100)
    assert set(batch.rewards[:, 0].tolist()) == set(range(12))
    assert buffer.update_priorities(batch.indices, np.ones(100)) == 100
    fill([buffer], 2)
    assert set(buffer.sample(100).indices) == set(range(buffer._next_id - 12, buffer._next_id))


def test_same_seed_same_draws():
    batches = []
    for _ in range(2):
        np.random.seed(11)
        buffer = make_buffer(6, n_envs=2)
        fill([buffer], 6)
        batches.append(buffer.sample(32).indices)
    np.testing.assert_array_equal(*batches)


def test_sample_returns_copies():
    buffer = make_buffer(4)
    fill([buffer], 4)
    buffer.sample(1)
    before = pickle.dumps(buffer)
    batch = buffer.sample(8)
    for tensor in (batch.observations, batch.next_observations, batch.actions, batch.rewards, batch.dones, batch.weights):
        tensor += 1
    batch.indices[:] = -1
    assert pickle.dumps(buffer) == before


def test_buffer_of_one_row():
    buffer = make_buffer(1)
    for step in range(4):
        fill([buffer], 1)
        np.testing.assert_array_equal(buffer.sample(3).indices, [step] * 3)


def test_large_integer_batch_sizes_and_rows():
    """Any batch size from 1 up, larger than the buffer too: exactly that many rows."""
    buffer = make_buffer(3)
    fill([buffer], 2)
    for batch_size in (1, 2, 5, np.int64(33), 1000):
        batch = buffer.sample(batch_size)
        assert all(len(part) == batch_size for part in batch if part is not None)


@pytest.mark.parametrize("space", [spaces.Box(-1, 1, (2,)), OBSERVATION_SPACES["dict"]])
def test_positional_arguments_are_those_of_sb3(space):
    cls = PrioritizedDictReplayBuffer if isinstance(space, spaces.Dict) else PrioritizedReplayBuffer
    buffer = cls(30, space, ACTION_SPACES["box"], "cpu", 3, False, False)
    assert (buffer.buffer_size, buffer.n_envs, buffer.handle_timeout_termination) == (10, 3, False)
