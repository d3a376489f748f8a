"""
The chain at six sizes: the rarer success is for an agent that explores, the more does prioritized replay help?

    python benchmarks/chain_sizes.py                  # what is missing; then report.py
    python benchmarks/chain_sizes.py --seconds 600    # start no run after ten minutes; call again to continue

dose_response.py asks this of data that never change. Here the agent collects them: chain_env.py with 5 to 15 states, where a
success becomes about twice as rare with each state. How rare it is, is measured first: the share of successes among 100,000
episodes of a random policy, in rarity.csv.

Written down before the first run of the campaign:

- Arms: the uniform twin, the defaults, draws without weights, both with shuffled priorities, and stock DQN.
- Settings: the same for all arms and sizes, except for the cap on steps, 4,000 + 10 * 2^(n + 1), and what follows from it: the
  buffer holds all steps, epsilon falls from 1 to 0.2 over the first half, and beta reaches 1 at the cap.
- Endpoint of a run: logarithm of the steps until the way to the end is known at five checks in a row, one after every fifth
  update, that is every 40 steps. It is known if in every state the right action has the higher value, and at least half of its
  true value, gamma^(steps to go). A run that does not get there counts with its cap and is marked; such runs are lower bounds,
  and their number stands beside every mean.
- Each arm has its own learning rate at each size: the one of four with the lowest mean of the endpoint over the ten choosing
  seeds. If it is at the edge of the grid, the grid grows for all arms at that size (campaign.py).
- All that is reported comes from 40 other seeds, which run one after the other, each at all sizes with all arms, and only
  when all 40 are complete. Nobody looks at their results before; their number is published.
- Gain: the twin's logarithm minus the arm's, with the same seed. Primary: the mean gain over the sizes, and the slope of the
  gain over the number of states, by least squares, of the defaults and of draws without weights; four tests, exact random
  signs of the 40 differences, two-sided, with Holm's correction. A gain counts if it is also there against the arm's own
  shuffled control: the same four tests against the controls, corrected among themselves. Stock stands beside, untested.
- Intervals: 95% bootstrap over seeds.

Pilots, of the twin alone but for one run of each arm that tried the script, seeds 900 to 902, which nothing else uses. With
the endpoint "all greedy actions are right" some runs ended before the first success, by chance; with the values but one check,
large rates ended by chance, too, and knew the way at one of ten later checks. Hence five in a row. With 500 or 100 steps
between two copies of the target network in place of 40, most of a short run is waiting for copies. With these settings the
twin took, as geometric means at the rates 1e-3, 3e-3, 1e-2, 3e-2: 1,269, 653, 740, 2,289 steps at n = 5, and 3,634, 2,475,
1,968, 7,055 at n = 9. So the grid has the best rates inside. No run came near its cap: at n = 15, with one check, two took
49,000 and 71,000 of 659,360 steps. The floor: no run can end before 260 steps, the start at 100 and five checks, which matters
at n = 5 at most.

Budget: 2,880 runs. A run of the pilot took 0.3, 0.6, 1.2, 3.5, 8 and 25 CPU seconds at the six sizes, on two cores that others
used as well: five hours of one core.

Looks: the choosing runs of 5 and 7 states, when those of 9 were running, to see whether the grid has to grow. It had not. No
reporting run was there.
"""

import functools
from typing import Any

import numpy as np
import torch as th
from campaign import Campaign, Contrast, main, minus_log
from chain_env import ChainEnv
from learning import dqn
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import Logger
from suites import NO_WEIGHTS

