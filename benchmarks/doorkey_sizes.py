"""
MiniGrid DoorKey of 5x5 and 6x6 without demonstrations: does prioritized replay help an agent that has to find a rare goal?

    python benchmarks/doorkey_sizes.py                  # what is missing; then report.py
    python benchmarks/doorkey_sizes.py --seconds 600    # start no run after ten minutes; call again to continue

Only the goal pays, behind a locked door whose key must be picked up. Encoding and settings are those of demonstrations.py. How
rare a success is, is measured first: the share of successes among 10,000 episodes of a random policy, in rarity.csv.

Written down before the first run of the campaign:

- Arms: the uniform twin, the defaults, draws without weights, both with shuffled priorities, and stock DQN, as in
  chain_sizes.py.
- 40,000 steps of 5x5 and 80,000 of 6x6; no run ends early. 20 evaluations of 20 episodes, the same every time, are spread
  evenly.
- Endpoint of a run: share of successful episodes, mean over all evaluations: an agent that learns sooner has more.
- Each arm has one learning rate for both sizes: the one of four with the highest mean of the endpoint over the sizes and three
  choosing seeds. If it is at the edge of the grid, the grid grows for all arms (campaign.py).
- All that is reported comes from 12 other seeds, which run one after the other, each at both sizes with all arms, and only
  when all 12 are complete. Nobody looks at their results before; their number is published.
- Primary: the mean over the sizes, the defaults and draws without weights against the twin; two tests, exact random signs of
  the 12 differences, two-sided, with Holm's correction. A gain is due to the priorities only if it is also there against the
  arm's own shuffled control: the same two tests against the controls, corrected among themselves. Stock stands beside,
  untested.
- Intervals: 95% bootstrap over seeds. 8x8 is no part of it: no pilot shows that the twin solves it.

Pilots, of the twin alone at 5x5, seeds 900 and 901, which nothing else uses: with one update for two steps, as in
demonstrations.py, it had 0.67 and 0.72 of the endpoint at 1e-3, and 0.72 and 0.80 at 3e-4. With one update for four steps, the
only run that ended had 0.52 at 3e-4, where the other way had 0.72, and took 63 CPU seconds in place of 76. So it is one update
for two steps.

Budget: 288 runs. A run of 5x5 took 83 CPU seconds beside other work, one of 6x6 takes twice as many steps: ten hours of one
core. Afterwards: the grid did not grow, and all runs took 4.7 hours of one core.
"""

import functools
from typing import Any

import doorkey
import numpy as np
import torch as th
from campaign import Campaign, Contrast, Row, main
from chain_sizes import ARMS
from learning import EVALUATION_SEED, with_control
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_per import PERDQN

# Steps of a run by size.
STEPS = {5: 40_000, 6: 80_000}
N_EVALUATIONS, N_EPISODES = 20, 20
DQN_SETTINGS: dict[str, Any] = dict(
    policy_kwargs=dict(net_arch=[64, 64]),
    gamma=0.9,
    batch_size=64,
    train_freq=2,
    learning_starts=1_000,
    target_update_interval=200,
    exploration_fraction=0.4,
)
RANDOM_EPISODES = 10_000


def train(size: int, arm: str, option: str, rate: float, seed: int) -> dict[str, Any]:
    """
    Train and evaluate one run, which never ends early.

    :param size: cells of a side of the grid
    :param arm: a key of :data:`ARMS`
    :param option: not used: no arm has options
    :param rate: learning rate of Adam
    :param seed: of the environment, the networks and the draws
    :return: share of the episodes that reach the goal, by number of the evaluation
    """
    th.set_num_threads(1)
    is_stock, period = arm == "stock", STEPS[size] // N_EVALUATIONS
    make_env = functools.partial(doorkey.make_env, size)
    model = (DQN if is_stock else PERDQN)(
        "MlpPolicy",
        make_vec_env(make_env, seed=seed),
        learning_rate=rate,
        buffer_size=STEPS[size],
        replay_buffer_kwargs=None if is_stock else with_control(ARMS[arm]),
        seed=seed,
        device="cpu",
        **DQN_SETTINGS,
    )
    test_env = make_vec_env(make_env, N_EPISODES)
    shares: list[float] = []

    def evaluate(*_: Any) -> bool:
        if model.num_timesteps % period == 0:
            test_env.seed(EVALUATION_SEED)
            returns: Any = evaluate_policy(model, test_env, N_EPISODES, return_episode_rewards=True)[0]
            shares.append(float(np.mean(np.array(returns) > 0.0)))  # only the goal has a reward
        return True

    model.learn(STEPS[size], callback=evaluate)
    return {str(i + 1): share for i, share in enumerate(shares)}


def random_successes(size: int) -> tuple[int, int]:
    """Count the random episodes that reach the goal."""
    env, successes = doorkey.make_env(size), 0
    env.action_space.seed(size)
    for seed in range(RANDOM_EPISODES):
        env.reset(seed=seed)
        is_over = False
        while not is_over:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            is_over = terminated or truncated
            successes += float(reward) > 0
    return RANDOM_EPISODES, successes


def score(row: Row) -> float:
    """Score a run: mean success over all evaluations."""
    return float(np.mean([float(row[str(i + 1)]) for i in range(N_EVALUATIONS)]))


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
    score=score,
    primary=(Contrast("defaults", "uniform"), Contrast("no weights", "uniform")),
    secondary=(Contrast("defaults", "shuffled, defaults"), Contrast("no weights", "shuffled, no weights")),
    chooses_by_task=False,
    seconds={5: 37.0, 6: 80.0},
    random_successes=random_successes,
)

if __name__ == "__main__":
    main([CAMPAIGN])
