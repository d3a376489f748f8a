"""
SAC at equal time: which draw, and how many updates a step, has the highest return after the same seconds?

Tasks of the DeepMind Control Suite in EnvPool, 32 environments, the compiled class. Time is modelled: a run keeps the returns
by common steps, and prices of a step and of an update say how many steps each arm has at a budget. So a run does not depend on
the machine, and both prices of a step are read from the same run.

    python -m study.wall_clock --workers 16 --seconds 500 --out elsewhere    # runs alone, where reports cannot be written

What was declared before the first run: declared.md.
"""

import gc
import os
from dataclasses import replace
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.logger import Logger

from . import campaign as campaigns
from .campaign import Campaign, Contrast, Row, evaluations_of
from .control import ARMS as DRAWS
from .control import NET_ARCH, RANDOM, first_seed_of
from .learning import random_policy, with_control

N_ENVS, LENGTH = 32, 1_000  # all episodes have the same length, and their ends are staggered
N_UPDATES = {"uniform": (1, 4, 16), **dict.fromkeys(("defaults", "no weights", "shuffled, no weights"), (1, 4))}
STEPS = 16_000  # common steps with updates of the uniform arm at one update a step, which set the budgets
BIN = 250  # common steps of a mean: in each, exactly eight episodes end
# Prices in milliseconds, measured by prices.py: EnvPool's own step of all environments, by task, and what training adds to a
# common step, by its number of updates. All draws have the same price: no difference was seen.
OWN = {
    "ReacherHard": 0.4,
    "FingerTurnHard": 0.65,
    "PendulumSwingup": 0.25,
    "PointMassHard": 0.35,
    "BallInCupCatch": 2.0,
    "CheetahRun": 0.7,
}
TRAINING = {1: 4.2, 4: 12.4, 16: 43.3}
DENSE = "CheetahRun"
SLOW = 10.0  # of a step of all environments in a slow simulator
PRICES = ("EnvPool", "10 ms")


def arm_of(draw: str, n_updates: int) -> str:
    return f"{draw}, {n_updates} a step"


ARMS = {arm_of(draw, n): (draw, n) for draw, numbers in N_UPDATES.items() for n in numbers}


def milliseconds(task: str, n_updates: int, price: str) -> float:
    """Return what a common step and its updates take."""
    return (OWN[task] if price == "EnvPool" else SLOW) + TRAINING[n_updates]


def steps_of(task: str, arm: str, price: str) -> int:
    """Return the common steps with updates at the budget, in whole bins; the random policy has those of uniform."""
    _, n_updates = ARMS.get(arm, ("uniform", 1))
    return BIN * round(STEPS * milliseconds(task, 1, price) / milliseconds(task, n_updates, price) / BIN)


