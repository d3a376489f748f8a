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
from campaign import Campaign, Contrast, main, mean_of_all
from chain_sizes import ARMS, JUDGED
from learning import dqn, evaluations, returns_of
from stable_baselines3.common.env_util import make_vec_env

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

if __name__ == "__main__":
    main([CAMPAIGN])
