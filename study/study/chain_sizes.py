"""
The chain at six sizes: the rarer success is for an agent that explores, the more does prioritized replay help?

dose_response.py asks this of data that never change. Here the agent collects them. With each of 5 to 15 states a success
becomes about twice as rare. How rare it is, is measured first: the share of successes among 100,000 episodes of a random
policy, in rarity.csv.

What was declared before the first run: declared.md.
"""

from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import Logger

from .campaign import Campaign, Contrast
from .environments import ChainEnv
from .learning import dqn, share_of_random_steps
from .suites import NO_WEIGHTS

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
    score=lambda row: -float(np.log(float(row["steps"]))),
    primary=tuple(Contrast(arm, "uniform", over) for arm in JUDGED for over in ("mean", "slope")),
    secondary=tuple(Contrast(arm, f"shuffled, {arm}", over) for arm in JUDGED for over in ("mean", "slope")),
    is_log=True,
    digits=(0, 3),
    seconds=dict(zip(SIZES, (0.3, 0.6, 1.2, 3.5, 8.0, 25.0), strict=True)),
    random_successes=random_successes,
    shares={
        "Share of steps with a random action until then": lambda row: share_of_random_steps(
            round(float(row["steps"])), cap_of(int(row["task"])), DQN_SETTINGS
        )
    },
)