def columns_of(returns: list[float]) -> dict[str, Any]:
    """Average the returns of all episodes in the order of their ends, by common steps; no value where a run has ended."""
    means = np.array(returns).reshape(-1, BIN * N_ENVS // LENGTH).mean(axis=1)
    found = {str(BIN * (i + 1)): round(float(mean), 4) for i, mean in enumerate(means)}
    return {str(step): found.get(str(step), "") for step in range(BIN, STEPS + 1, BIN)}


def make_env(task: str, seed: int) -> Any:
    """Make the environments of a run."""
    import envpool

    from sb3_per.integrations import from_vector_env

    pool = envpool.make(f"{task}-v1", env_type="gymnasium", num_envs=N_ENVS, num_threads=1, seed=first_seed_of(seed))
    return from_vector_env(pool, stagger=LENGTH, flatten=True)


def settings_of(n_updates: int, rate: float, seed: int) -> dict[str, Any]:
    """Return what a model gets beside its environments and the settings of its buffer."""
    return dict(
        learning_rate=rate,
        learning_starts=LENGTH * N_ENVS,
        train_freq=1,
        gradient_steps=n_updates,
        batch_size=256,
        buffer_size=1_000_000,
        policy_kwargs=dict(net_arch=NET_ARCH),
        seed=first_seed_of(seed),  # EnvPool has it already
    )


def make_model(env: Any, arm: str, rate: float, seed: int) -> Any:
    """Make the model of a run."""
    import sb3_per.sbx

    draw, n_updates = ARMS[arm]
    replay = with_control(DRAWS[draw])
    return sb3_per.sbx.PERSAC("MlpPolicy", env, replay_buffer_kwargs=replay, **settings_of(n_updates, rate, seed))


def train(task: str, arm: str, option: str, rate: float, seed: int) -> dict[str, Any]:
    """Train once until the larger of both budgets, or play with random actions. Return mean returns by common steps."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax

    returns = returns_of_run(task, arm, rate, seed)
    # A process makes many runs, and what one leaves takes hundreds of megabytes.
    jax.clear_caches()
    gc.collect()
    return columns_of(returns)


def returns_of_run(task: str, arm: str, rate: float, seed: int) -> list[float]:
    """Make a run. Return the returns of its training episodes in the order of their ends, without the random ones."""
    th.set_num_threads(1)
    env = make_env(task, seed)
    n_steps = max(steps_of(task, arm, price) for price in PRICES)
    ends: list[tuple[int, float]] = []

    def note(step: int, infos: list[dict[str, Any]]) -> None:
        ends.extend((step, info["episode"]["r"]) for info in infos if "episode" in info)

    if arm == RANDOM:
        policy = random_policy(env, seed)
        env.reset()
        for step in range(1, LENGTH + n_steps + 1):
            note(step, env.step(policy.predict()[0])[3])
    else:
        model = make_model(env, arm, rate, seed)
        model.set_logger(Logger(None, []))

        def callback(variables: dict[str, Any], _: Any) -> bool:
            note(model.num_timesteps // N_ENVS, variables["infos"])
            return True

        model.learn((LENGTH + n_steps) * N_ENVS, callback=callback, log_interval=1_000_000)
    env.close()
    return [value for step, value in ends if step > LENGTH]


def score_at(price: str, row: Row) -> float:
    """Return the mean over the training episodes up to a budget."""
    n = steps_of(row["task"], row["arm"], price) // BIN
    return float(np.mean(list(evaluations_of(row).values())[:n]))


def end_at(price: str, row: Row) -> float:
    """Return the mean over the last quarter of the way to a budget."""
    n = steps_of(row["task"], row["arm"], price) // BIN
    return float(np.mean(list(evaluations_of(row).values())[n - max(n // 4, 1) : n]))


def score(row: Row) -> float:
    """Choose rates by both prices alike, so that both are read from the same runs."""
    return float(np.mean([score_at(price, row) for price in PRICES]))


def better_numbers(campaign: Campaign, rows: list[Row], task: str, price: str) -> dict[str, str]:
    """Choose for each draw the arm with its better number of updates, by the choosing seeds at the chosen rates."""
    rates = campaigns.grid(campaign, task, rows)
    chosen = campaigns.choices(campaign, task, rates, rows) or {}
    means: dict[str, list[float]] = {arm: [] for arm in campaign.arms}
    for (_, arm, option, rate, _), row in campaigns.done(rows, campaigns.choosing_jobs(campaign, task, rates)):
        if chosen.get(arm) == (option, rate):
            means[arm].append(score_at(price, row))
    return {
        draw: max((arm_of(draw, n) for n in numbers), key=lambda arm: np.mean(means[arm]))
        for draw, numbers in N_UPDATES.items()
    }


def page(campaign: Campaign, rows: list[Row]) -> list[str]:
    """Write the tables of both prices: all arms, then the tests of each draw at its better number of updates."""
    from . import report, tables  # they need packages that runs do not

    lines: list[str] = []
    for price in PRICES:
        at = replace(
            campaign,
            endpoint=f"Mean return of the training episodes; a step costs: {price}.",
            score=lambda row, price=price: score_at(price, row),
            learned=lambda row, price=price: end_at(price, row),
            is_relative=False,
        )
        lines += [f"## A step costs: {price}", "", *report.score_table(at, rows)]
        learned = [task for task in report.learned_tasks(at, rows) if task != DENSE]
        best = {task: better_numbers(campaign, rows, task, price) for task in campaign.tasks}
        cells = [[draw, *(best[task][draw].removeprefix(f"{draw}, ") for task in campaign.tasks)] for draw in N_UPDATES]
        lines += ["Better number of updates, chosen on other seeds:", "", *tables.table(["draw", *campaign.tasks], cells)]
        if left_out := [task for task in campaign.tasks if task not in (*learned, DENSE)]:
            lines += [
                f"No arm has twice the return of a random policy at the end, so no test counts: {', '.join(left_out)}.",
                "",
            ]
        for tasks, sign in ((tuple(learned), "sparse tasks"), ((DENSE,), DENSE)):
            if not tasks:
                continue
            for title, of in {f"Primary endpoint, {sign}": score_at, f"Secondary, last quarter, {sign}": end_at}.items():
                values = report.values_of(at, rows, lambda row, of=of, price=price: of(price, row))
                scores = {
                    draw: np.stack([relative(campaign, values, best, t, draw) for t in tasks], axis=1) for draw in N_UPDATES
                }
                view = replace(at, tasks=tasks, arms=dict.fromkeys(N_UPDATES, ("",)), digits=(2, 3))
                lines += report.tests(view, title, campaign.primary, scores)
                lines += report.tests(view, f"{title}, others", campaign.secondary, scores)
                if len(tasks) > 1:
                    each = tuple(contrast._replace(over="each") for contrast in campaign.primary)
                    lines += report.tests(view, title, each, scores)
    return lines


def relative(
    campaign: Campaign, values: dict[str, np.ndarray], best: dict[str, dict[str, str]], task: str, draw: str
) -> np.ndarray:
    """Return the scores of a draw at its better number, in units of the best uniform arm, shape (seeds,)."""
    column = campaign.tasks.index(task)
    unit = max(values[best[task]["uniform"]][:, column].mean(), 1e-9)
    return np.asarray(values[best[task][draw]][:, column] / unit)


CAMPAIGN = Campaign(
    name="wall-clock",
    endpoint="Mean return of the training episodes up to the same time.",
    tasks=tuple(OWN),
    arms=dict.fromkeys(ARMS, ("",)),
    rates=(3e-4, 1e-3, 3e-3),
    choosing=range(600, 602),
    reporting=range(700, 710),
    settings=dict(
        arms=DRAWS,
        numbers=N_UPDATES,
        steps=STEPS,
        bin=BIN,
        own=OWN,
        training=TRAINING,
        slow=SLOW,
        networks=NET_ARCH,
    ),
    train=train,
    score=score,
    page=page,
    primary=(Contrast("no weights", "uniform"),),
    secondary=(
        Contrast("no weights", "shuffled, no weights"),
        Contrast("shuffled, no weights", "uniform"),
        Contrast("defaults", "uniform"),
    ),
    growth=0,
    digits=(1, 1),
    seconds={task: 115.0 + 12.0 * own for task, own in OWN.items()},
    others=tuple((task, RANDOM, "", 1.0, 0) for task in OWN),
)


if __name__ == "__main__":
    campaigns.main(CAMPAIGN, __doc__)
