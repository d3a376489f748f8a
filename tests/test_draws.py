"""Settings of the draw and of the weights: probabilities are enumerated, and expectations are those of uniform replay."""

import itertools
import pickle
import tempfile
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch as th
from sb3_per.files.buffer_files import load_buffer, save_buffer
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per import PrioritizedHerReplayBuffer, PrioritizedReplayBuffer
from tests.test_ring import CountingEnv
from tests.utils import ACTION_SPACES, OBSERVATION_SPACES, add_one, assert_same_state, fill, make_buffer, normalizer

SCHEMES = ("proportional", "rank", "lap")
# So many stratified draws that every transition comes up as often as its probability says, to within two.
MANY = 50_000


def spread_out(buffer: Any, seed: int = 0) -> Any:
    """Priorities of very different sizes, for what can be drawn."""
    ids = buffer.transition_ids[buffer.priorities > 0]
    buffer.update_priorities(ids, np.random.default_rng(seed).exponential(size=len(ids)) ** 3 * 20)
    return buffer


def filled_buffer(kind: str = "plain", n_rows: int = 9, n_added: int = 14, **kwargs: Any) -> Any:
    """A buffer after more than a lap, of two environments; with hindsight and lost observations, not all can be drawn."""
    if kind == "her":
        env = make_vec_env(lambda: CountingEnv(goals=True), n_envs=2)
        spaces = (env.observation_space, env.action_space)
        buffer: Any = PrioritizedHerReplayBuffer(n_rows * 2, *spaces, env, "cpu", 2, **kwargs)
        for step in range(n_added):
            obs = {key: np.full((2, 2), step, np.float32) for key in env.observation_space.spaces}
            done = np.array([step % 4 == 3, step % 6 == 5])
            buffer.add(obs, obs, np.zeros((2, 1)), np.zeros(2), done, [{}] * 2)
    else:
        memory = dict(optimize_memory_usage=True, handle_timeout_termination=False) if kind == "memory" else {}
        buffer = make_buffer(n_rows, 2, **memory, **kwargs)
        fill([buffer], n_added)
    return spread_out(buffer)


def probabilities(buffer: Any, ids: np.ndarray, eta: float) -> np.ndarray:
    """(1 - eta) m / sum m + eta / N of these transitions, which are all that are drawn from."""
    masses = buffer.priorities.ravel()[ids % buffer.priorities.size]
    return (1 - eta) * masses / masses.sum() + eta / len(ids)


def drawable_ids(buffer: Any) -> np.ndarray:
    return np.sort(buffer.transition_ids[buffer.priorities > 0])


def counts_of(indices: np.ndarray, ids: np.ndarray) -> np.ndarray:
    counted = Counter(indices.tolist())
    assert set(counted) <= set(ids.tolist())
    return np.array([counted[i] for i in ids.tolist()])


# ---- a share of uniform draws


@pytest.mark.parametrize("eta", [0.05, 0.25, 0.9])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kind", ["plain", "memory", "her"])
def test_a_share_of_uniform_draws(kind, scheme, eta):
    """Of what can be drawn: not of slots whose episode is not over, or whose next observation is lost."""
    buffer = filled_buffer(kind, scheme=scheme, uniform_fraction=eta)
    ids = drawable_ids(buffer)
    assert len(ids) == 18 if kind == "plain" else 0 < len(ids) < 18
    expected = MANY * probabilities(buffer, ids, eta)
    assert (np.abs(counts_of(buffer.sample(MANY).indices, ids) - expected) <= 3).all()
    assert (expected >= MANY * eta / len(ids)).all()
    buffer.stratified = False
    np.random.seed(0)
    counts = counts_of(buffer.sample(MANY).indices, ids)
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected) + 3).all()


@pytest.mark.parametrize("scheme", ["uniform", "pal"])
def test_schemes_that_draw_uniformly_ignore_it(scheme):
    batches = []
    for eta in (0.0, 0.5):
        buffer = filled_buffer(scheme=scheme, uniform_fraction=eta)
        np.random.seed(0)
        batches.append(buffer.sample(40).indices)
    np.testing.assert_array_equal(*batches)


# ---- recency


def newest(n: int, recency: float, recency_min: int, position: float) -> int:
    return min(max(int(n * recency ** (1000 * position)), recency_min), n)