SIZES = (5, 7, 9, 11, 13, 15)
# Replay settings of the arms; stock has none.
ARMS: dict[str, dict[str, Any]] = {
    "uniform": dict(scheme="uniform"),
    "defaults": {},
    "no weights": NO_WEIGHTS,
    "shuffled, defaults": dict(scheme="shuffled proportional"),
    "shuffled, no weights": dict(scheme="shuffled proportional", **NO_WEIGHTS),
    "stock": {},
}
JUDGED = ("defaults", "no weights")
PERIOD, IN_A_ROW, N_ENVS, GAMMA = 5, 5, 8, 0.95
DQN_SETTINGS: dict[str, Any] = dict(
    batch_size=32,
    gamma=GAMMA,
    train_freq=1,
    learning_starts=100,
    target_update_interval=40,
    exploration_fraction=0.5,
    exploration_final_eps=0.2,
)
RANDOM_EPISODES = 100_000


def cap_of(n_states: int) -> int:
    return 4_000 + 10 * 2 ** (n_states + 1)


def knows_the_way(q_net: th.nn.Module, ways: np.ndarray) -> bool:
    """Check that every right action has the higher value, and at least half of its true value."""
    states = np.arange(len(ways))
    with th.no_grad():
        values = q_net(th.eye(len(ways))).numpy()
    right, wrong = values[states, ways], values[states, 1 - ways]
    return bool(np.all((right > wrong) & (right >= 0.5 * GAMMA ** states[::-1])))


def train(n_states: int, arm: str, option: str, rate: float, seed: int) -> dict[str, Any]:
    """Train until the way is known. Return ``steps``, whether that ``solved`` the task, and the ``successes`` on the way."""
    policy_kwargs = dict(net_arch=[64], optimizer_kwargs=dict(fused=True))
    settings = dict(learning_rate=rate, buffer_size=cap_of(n_states), policy_kwargs=policy_kwargs, seed=seed, **DQN_SETTINGS)
    model = dqn(ARMS, arm, make_vec_env(lambda: ChainEnv(n_states), N_ENVS), **settings)
    model.set_logger(Logger(None, []))
    ways, n_calls, n_in_a_row = ChainEnv(n_states).ways, 0, 0

    def check(*_: Any) -> bool:
        nonlocal n_calls, n_in_a_row
        n_calls += 1
        if n_calls % PERIOD == 0:
            n_in_a_row = n_in_a_row + 1 if knows_the_way(model.q_net, ways) else 0
        return n_in_a_row < IN_A_ROW

    model.learn(cap_of(n_states), callback=check, log_interval=1_000_000)
    successes = int((model.replay_buffer.rewards > 0).sum())
    return {"steps": model.num_timesteps, "solved": int(n_in_a_row == IN_A_ROW), "successes": successes}


def random_successes(n_states: int) -> dict[str, int]:
    env, successes = ChainEnv(n_states), 0
    rng = np.random.default_rng(n_states)
    for _ in range(RANDOM_EPISODES):
        env.reset()
        for action in rng.integers(2, size=env.max_steps).tolist():
            _, reward, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                successes += reward > 0
                break
    return dict(episodes=RANDOM_EPISODES, successes=int(successes))


CAMPAIGN = Campaign(
    name="chain-sizes",
    endpoint="Steps until the way to the end of the chain is known.",
    unit="states",
    tasks=SIZES,
    arms=dict.fromkeys(ARMS, ("",)),
    rates=(1e-3, 3e-3, 1e-2, 3e-2),
    choosing=range(100, 110),
    reporting=range(200, 240),
    settings=dict(arms=ARMS, period=PERIOD, in_a_row=IN_A_ROW, n_envs=N_ENVS, dqn=DQN_SETTINGS, caps=list(map(cap_of, SIZES))),
    train=train,
    score=functools.partial(minus_log, "steps"),
    primary=tuple(Contrast(arm, "uniform", over) for arm in JUDGED for over in ("mean", "slope")),
    secondary=tuple(Contrast(arm, f"shuffled, {arm}", over) for arm in JUDGED for over in ("mean", "slope")),
    is_log=True,
    digits=(0, 3),
    seconds=dict(zip(SIZES, (0.3, 0.6, 1.2, 3.5, 8.0, 25.0), strict=True)),
    random_successes=random_successes,
)

if __name__ == "__main__":
    main([CAMPAIGN])
