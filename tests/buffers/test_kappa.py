"""kappa="auto": LAP and PAL measure priorities in units of the mean absolute reward."""

import pickle
from typing import Any

import numpy as np
import pytest
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per import PrioritizedReplayBuffer
from tests.utils import ACTION_SPACES, OBSERVATION_SPACES, add_one, filled_buffer, make_buffer, normalizer


def normalizing(var: float) -> VecNormalize:
    """Make a VecNormalize that divides rewards by the root of this variance and leaves observations alone."""
    env = normalizer(OBSERVATION_SPACES["box"], ACTION_SPACES["box"])
    env.ret_rms.var, env.clip_reward, env.norm_obs = var, np.inf, False
    return env


def add_rewards(buffer: Any, rewards: Any, **kwargs: Any) -> None:
    """Add one step of one environment for each reward."""
    for reward in rewards:
        obs = np.zeros((1, 3))
        buffer.add(obs, obs, np.zeros((1, 2)), np.array([reward]), np.zeros(1), [{}], **kwargs)


def test_draws_do_not_depend_on_the_scale_of_rewards():
    """Multiply all rewards and TD errors by a power of two: draws stay the same while kappa is recomputed twice."""
    found = []
    for c in (1.0, 2.0**-10):
        buffer = make_buffer(50, n_envs=2, scheme="lap", kappa="auto")
        rng = np.random.default_rng(0)
        np.random.seed(0)
        drawn = []
        for step in range(520):
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
    assert buffer.scheme.kappa == 1.0  # all rewards are 0, so kappa keeps its first value
    for step in range(600):
        add_one(buffer, -3.0 if step % 2 else 1.0)
        buffer.update_priorities(buffer.sample(4).indices, np.full(4, 1e-3))
        if step in (300, 550):
            n = step // 250 * 250  # number of steps when kappa was last recomputed
            rewards = buffer.rewards[: 4 + n, 0]
            assert buffer.scheme.kappa == pytest.approx(np.abs(rewards).mean(), rel=1e-6)
    assert repr(buffer.scheme) == "LAP(alpha=0.4, td_error_reduction='max', kappa='auto')"
    assert buffer.max_priority >= buffer.scheme.kappa


@pytest.mark.parametrize("is_read", [False, True], ids=["priorities not read", "priorities read"])
@pytest.mark.parametrize("is_updated", [False, True], ids=["no update", "updated before the first draw"])
def test_first_priorities_do_not_depend_on_the_scale_of_rewards(is_read, is_updated):
    """Half of the transitions come from a warm-up without TD errors, half from actors that send TD errors."""
    found = []
    for c in (1.0, 2.0**13):
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
        # Transitions without a TD error have the smallest mass, which is also that of all errors below kappa.
        assert found[0][3] == found[0][2]
        assert (found[0][1][:50] == found[0][1].min()).all()


def make_by_adding() -> Any:
    buffer = make_buffer(20, scheme="lap", kappa="auto", initial_priority="td_error")
    add_rewards(buffer, [10.0] * 10)
    add_rewards(buffer, [10.0] * 10, td_errors=np.array([0.4]))
    return buffer


def make_from_sb3() -> Any:
    stock = ReplayBuffer(20, OBSERVATION_SPACES["box"], ACTION_SPACES["box"], "cpu")
    add_rewards(stock, [10.0] * 20)
    return PrioritizedReplayBuffer.from_replay_buffer(stock, scheme="lap", kappa="auto")


def make_loaded() -> Any:
    buffer = make_by_adding()
    assert buffer.priorities.min() > 0.0
    return pickle.loads(pickle.dumps(buffer))


@pytest.mark.parametrize("make", [make_by_adding, make_from_sb3, make_loaded])
def test_kappa_is_the_mean_absolute_normalized_reward(make):
    """Reading priorities before the first draw does not change the result."""
    buffer = make()
    for _ in range(2):
        assert buffer.priorities.min() > 0.0
    buffer.sample(5, env=normalizing(1e4))
    assert buffer.scheme.kappa == pytest.approx(0.1, rel=1e-5)
    assert buffer.max_priority == buffer.scheme.kappa
    priorities = buffer.priorities.ravel()
    np.testing.assert_allclose(priorities[:10], 0.1**0.4, rtol=1e-5)
    np.testing.assert_allclose(priorities[10:], (0.1 if make is make_from_sb3 else 0.4) ** 0.4, rtol=1e-5)


def test_kappa_bounds_priorities_of_separate_environments():
    """Add as actors do: one environment after the other, only some with TD errors."""
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


def test_kappa_bounds_priorities_with_her():
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


def test_kappa_adapts_to_rewards_that_come_after_many_draws():
    """Rewards of 1e-3 follow many steps without reward; the earlier kappa of 1 has no effect on priorities."""
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


@pytest.mark.parametrize("bad", [-np.inf, np.nan])
@pytest.mark.parametrize("env", [None, normalizing(1e4)], ids=["raw rewards", "VecNormalize"])
def test_kappa_ignores_rewards_that_are_not_finite(bad, env):
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
def test_a_mean_reward_that_is_not_finite_raises_and_is_named(rewards, env, value):
    buffer = make_buffer(20, scheme="lap", kappa="auto")
    add_rewards(buffer, rewards)
    with pytest.raises(ValueError, match=f"kappa='auto'.* reward is {value}"):
        buffer.sample(5, env=env)
    add_rewards(buffer, [3.0])
    buffer.sample(5)
    assert buffer.scheme.kappa == pytest.approx(np.nanmean(np.where(np.isfinite(r := np.array([*rewards, 3.0])), r, np.nan)))