@pytest.mark.parametrize("eta", [0.0, 0.25])
@pytest.mark.parametrize("scheme", [*SCHEMES, "uniform", "pal"])
@pytest.mark.parametrize("n_added", [5, 9, 12, 16, 18])
def test_only_the_newest_are_drawn(n_added, scheme, eta):
    """Wherever they lie in the ring, by their masses."""
    buffer = filled_buffer(n_added=n_added, scheme=scheme, uniform_fraction=eta, recency=0.998, recency_min=3)
    everything = drawable_ids(buffer)
    for position in (0.1, 0.5, 1.0):
        ids = everything[-newest(len(everything), 0.998, 3, position) :]
        expected = MANY * probabilities(buffer, ids, 0.0 if scheme in ("uniform", "pal") else eta)
        counts = counts_of(buffer.sample(MANY, position=position).indices, ids)
        assert (np.abs(counts - expected) <= 3).all()


def test_recency_never_leads_out_of_the_newest():
    """Rounding of prefix sums, with masses of very different sizes on both sides of the border."""
    buffer = make_buffer(1000, recency=0.999, recency_min=1, alpha=1.0)
    fill([buffer], 1500)
    rng = np.random.default_rng(0)
    for _ in range(200):
        ids = drawable_ids(buffer)
        buffer.update_priorities(ids, 10.0 ** rng.integers(-12, 12, len(ids)))
        position = rng.random()
        n = newest(1000, 0.999, 1, position)
        assert buffer.sample(64, position=position).indices.min() >= ids[-n]


@pytest.mark.parametrize("eta", [0.0, 0.25])
@pytest.mark.parametrize("n_added", [1000, 1040], ids=["at the end of the ring", "across it"])
@pytest.mark.parametrize("alpha, old_error", [(1.0, 1e7), (1.0, 1e12), (0.6, 1e16), (1.0, 1e280)])
def test_large_masses_of_old_transitions_do_not_disturb_the_newest(alpha, old_error, n_added, eta):
    """Equal ones are drawn equally often and weigh the same, whatever lies on the other side of the border."""
    settings = dict(recency=0.99, recency_min=100, uniform_fraction=eta, weight_normalization="none", beta_start=1.0)
    buffer = make_buffer(1000, alpha=alpha, **settings)
    fill([buffer], n_added)
    ids = drawable_ids(buffer)
    buffer.update_priorities(ids, np.where(ids < n_added - 100, old_error, 0.0))
    batch = buffer.sample(10_000, position=1.0)
    counts = counts_of(batch.indices, ids[-100:])
    assert counts.min() >= 98 and counts.max() <= 102
    np.testing.assert_allclose(batch.weights, 1.0, rtol=1e-6)


def test_position_of_a_draw_by_hand_is_random():
    buffer = make_buffer(1000, recency=0.995, recency_min=1, scheme="uniform")
    fill([buffer], 1000)
    np.random.seed(0)
    # E[N recency^(1000 u)] of the oldest one that can be seen, u uniform.
    oldest = np.array([1000 - buffer.sample(500).indices.min() for _ in range(400)])
    assert np.mean(oldest <= 82) == pytest.approx(0.5, abs=0.08)  # u > 1/2
    assert oldest.max() > 900 and oldest.min() < 10


