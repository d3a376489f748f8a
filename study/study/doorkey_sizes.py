"""
MiniGrid DoorKey of 5x5 and 6x6 without demonstrations: does prioritized replay help an agent that has to find a rare goal?

Only the goal pays, behind a locked door whose key must be picked up. Encoding and settings are those of demonstrations.py. How
rare a success is, is measured first: the share of successes among 10,000 episodes of a random policy, in rarity.csv.

What was declared before the first run: declared.md.
"""

import functools
from typing import Any

from stable_baselines3.common.env_util import make_vec_env

from . import doorkey
from .campaign import Campaign, Contrast, mean_of_all
from .chain_sizes import ARMS, JUDGED
from .learning import dqn, evaluations, returns_of

# Steps of a run by size.
STEPS = {5: 40_000, 6: 80_000}
N_EVALUATIONS, N_EPISODES = 20, 20
DQN_SETTINGS: dict[str, Any] = dict(policy_kwargs=dict(net_arch=[64, 64]), learning_starts=1_000, **doorkey.DQN_SETTINGS)
RANDOM_EPISODES = 10_000


def train(size: int, arm: str, option: str, rate: float, seed: int) -> dict[str, Any]:
    """Train and evaluate one run, which never ends early. Return the success by number of the evaluation."""
    period, make_env = STEPS[size] // N_EVALUATIONS, functools.partial(doorkey.make_env, size)
    settings = dict(learning_rate=rate, buffer_size=STEPS[size], seed=seed, **DQN_SETTINGS)
    model, test_env = dqn(ARMS, arm, make_vec_env(make_env, seed=seed), **settings), make_vec_env(make_env, N_EPISODES)

    share = lambda: doorkey.success_rate(returns_of(model, test_env, N_EPISODES))  # noqa: E731
    shares = evaluations(model, range(period, STEPS[size] + 1, period), share)
    return {str(i + 1): each for i, each in enumerate(shares)}


def random_successes(size: int) -> dict[str, int]:
    env, successes = doorkey.make_env(size), 0
    env.action_space.seed(size)
    for seed in range(RANDOM_EPISODES):
        env.reset(seed=seed)
        is_over = False
        while not is_over:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            is_over = terminated or truncated
            successes += float(reward) > 0
    return dict(episodes=RANDOM_EPISODES, successes=successes)


CAMPAIGN = Campaign(
    name="doorkey-sizes",
    endpoint="Share of successful episodes, mean over all evaluations.",
    unit="cells a side",
    tasks=tuple(STEPS),
    arms=dict.fromkeys(ARMS, ("",)),
    rates=(1e-4, 3e-4, 1e-3, 3e-3),
    choosing=range(100, 103),
    reporting=range(200, 212),
    settings=dict(arms=ARMS, steps=list(STEPS.items()), evaluations=[N_EVALUATIONS, N_EPISODES], dqn=DQN_SETTINGS),
    train=train,
    score=mean_of_all,
    primary=tuple(Contrast(arm, "uniform") for arm in JUDGED),
    secondary=tuple(Contrast(arm, f"shuffled, {arm}") for arm in JUDGED),
    chooses_by_task=False,
    seconds={5: 37.0, 6: 80.0},
    random_successes=random_successes,
)
