"""Facts of the machine, and checks of the installation, which ``sb3-per doctor`` prints."""

import os
import time
from collections.abc import Callable
from importlib.metadata import packages_distributions, version
from pathlib import Path

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.utils import get_system_info

import sb3_per
from sb3_per.sampling.sum_tree import spread
from sb3_per.utils.extras import EXTRAS, install


def facts() -> dict[str, str]:
    """Collect versions and facts of the machine, by name."""
    lines = {"sb3_per": f"{sb3_per.__version__}, {Path(sb3_per.__file__).parent}", **get_system_info(print_info=False)[0]}
    lines.update({package: version(package) for package in ("sb3_contrib", "numba")})
    installed = packages_distributions()  # a folder of the same name is no package
    for extra, modules in EXTRAS.items():
        missing = [module for module in modules if module not in installed]
        lines[f"extra {extra}"] = f"optional, not installed: {install(extra, *missing)}" if missing else "installed"
    folder = spread.stats.cache_path  # type: ignore[attr-defined]
    if folder is None:
        lines["cache"] = "no folder can be written to, so every process compiles the kernels. Set NUMBA_CACHE_DIR to a folder"
    else:
        n_files = len(list(Path(folder).glob("*.nbc")))
        lines["cache"] = f"{folder}, {f'{n_files} kernels' if n_files else 'empty: the first run compiles the kernels'}"
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    lines["threads"] = f"torch {th.get_num_threads()}, cores {os.cpu_count()}, OMP_NUM_THREADS {threads}"
    return lines


def check_buffer() -> str:
    """
    Compare indices, shares and weights of a buffer with the formulas.

    :return: what was checked
    :raises AssertionError: if they differ
    """
    box, errors, batch_size = spaces.Box(-1, 1, (1,)), np.arange(64.0), 100_000
    buffer = sb3_per.PrioritizedReplayBuffer(64, box, box, "cpu", alpha=0.5, beta_start=0.4, epsilon=1e-3)
    steps, zeros = errors.reshape(64, 1, 1), np.zeros((64, 1))
    buffer.extend(steps, steps, steps, zeros, zeros, [[{}]] * 64)
    buffer.update_priorities(np.arange(64), errors)
    probabilities = (errors + 1e-3) ** 0.5
    probabilities /= probabilities.sum()
    batch = buffer.sample(batch_size)
    # Stratified: no count is further than 2 from its expectation.
    distance = np.abs(np.bincount(batch.indices, minlength=64) - batch_size * probabilities).max()
    if distance > 2:
        raise AssertionError(f"A transition was drawn {distance:.1f} times more or less than its priority says")
    weights = (64 * probabilities[batch.indices]) ** -0.4
    if not np.allclose(batch.weights.numpy().ravel(), weights / weights.max(), rtol=1e-4):
        raise AssertionError("Importance-sampling weights differ from (N P(i)) ** -beta")
    if not (batch.observations.numpy()[:, 0] == batch.indices).all():
        raise AssertionError("Rows do not belong to their indices")
    return "draws and weights follow the formulas"


def check_learning(algorithm: str, env_id: str, steps: int) -> str:
    """
    Train for a few steps.

    :param algorithm: name of a class
    :param env_id: id of an environment
    :param steps: number of steps
    :return: what was done, and how long it took
    :raises AssertionError: if a parameter is not finite, or no priority was written
    """
    model = getattr(sb3_per, algorithm)("MlpPolicy", env_id, learning_starts=100, buffer_size=1_000, seed=0)
    started = time.perf_counter()
    model.learn(steps)
    seconds = time.perf_counter() - started
    if not all(bool(th.isfinite(parameter).all()) for parameter in model.policy.parameters()):
        raise AssertionError("A parameter is not finite")
    masses = model.replay_buffer.priorities
    if len(np.unique(masses[masses > 0])) < 10:
        raise AssertionError("Priorities do not follow TD errors")
    return f"{steps} steps of {env_id} on {model.device} in {seconds:.1f} s"


CHECKS: dict[str, Callable[[], str]] = {
    "buffer": check_buffer,
    "PERSAC": lambda: check_learning("PERSAC", "Pendulum-v1", 150),
    "PERDQN": lambda: check_learning("PERDQN", "CartPole-v1", 500),
}