# ---- weights


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        dict(uniform_fraction=0.2),
        dict(recency=0.999, recency_min=4),
        dict(uniform_fraction=0.3, recency=0.999, recency_min=4),
    ],
)
@pytest.mark.parametrize("scheme", ["proportional", "rank"])
@pytest.mark.parametrize("kind", ["plain", "memory", "her"])
@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_weights_by_their_definition(kind, scheme, kwargs, beta):
    """(N P)^-beta, as it is, divided by the largest of the batch, or by the mean."""
    if kind == "her" and "recency" in kwargs:
        return
    eta = kwargs.get("uniform_fraction", 0.0)
    for normalization in ("none", "max", "mean"):
        settings = dict(beta_start=beta, beta_end=beta, weight_normalization=normalization)
        buffer = filled_buffer(kind, scheme=scheme, **settings, **kwargs)
        ids = drawable_ids(buffer)
        if "recency" in kwargs:
            ids = ids[-newest(len(ids), 0.999, kwargs.get("recency_min", 5000), 1.0) :]
        batch = buffer.sample(MANY, position=1.0)
        n_p = len(ids) * probabilities(buffer, ids, eta)
        expected = n_p[np.searchsorted(ids, batch.indices)] ** -beta
        expected /= {"none": 1.0, "max": expected.max(), "mean": expected.mean()}[normalization]
        np.testing.assert_allclose(batch.weights[:, 0], expected, rtol=1e-4)
        assert (batch.weights.dtype, batch.weights.shape) == (th.float32, (MANY, 1))
        if normalization == "mean":
            assert batch.weights.double().mean().item() == pytest.approx(1.0, abs=1e-5)
        if normalization == "max":
            assert batch.weights.max() == 1
        if normalization == "none" and eta:
            assert batch.weights.max() <= eta**-beta * 1.0001
        if normalization == "none" and beta == 1.0:
            # Unbiased: what is drawn counts in expectation, P w, as much as in the mean over the buffer, 1 / N.
            _, first = np.unique(batch.indices, return_index=True)
            p = probabilities(buffer, ids, eta)[np.searchsorted(ids, batch.indices[first])]
            np.testing.assert_allclose(p * batch.weights[first, 0].numpy(), 1 / len(ids), rtol=1e-4)


def test_extreme_weights_are_numbers():
    for normalization in ("none", "mean"):
        buffer = make_buffer(4, alpha=60.0, beta_start=1.0, weight_normalization=normalization)
        fill([buffer], 4)
        buffer.update_priorities(np.arange(4), [1e-7, 1.0, 1e4, 1e4])
        for _ in range(3):
            assert th.isfinite(buffer.sample(64).weights).all()


# ---- unique


