"""
Print versions and facts of the machine, and test the installation. Begin a bug report with its output::

    sb3-per doctor

The test takes about ten seconds, compilation included.
"""

import argparse
import os
import time
import warnings
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.utils import get_system_info

import sb3_per
from sb3_per.utils.arguments import Parser

# Packages that are printed beside those of SB3. The last ones are optional.
_PACKAGES = ("sb3_contrib", "numba", "rl_zoo3", "sbx-rl", "ray", "minari")


def facts() -> dict[str, str]:
    """Collect versions and facts of the machine, by name."""
    found = {"sb3_per": f"{sb3_per.__version__}, {Path(sb3_per.__file__).parent}", **get_system_info(print_info=False)[0]}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    found["threads"] = f"torch {th.get_num_threads()}, cores {os.cpu_count()}, OMP_NUM_THREADS {threads}"
    return found


def check_buffer() -> str:
    """
    Compare indices, shares and weights of a buffer with the formulas.

    :return: what was checked
    :raises AssertionError: if they differ
    """
    box = spaces.Box(-1, 1, (1,))
    errors = np.arange(64.0)
    batch_size = 100_000
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


def check_learning() -> str:
    """
    Train PERSAC for a few steps.

    :return: what was done, and how long it took
    :raises AssertionError: if a parameter is not finite, or no priority was written
    """
    model = sb3_per.PERSAC("MlpPolicy", "Pendulum-v1", learning_starts=100, buffer_size=1_000, seed=0)
    started = time.perf_counter()
    model.learn(150)
    seconds = time.perf_counter() - started
    if not all(bool(th.isfinite(parameter).all()) for parameter in model.policy.parameters()):
        raise AssertionError("A parameter is not finite")
    masses = model.replay_buffer.masses
    if len(np.unique(masses[masses > 0])) < 10:
        raise AssertionError("Priorities do not follow TD errors")
    return f"150 steps of Pendulum-v1 on {model.device} in {seconds:.1f} s"


def main(arguments: Sequence[str] | None = None, prog: str = "sb3-per doctor") -> int:
    """
    Print the facts and run the checks.

    :param arguments: arguments of the command line; ``None``: those of the process
    :param prog: program name shown in usage and errors
    :return: exit status: 0 if all checks pass, else 1
    """
    options = parser_of(prog).parse_args(arguments)
    for name, fact in facts().items():
        print(f"{name:18} {fact}")
    if options.no_test:
        return 0
    th.set_num_threads(1)  # on busy cores, threads that wait for each other can take a hundred times as long
    has_failed = False
    for name, check in (("buffer", check_buffer), ("PERSAC", check_learning)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", RuntimeWarning)
                outcome = check()
        except Exception as error:  # any failure belongs in the report
            has_failed = True
            outcome = f"FAILED: {type(error).__name__}: {error}"
        print(f"{'check ' + name:18} {outcome}", flush=True)
    print("A check failed. Report it with all of these lines" if has_failed else "All checks passed")
    return 1 if has_failed else 0


def parser_of(prog: str) -> argparse.ArgumentParser:
    """
    Make the parser of the command.

    :param prog: program name shown in usage and errors
    :return: the parser
    """
    parser = Parser(prog, description="Print versions, threads and GPU, and test the installation")
    parser.add_argument("--no-test", action="store_true", help="print the facts only")
    return parser
