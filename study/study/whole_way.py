"""
What does a user gain in all? Seconds from the start of a script until reacher-hard has a mean return of 200, in three ways:
stock SAC, and PERSAC without weights, both of PyTorch on 32 environments of dm_control in processes; and the compiled PERSAC
without weights on EnvPool. Here time is read, so the runs need two quiet cores, one run at a time.

    python -m study.whole_way    # runs alone

What was declared before the first run: declared.md.
"""

import functools
import multiprocessing
import os
import time
from collections import deque
from typing import Any

import numpy as np

from . import campaign as campaigns
from .campaign import Campaign, Contrast
from .control import ARMS as DRAWS
from .control import ControlSuiteEnv, first_seed_of
from .wall_clock import LENGTH, N_ENVS, settings_of

STOCK, TORCH, COMPILED = "SAC", "PERSAC", "PERSAC, compiled, EnvPool"
N_CORES = 2
WINDOW, LEVEL = 100, 200.0  # episodes whose mean return reaches the level
CAP = 3_600.0  # seconds after which a run is stopped


def make_env(arm: str, seed: int) -> Any:
    """Make the environments of a run. Both kinds have no repeats of actions and episodes of 1,000 steps."""
    first = first_seed_of(seed)
    if arm == COMPILED:
        import envpool

        from sb3_per.integrations import from_vector_env

        pool = envpool.make("ReacherHard-v1", env_type="gymnasium", num_envs=N_ENVS, num_threads=N_CORES, seed=first)
        return from_vector_env(pool, flatten=True)
    from stable_baselines3.common.vec_env import SubprocVecEnv, VecMonitor

    makers = [functools.partial(ControlSuiteEnv, "reacher-hard", first + i, repeat=1) for i in range(N_ENVS)]
    return VecMonitor(SubprocVecEnv(makers, start_method="forkserver"))


def algorithm_of(arm: str) -> Any:
    """Select the class of an arm, and the settings of its buffer."""
    if arm == STOCK:
        from stable_baselines3 import SAC

        return SAC
    if arm == TORCH:
        from sb3_per import PERSAC

        return functools.partial(PERSAC, replay_buffer_kwargs=DRAWS["no weights"])
    from sb3_per.sbx import PERSAC as Compiled

    return functools.partial(Compiled, replay_buffer_kwargs=DRAWS["no weights"])


def learn(arm: str, n_updates: int, rate: float, seed: int, start: float, found: Any) -> None:
    """Train until the level or the cap is reached. Put the columns of the row into a queue."""
    import torch as th

    th.set_num_threads(N_CORES)
    env = make_env(arm, seed)
    model = algorithm_of(arm)(
        "MlpPolicy",
        env,
        **settings_of(n_updates, rate, seed),
        device="cpu",
    )
    returns: deque[float] = deque(maxlen=WINDOW)

    def has_reached() -> bool:
        return len(returns) == WINDOW and float(np.mean(returns)) >= LEVEL

    def goes_on(variables: dict[str, Any], _: Any) -> bool:
        returns.extend(info["episode"]["r"] for info in variables["infos"] if "episode" in info)
        return not has_reached() and time.time() - start < CAP

    model.learn(10**9, callback=goes_on, log_interval=1_000_000)
    until = min(time.time() - start, CAP)
    counts = {"steps": model.num_timesteps, "updates": model._n_updates, "solved": int(has_reached())}
    found.put({"time": round(until, 1), **counts})
    env.close()


def train(task: str, arm: str, option: str, rate: float, seed: int) -> dict[str, Any]:
    """Make a run in a fresh process, whose start and imports count. Return its seconds, and whether it ``solved`` the task."""
    os.environ.update(JAX_PLATFORMS="cpu", XLA_FLAGS="", OMP_NUM_THREADS=str(N_CORES))  # both cores are its own
    context = multiprocessing.get_context("spawn")
    found = context.Queue()
    process = context.Process(target=learn, args=(arm, int(option), rate, seed, time.time(), found))
    process.start()
    while process.is_alive() and found.empty():
        process.join(0.1)
    if found.empty() and process.exitcode:
        raise RuntimeError(f"the run of {arm}, seed {seed}, ended with {process.exitcode}")
    columns: dict[str, Any] = found.get()
    process.join()
    return columns


CAMPAIGN = Campaign(
    name="whole-way",
    endpoint=f"Seconds until the last {WINDOW} episodes have a mean return of {LEVEL:g}.",
    tasks=("reacher-hard",),
    arms={STOCK: ("4", "16"), TORCH: ("4", "16"), COMPILED: ("1", "4")},  # options: updates a common step
    rates=(1e-3,),
    choosing=range(900, 901),
    reporting=range(910, 915),
    settings=dict(draw=DRAWS["no weights"], n_envs=N_ENVS, length=LENGTH, cores=N_CORES, until=[WINDOW, LEVEL, CAP]),
    train=train,
    score=lambda row: -float(np.log(float(row["time"]))),
    primary=(Contrast(TORCH, STOCK), Contrast(COMPILED, TORCH), Contrast(COMPILED, STOCK)),
    growth=0,
    is_log=True,
    digits=(0, 2),
    most_workers=1,
    seconds={"reacher-hard": 1_200.0},
)


if __name__ == "__main__":
    campaigns.main(CAMPAIGN, __doc__)
