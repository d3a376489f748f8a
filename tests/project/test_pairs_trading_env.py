"""The pairs-trading environment passes the checkers, is seeded, and rewards trading on spreads that revert."""

import sys
from pathlib import Path

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env as check_env_of_gymnasium
from stable_baselines3.common.env_checker import check_env

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))
from pairs_trading_env import PairsTradingEnv


def episode(env: PairsTradingEnv, seed: int, policy) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Play an episode, and return its observations, positions, rewards, spread and breaks."""
    obs, info = env.reset(seed=seed)
    observations, positions, rewards, spread, breaks = [obs], [0.0], [], [info["spread"]], [info["regime_break"]]
    truncated = False
    while not truncated:
        action = policy(obs)
        obs, reward, terminated, truncated, info = env.step(action)
        assert not terminated
        observations.append(obs)
        positions.append(float(np.clip(action[0], -1, 1)))
        rewards.append(reward)
        spread.append(info["spread"])
        breaks.append(info["regime_break"])
    return tuple(map(np.array, (observations, positions, rewards, spread, breaks)))


def random_policy(seed: int = 0):
    rng = np.random.default_rng(seed)
    return lambda obs: rng.uniform(-1.5, 1.5, 1)


def reversion(obs):
    return -np.clip(obs[:1], -1, 1)


def test_the_environment_checkers_pass():
    check_env(PairsTradingEnv())
    check_env_of_gymnasium(PairsTradingEnv(), skip_render_check=True)


def test_a_seed_reproduces_the_path_whatever_the_actions():
    one, same, other = (episode(PairsTradingEnv(), seed, random_policy()) for seed in (3, 3, 4))
    for a, b in zip(one, same, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(one[3], other[3])
    np.testing.assert_array_equal(one[3], episode(PairsTradingEnv(), 3, reversion)[3])


def test_the_reward_is_the_gain_of_the_position_less_the_cost_of_trading():
    for seed, cost in enumerate((0.0, 0.1, 2.0)):
        env = PairsTradingEnv(cost=cost)
        _, positions, rewards, spread, _ = episode(env, seed, random_policy(seed))
        assert len(rewards) == 250
        expected = positions[1:] * np.diff(spread) - cost * np.abs(np.diff(positions))
        np.testing.assert_allclose(rewards, expected, rtol=1e-9, atol=1e-12)


def test_observations_show_spread_and_position():
    env = PairsTradingEnv()
    observations, positions, _, spread, _ = episode(env, 0, random_policy())
    np.testing.assert_allclose(observations[:, 3], positions, rtol=1e-6)
    changes = np.diff(spread)
    np.testing.assert_allclose(observations[1:, 1], np.clip(changes, -10, 10), rtol=1e-5, atol=1e-6)
    for bar in range(50, 251, 40):
        window, recent = spread[bar - 49 : bar + 1], changes[bar - 10 : bar]
        assert observations[bar, 0] == pytest.approx((spread[bar] - window.mean()) / window.std(), rel=1e-4)
        assert observations[bar, 2] == pytest.approx(recent.std(), rel=1e-4)
    assert env.observation_space.contains(observations[7])


def test_the_spread_breaks_at_about_one_bar_in_a_hundred():
    breaks = np.concatenate([episode(PairsTradingEnv(), seed, reversion)[4] for seed in range(40)])
    assert 0.006 < breaks.mean() < 0.014
    assert not episode(PairsTradingEnv(p_break=0.0), 0, reversion)[4].any()


def test_trading_on_reversion_earns_and_random_trading_loses():
    env = PairsTradingEnv()
    earned, lost = (
        np.array([episode(env, seed, policy)[2].sum() for seed in range(25)]) for policy in (reversion, random_policy())
    )
    standard_error = earned.std() / np.sqrt(len(earned))
    assert earned.mean() > 3 * standard_error > 0
    assert lost.mean() < -3 * lost.std() / np.sqrt(len(lost))