@pytest.mark.parametrize("stratified", [True, False])
@pytest.mark.parametrize("rounds", [0, 1, 4])
@pytest.mark.parametrize(
    "kind, kwargs",
    [
        *itertools.product(["plain", "memory", "her"], [dict(scheme=scheme) for scheme in (*SCHEMES, "uniform", "pal")]),
        ("plain", dict(uniform_fraction=0.3)),
        ("plain", dict(recency=0.9995)),
        ("plain", dict(n_steps=3)),
    ],
)
def test_no_transition_comes_twice(kind, kwargs, rounds, stratified, monkeypatch):
    monkeypatch.setattr("sb3_per.buffers.drawing._ROUNDS", rounds)
    buffer = filled_buffer(kind, unique=True, stratified=stratified, **kwargs)
    ids = drawable_ids(buffer)
    for batch_size in (1, 2, len(ids) // 2, len(ids)):
        indices = buffer.sample(batch_size).indices
        assert len(set(indices.tolist())) == batch_size
        assert set(indices.tolist()) <= set(ids.tolist())
    before = pickle.dumps(buffer)
    with pytest.raises(
        ValueError, match=f"batch of {len(ids) + 1} without repeats cannot be drawn from {len(ids)} transitions"
    ):
        buffer.sample(len(ids) + 1)
    assert pickle.dumps(buffer) == before


@pytest.mark.parametrize("rounds", [pytest.param(0, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize("eta", [0.0, 0.3])
@pytest.mark.parametrize("scheme", ["proportional", "rank"])
def test_unique_draws_are_successive_draws_from_what_is_left(scheme, eta, rounds, monkeypatch):
    """All 60 sequences of 3 of 5, each as often as the product of its conditional probabilities says."""
    monkeypatch.setattr("sb3_per.buffers.drawing._ROUNDS", rounds)
    buffer = make_buffer(5, scheme=scheme, unique=True, stratified=False, uniform_fraction=eta, alpha=1.0)
    fill([buffer], 5)
    buffer.update_priorities(np.arange(5), [1.0, 2.0, 4.0, 8.0, 1.0])
    p = probabilities(buffer, np.arange(5), eta)
    np.random.seed(0)
    n = 20_000
    drawn = Counter(tuple(buffer.sample(3).indices.tolist()) for _ in range(n))
    chi_square = 0.0
    for i, j, k in itertools.permutations(range(5), 3):
        expected = n * p[i] * p[j] / (1 - p[i]) * p[k] / (1 - p[i] - p[j])
        chi_square += (drawn[i, j, k] - expected) ** 2 / expected
    assert chi_square < 110  # 59 degrees of freedom: the probability of more is 6e-5


def test_stratified_unique_draws_keep_one_of_each_slice():
    buffer = make_buffer(100, unique=True)
    fill([buffer], 100)
    np.random.seed(0)
    plain = make_buffer(100)
    fill([plain], 100)
    for each in (buffer, plain):
        each.update_priorities(np.arange(100), np.r_[np.full(99, 1.0), 50.0])
    for _ in range(20):
        state = np.random.get_state()
        expected = plain.sample(30).indices
        np.random.set_state(state)
        indices = buffer.sample(30).indices
        first = np.unique(expected, return_index=True)[1]
        np.testing.assert_array_equal(indices[first], expected[first])
        assert len(first) < 30 == len(set(indices.tolist()))


# ---- what new transitions get


def test_mean_as_initial_priority():
    buffer = make_buffer(6, n_envs=2, initial_priority="mean")
    fill([buffer], 4)
    assert (buffer.priorities[:4] == 1).all()  # of nothing, the maximum
    buffer.update_priorities(np.arange(8), np.arange(8.0))
    for _ in range(5):
        held = buffer.priorities[buffer.priorities > 0]
        add_one(buffer)
        np.testing.assert_allclose(buffer.priorities[buffer.pos - 1], held.mean(), rtol=1e-12)


@pytest.mark.parametrize("scheme", [*SCHEMES])
@pytest.mark.parametrize("n_critics", [None, 1, 2])
def test_td_errors_as_initial_priority(scheme, n_critics):
    """As if they had been updated with them at once; without one, the maximum, which they do not raise."""
    buffer, reference = (make_buffer(6, n_envs=3, scheme=scheme, initial_priority="td_error") for _ in range(2))
    rng = np.random.default_rng(0)
    for step in range(8):
        fill([buffer, reference], 1, seed=step)
        td_errors = rng.normal(size=3 if n_critics is None else (3, n_critics)) * 5
        for each in (buffer, reference):
            obs = np.zeros((3, 3))
            given = dict(td_errors=th.tensor(td_errors)) if each is buffer else {}
            each.add(obs, obs, np.zeros((3, 2)), np.zeros(3), np.zeros(3), [{}] * 3, **given)
        maximum = reference.max_priority
        reference.update_priorities(reference._next_id - 3 + np.arange(3), td_errors)
        reference.max_priority = maximum
        np.testing.assert_array_equal(buffer.priorities, reference.priorities)
        assert buffer.max_priority == maximum == 1.0


def test_td_errors_with_hindsight():
    """They wait for the end of the episode."""
    env = make_vec_env(lambda: CountingEnv(goals=True), n_envs=2)
    spaces = (env.observation_space, env.action_space)
    buffer = PrioritizedHerReplayBuffer(20, *spaces, env, "cpu", 2, initial_priority="td_error", alpha=1.0)
    obs = {key: np.zeros((2, 2), np.float32) for key in env.observation_space.spaces}
    for step in range(3):
        done = np.array([step == 2, False])
        buffer.add(obs, obs, np.zeros((2, 1)), np.zeros(2), done, [{}] * 2, td_errors=np.array([step + 1.0, 9.0]))
    np.testing.assert_allclose(buffer.priorities[:3], [[1, 0], [2, 0], [3, 0]], atol=2e-6)


@pytest.mark.parametrize(
    "setting, td_errors, value",
    [
        ("max", [1.0, 2.0], "initial_priority='td_error', not 'max'"),
        ("mean", [1.0, 2.0], "not 'mean'"),
        ("td_error", [1.0, np.nan], "nan"),
        ("td_error", [1.0, 2.0, 3.0], r"\(3,\)"),
    ],
)
def test_bad_td_errors_add_nothing(setting, td_errors, value):
    buffer = make_buffer(6, n_envs=2, initial_priority=setting)
    fill([buffer], 3)
    before = pickle.dumps(buffer)
    with pytest.raises(ValueError, match=value):
        buffer.add(
            np.zeros((2, 3)), np.zeros((2, 3)), np.zeros((2, 2)), np.zeros(2), np.zeros(2), [{}] * 2, td_errors=td_errors
        )
    assert pickle.dumps(buffer) == before


@pytest.mark.parametrize("scheme", ["proportional", "lap"])
def test_the_maximum_is_forgotten(scheme):
    """Every so many updates it becomes the largest that is there; new ones are never below it."""
    buffer = make_buffer(8, scheme=scheme, max_priority_interval=3, kappa=0.01)
    fill([buffer], 8)
    maxima = []
    for step in range(1, 13):
        fill([buffer], 1)
        buffer.update_priorities(np.arange(buffer._next_id - 8, buffer._next_id), np.full(8, 1000.0 / step**2))
        maxima.append(buffer.max_priority)
        if step % 3 == 0:
            assert buffer.max_priority == pytest.approx(1000.0 / step**2, rel=1e-5)
            fill([buffer], 1)
            assert (buffer.priorities[buffer.pos - 1] == buffer.priorities.max()).all()
        else:
            assert buffer.max_priority == pytest.approx(1000.0 / max(step // 3 * 3, 1) ** 2, rel=1e-5) or step > 1
    assert maxima[-1] < maxima[0] / 100


# ---- kappa in units of the reward


@pytest.mark.parametrize("factor", [2.0**-10, 2.0**7])
def test_the_draw_of_lap_does_not_depend_on_the_unit_of_the_reward(factor):
    """All rewards and errors times a power of two: the same draws to the bit, through many refreshes of kappa."""
    found = []
    for c in (1.0, factor):
        buffer = make_buffer(50, n_envs=2, scheme="lap", kappa="auto")
        rng = np.random.default_rng(0)
        np.random.seed(0)
        drawn = []
        for step in range(700):
            obs = np.zeros((2, 3))
            reward = rng.normal(size=2) * (1 + step / 100)
            buffer.add(obs, obs, np.zeros((2, 2)), reward * c, np.zeros(2), [{}] * 2)
            batch = buffer.sample(8)
            drawn.append(batch.indices)
            buffer.update_priorities(batch.indices, rng.exponential(size=8) * 5 * c)
        found.append((np.array(drawn), buffer.scheme.kappa / c, buffer.max_priority / c))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][1:] == found[1][1:]


def test_kappa_is_the_mean_absolute_reward():
    buffer = make_buffer(1000, scheme="lap", kappa="auto")
    for _ in range(3):
        add_one(buffer, 0.0)
    buffer.sample(2)
    assert buffer.scheme.kappa == 1.0  # there is no unit yet
    for step in range(600):
        add_one(buffer, -3.0 if step % 2 else 1.0)
        buffer.update_priorities(buffer.sample(4).indices, np.full(4, 1e-3))
        if step in (300, 550):
            n = step // 250 * 250  # steps at the newest refresh
            rewards = buffer.rewards[: 4 + n, 0]
            assert buffer.scheme.kappa == pytest.approx(np.abs(rewards).mean(), rel=1e-6)
    assert repr(buffer.scheme) == "LAP(alpha=0.4, td_error_reduction='max', kappa='auto')"
    assert buffer.max_priority >= buffer.scheme.kappa


def normalizing(var: float) -> VecNormalize:
    """A VecNormalize that divides rewards by the root of this variance, and leaves observations alone."""
    env = normalizer(OBSERVATION_SPACES["box"], ACTION_SPACES["box"])
    env.ret_rms.var, env.clip_reward, env.norm_obs = var, np.inf, False
    return env


def add_rewards(buffer: Any, rewards: Any, **kwargs: Any) -> None:
    """One step of one environment for each reward."""
    for reward in rewards:
        obs = np.zeros((1, 3))
        buffer.add(obs, obs, np.zeros((1, 2)), np.array([reward]), np.zeros(1), [{}], **kwargs)


@pytest.mark.parametrize("factor", [2.0**-10, 2.0**13])
@pytest.mark.parametrize("is_read", [False, True], ids=["", "priorities are read"])
@pytest.mark.parametrize("is_updated", [False, True], ids=["", "updated before the first draw"])
def test_first_priorities_do_not_depend_on_the_unit_of_the_reward(factor, is_read, is_updated):
    """Half of the transitions come from a warm-up without TD errors, half with those of actors."""
    found = []
    for c in (1.0, factor):
        buffer = make_buffer(100, scheme="lap", kappa="auto", initial_priority="td_error")
        rng = np.random.default_rng(0)
        add_rewards(buffer, rng.normal(size=50) * c)
        for reward, error in zip(rng.normal(size=50) * 2, rng.exponential(size=50) * 5, strict=True):
            add_rewards(buffer, [reward * c], td_errors=np.array([error * c]))
            if is_read:
                assert buffer.priorities.max() > 0.0
        if is_updated:
            buffer.update_priorities(np.array([3, 4, 60]), np.array([50.0, 0.0, 1e-3]) * c)
        np.random.seed(0)
        drawn = [buffer.sample(20).indices]
        masses = buffer.priorities.ravel()
        add_rewards(buffer, [c], td_errors=np.array([3.0 * c]))
        drawn.append(buffer.sample(20).indices)
        kappa = buffer.scheme.kappa / c
        assert kappa == pytest.approx(np.abs(buffer.rewards[:100]).mean() / c, rel=0.05)
        found.append((np.array(drawn), masses / masses.sum(), kappa, buffer.max_priority / c))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-12)
    assert found[0][2:] == found[1][2:]
    if not is_updated:
        # Those without an error have the least mass that there is, as many of the others do.
        assert found[0][3] == found[0][2]
        assert (found[0][1][:50] == found[0][1].min()).all()


def make_by_hand() -> Any:
    buffer = make_buffer(20, scheme="lap", kappa="auto", initial_priority="td_error")
    add_rewards(buffer, [10.0] * 10)
    add_rewards(buffer, [10.0] * 10, td_errors=np.array([0.4]))
    return buffer


def make_from_stock() -> Any:
    stock = ReplayBuffer(20, OBSERVATION_SPACES["box"], ACTION_SPACES["box"], "cpu")
    add_rewards(stock, [10.0] * 20)
    return PrioritizedReplayBuffer.from_replay_buffer(stock, scheme="lap", kappa="auto")


def make_loaded() -> Any:
    buffer = make_by_hand()
    assert buffer.priorities.min() > 0.0
    return pickle.loads(pickle.dumps(buffer))


def make_saved() -> Any:
    buffer = make_by_hand()
    assert buffer.priorities.min() > 0.0
    with tempfile.TemporaryDirectory() as folder:
        save_buffer(buffer, folder + "/it.buffer")
        target = make_buffer(20, scheme="lap", kappa="auto", initial_priority="td_error")
        return load_buffer(target, folder + "/it.buffer")


@pytest.mark.parametrize("make", [make_by_hand, make_from_stock, make_loaded, make_saved])
def test_kappa_is_in_units_of_normalized_rewards_whoever_read_priorities_before(make):
    buffer = make()
    for _ in range(2):
        assert buffer.priorities.min() > 0.0
    buffer.sample(5, env=normalizing(1e4))
    assert buffer.scheme.kappa == pytest.approx(0.1, rel=1e-5)
    assert buffer.max_priority == buffer.scheme.kappa
    priorities = buffer.priorities.ravel()
    np.testing.assert_allclose(priorities[:10], 0.1**0.4, rtol=1e-5)
    np.testing.assert_allclose(priorities[10:], (0.1 if make is make_from_stock else 0.4) ** 0.4, rtol=1e-5)


def test_kappa_is_in_units_of_normalized_rewards_with_columns_of_their_own():
    """As actors add: one environment after the other, only some with TD errors."""
    buffer = make_buffer(10, n_envs=2, scheme="lap", kappa="auto", initial_priority="td_error")
    for env_index, n, td_errors in ((0, 10, None), (1, 3, np.full((3, 1), 0.4)), (1, 3, np.full((3, 1), 0.01))):
        obs, zeros = np.zeros((n, 1, 3)), np.zeros((n, 1))
        columns = np.array([env_index])
        buffer.add_steps(columns, obs, obs, np.zeros((n, 1, 2)), zeros + 10.0, zeros, zeros, td_errors=td_errors)
        assert buffer.priorities.max() > 0.0
    buffer.sample(5, env=normalizing(1e4))
    assert buffer.scheme.kappa == buffer.max_priority == pytest.approx(0.1, rel=1e-5)
    np.testing.assert_allclose(buffer.priorities[:, 0], 0.1**0.4, rtol=1e-5)
    np.testing.assert_allclose(buffer.priorities[:, 1], [0.4**0.4] * 3 + [0.1**0.4] * 3 + [0.0] * 4, rtol=1e-5)


def test_kappa_is_in_units_of_normalized_rewards_with_hindsight():
    buffer = filled_buffer("her", n_rows=20, scheme="lap", kappa="auto", initial_priority="td_error")
    buffer.rewards[:] = 10.0
    is_drawable = buffer.priorities > 0.0
    updated = buffer.transition_ids[is_drawable][:4]
    buffer.update_priorities(buffer.transition_ids[is_drawable], np.full(is_drawable.sum(), 0.01))
    buffer.update_priorities(updated, np.full(4, 0.4))
    add = dict(done=np.array([True, True]), infos=[{}] * 2, td_errors=np.array([0.4, 0.4]))
    obs = {key: np.zeros((2, 2), np.float32) for key in ("observation", "achieved_goal", "desired_goal")}
    buffer.add(obs, obs, np.zeros((2, 1)), np.full(2, 10.0), **add)
    assert (buffer.priorities > 0.0).sum() > is_drawable.sum()
    buffer.sample(5, env=normalizing(1e4))
    assert buffer.scheme.kappa == pytest.approx(0.1, rel=1e-5)
    masses = buffer.priorities.ravel()
    np.testing.assert_allclose(masses[updated], 0.4**0.4, rtol=1e-5)
    np.testing.assert_allclose(buffer.priorities[buffer.pos - 1], 0.4**0.4, rtol=1e-5)
    assert (masses > 0.0).sum() == (masses > 0.39**0.4).sum() + np.isclose(masses, 0.1**0.4).sum()


def test_the_unit_may_come_after_many_draws():
    """Rewards of 1e-3 after a long time without any: nothing remembers that kappa was 1 until then."""
    buffer = make_buffer(1000, scheme="lap", kappa="auto")
    add_rewards(buffer, [0.0] * 20)
    for _ in range(260):
        batch = buffer.sample(4)
        assert buffer.scheme.kappa == 1.0
        buffer.update_priorities(batch.indices, np.full(4, 2e-3))
    drawn = buffer.transition_ids[buffer.transition_ids >= 0]
    add_rewards(buffer, [1e-3] * 20)
    for _ in range(250):
        buffer.update_priorities(buffer.sample(4).indices, np.full(4, 2e-3))
    assert buffer.scheme.kappa == pytest.approx(0.5e-3)
    assert buffer.max_priority == pytest.approx(2e-3)
    buffer.update_priorities(drawn, np.full(len(drawn), 1e-4))
    np.testing.assert_allclose(buffer.priorities.ravel()[drawn], 0.5e-3**0.4, rtol=1e-5)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("env", [None, normalizing(1e4)], ids=["", "VecNormalize"])
def test_rewards_that_are_not_finite_do_not_enter_kappa(bad, env):
    buffer = make_buffer(20, scheme="lap", kappa="auto")
    add_rewards(buffer, [10.0, bad, -10.0])
    assert np.isfinite(buffer.priorities).all()
    buffer.sample(5, env=env)
    assert buffer.scheme.kappa == pytest.approx(10.0 if env is None else 0.1, rel=1e-5)
    assert buffer.max_priority == buffer.scheme.kappa


@pytest.mark.parametrize(
    "rewards, env, value",
    [([np.inf, np.nan], None, "inf"), ([np.nan], normalizing(1e4), "nan"), ([1.0, 2.0], normalizing(np.nan), "nan")],
)
def test_a_kappa_that_is_not_finite_names_the_reward(rewards, env, value):
    buffer = make_buffer(20, scheme="lap", kappa="auto")
    add_rewards(buffer, rewards)
    with pytest.raises(ValueError, match=f"kappa='auto'.* reward is {value}"):
        buffer.sample(5, env=env)
    add_rewards(buffer, [3.0])
    buffer.sample(5)
    assert buffer.scheme.kappa == pytest.approx(np.nanmean(np.where(np.isfinite(r := np.array([*rewards, 3.0])), r, np.nan)))


# ---- state


SETTINGS: dict[str, dict[str, Any]] = {
    "eta": dict(uniform_fraction=0.1),
    "mean": dict(weight_normalization="mean"),
    "none": dict(weight_normalization="none", uniform_fraction=0.2),
    "uniform actor": dict(actor_batch="uniform"),
    "weighted actor": dict(actor_batch="weighted"),
    "initial mean": dict(initial_priority="mean"),
    "initial errors": dict(initial_priority="td_error"),
    "interval": dict(max_priority_interval=2),
    "recency": dict(recency=0.999, recency_min=3),
    "unique": dict(unique=True),
    "kappa": dict(scheme="lap", kappa="auto"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_copies_continue_alike(name):
    buffer = filled_buffer(**SETTINGS[name])
    for _ in range(3):
        buffer.update_priorities(buffer.sample(6).indices, np.arange(6) * 3.0)
    twin = pickle.loads(pickle.dumps(buffer))
    for each in (buffer, twin):
        np.random.seed(3)
        for _ in range(3):
            fill([each], 2)
            batch = each.sample(7)
            each.update_priorities(batch.indices, np.arange(7.0))
    assert_same_state(twin, buffer)
    changed = PrioritizedReplayBuffer.from_replay_buffer(twin, beta_end=0.9)
    for key, value in SETTINGS[name].items():
        if key not in ("scheme", "kappa"):
            assert getattr(changed, key) == value
    np.testing.assert_array_equal(changed.priorities, buffer.priorities)


@pytest.mark.parametrize(
    "kwargs", [*SETTINGS.values(), *(dict(scheme=scheme) for scheme in SCHEMES), dict(scheme="uniform", stratified=False)]
)
@pytest.mark.parametrize("kind", ["plain", "memory", "her"])
def test_a_draw_changes_nothing(kwargs, kind):
    """Once the tree knows what came in, drawing reads the state and no more."""
    if kind == "her" and "recency" in kwargs:
        return
    buffer = filled_buffer(kind, **kwargs)
    buffer.sample(2)
    before = pickle.dumps(buffer)
    buffer.sample(5)
    buffer.sample_observations(5)
    assert pickle.dumps(buffer) == before


@pytest.mark.parametrize(
    "kwargs, value",
    [
        (dict(uniform_fraction=1.0), r"uniform_fraction must be in \[0, 1\), not 1.0"),
        (dict(uniform_fraction=-0.1), r"-0\.1"),
        (dict(uniform_fraction=np.nan), "nan"),
        (dict(weight_normalization="sum"), "weight_normalization must be one of .*'mean'.* not 'sum'"),
        (dict(weight_normalization="mean", scheme="lap"), "no effect with LAP"),
        (dict(weight_normalization="none", scheme="uniform"), "no effect with Uniform"),
        (dict(actor_batch="random"), "actor_batch must be one of .* not 'random'"),
        (dict(initial_priority="min"), "initial_priority must be one of .* not 'min'"),
        (dict(initial_priority="mean", scheme="rank"), "no meaning with RankBased"),
        (dict(initial_priority="mean", scheme="uniform"), "no effect with Uniform"),
        (dict(initial_priority="td_error", scheme="pal"), "no effect with PAL"),
        (dict(max_priority_interval=0), "max_priority_interval must be None or an integer of at least 1, not 0"),
        (dict(max_priority_interval=250, scheme="rank"), "no effect with RankBased"),
        (dict(max_priority_interval=250, scheme="pal"), "no effect with PAL"),
        (dict(max_priority_interval=250, scheme="uniform"), "no effect with Uniform"),
        (dict(recency=0.0), r"recency must be in \(0, 1\], not 0.0"),
        (dict(recency=1.5), "1.5"),
        (dict(recency_min=0), "recency_min must be an integer of at least 1, not 0"),
        (dict(kappa="auto"), "kappa='auto' is for the schemes 'lap' and 'pal', .* not for 'proportional'"),
        (dict(kappa="mean", scheme="lap"), "kappa must be finite and above 0, not mean"),
    ],
)
def test_bad_settings(kwargs, value):
    with pytest.raises(ValueError, match=value):
        make_buffer(10**12, **kwargs)  # before anything is allocated


def test_recency_with_hindsight_is_refused():
    with pytest.raises(NotImplementedError, match=r"recency=0\.99 with hindsight"):
        filled_buffer("her", recency=0.99)
