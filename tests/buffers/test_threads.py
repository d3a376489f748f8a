"""Threads that share a buffer lose no step, and never see a half-written one."""

import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sb3_per import PrioritizedHerReplayBuffer, PrioritizedReplayBuffer
from tests.helpers.buffers import counting_env, make_buffer

# How often each thread does its work at least.
N_TIMES = 150


def run_together(*functions: Callable[[], None]) -> None:
    """Repeat each function in its own thread until each was called `N_TIMES`, and raise the first error."""
    errors: list[BaseException] = []
    n_calls = [0] * len(functions)

    def repeat(number: int) -> None:
        try:
            while min(n_calls) < N_TIMES and not errors:
                functions[number]()
                n_calls[number] += 1
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=repeat, args=(number,)) for number in range(len(functions))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    if errors:
        raise errors[0]


class Writer:
    """Adds steps whose reward and observation are the number of the step, which reveals half-written rows."""

    def __init__(self, buffer: PrioritizedReplayBuffer, episode_length: int):
        self.buffer, self.episode_length = buffer, episode_length
        self.number = 0

    def __call__(self) -> None:
        n_envs = self.buffer.n_envs
        obs: Any = np.full((n_envs, 2), self.number, np.float32)
        if isinstance(self.buffer, PrioritizedHerReplayBuffer):
            obs = {key: obs for key in ("observation", "achieved_goal", "desired_goal")}
        done = np.full(n_envs, self.number % self.episode_length == self.episode_length - 1)
        self.buffer.add(obs, obs, np.zeros((n_envs, 1)), np.full(n_envs, self.number), done, [{}] * n_envs)
        self.number += 1


@pytest.mark.parametrize("kind", ["proportional", "her-rank"])
def test_threads_add_sample_and_update_without_torn_or_lost_steps(kind):
    n_rows, n_envs = 40, 2
    env = counting_env(n_envs, goals=kind.startswith("her"))
    scheme = "rank" if kind.endswith("rank") else "proportional"
    spaces = (env.observation_space, env.action_space)
    if kind.startswith("her"):
        buffer: Any = PrioritizedHerReplayBuffer(n_rows * n_envs, *spaces, env, "cpu", n_envs, scheme=scheme)
    else:
        buffer = PrioritizedReplayBuffer(n_rows * n_envs, *spaces, "cpu", n_envs, scheme=scheme)
    write = Writer(buffer, episode_length=7)
    for _ in range(20):
        write()

    def learn() -> None:
        batch = buffer.sample(16)
        obs = batch.observations["observation"] if isinstance(batch.observations, dict) else batch.observations
        # Reward, id and observation agree only if the whole row was written by the same step.
        np.testing.assert_array_equal(obs[:, 0], batch.indices // n_envs)
        if not isinstance(batch.observations, dict):
            np.testing.assert_array_equal(batch.rewards[:, 0], batch.indices // n_envs)
        buffer.update_priorities(batch.indices, np.random.exponential(size=16))

    def read() -> None:
        ids = buffer.transition_ids
        assert (ids % ids.size == np.arange(ids.size).reshape(ids.shape))[ids >= 0].all()
        assert (buffer.masses >= 0).all()

    run_together(write, learn, learn, read)
    assert write.number > 3 * n_rows  # several laps
    assert buffer.transition_ids.max() == write.number * n_envs - 1
    expected = buffer.ep_length > 0 if kind.startswith("her") else np.ones((n_rows, n_envs), bool)
    np.testing.assert_array_equal(buffer.masses > 0, expected)
    slots = np.flatnonzero(buffer.masses.ravel())
    assert buffer.priority_sampler.tree.total == pytest.approx(buffer.masses.sum())
    assert set(buffer.sample(2000).indices % buffer.masses.size) <= set(slots)


def test_an_error_releases_the_lock():
    buffer = make_buffer(4)
    with pytest.raises(ValueError):
        buffer.sample(3)
    with pytest.raises(IndexError):
        buffer.update_priorities([7], [1.0])
    other = threading.Thread(target=lambda: buffer.masses, daemon=True)
    other.start()
    other.join(timeout=300)  # forever, if the lock is held
    assert not other.is_alive()
