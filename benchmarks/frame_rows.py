"""Rows of the benchmark about frames that are stored once."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import FakeImageEnv
from stable_baselines3.common.vec_env import VecFrameStack
from timing import Row, Rows, add_again, box, compare, learn_in_turn, sample_and_update

from sb3_per import PERDQN, PrioritizedReplayBuffer

IMAGES, ACTIONS = box(4, 84, 84, dtype=np.uint8), spaces.Discrete(4)


def steps(n_envs: int) -> Iterator[tuple[Any, ...]]:
    """Make episodes of 40 steps, whose stacks begin with zeros."""
    rng = np.random.default_rng(0)
    frames = rng.integers(1, 255, (301, n_envs, 1, 84, 84)).astype(np.uint8)
    while True:
        first = int(rng.integers(301))
        for t in range(40):
            stack = [frames[(first + t + j) % 301] if t + j >= 3 else np.zeros_like(frames[0]) for j in range(5)]
            obs, next_obs = np.concatenate(stack[:4], axis=1), np.concatenate(stack[1:], axis=1)
            yield obs, next_obs, np.zeros((n_envs, 1)), np.zeros(n_envs), np.full(n_envs, t == 39), [{}] * n_envs


def _lapped(cls: Any, size: int, n_envs: int = 1, **settings: Any) -> Any:
    """Fill a buffer with a little more than a lap."""
    buffer = cls(size, IMAGES, ACTIONS, "cpu", n_envs, **settings)
    for step in itertools.islice(steps(n_envs), size // n_envs + 200):
        buffer.add(*step)
    return buffer


def _cpprb(size: int) -> Callable[[], Any]:
    """Draw and update with cpprb's frame compression. It needs the stack last, and maps its memory."""
    import cpprb

    fields: dict[str, Any] = {"obs": {"shape": (84, 84, 4), "dtype": np.uint8}, "act": {}, "rew": {}, "done": {}}
    rival = cpprb.PrioritizedReplayBuffer(size, fields, next_of="obs", stack_compress="obs")
    for obs, next_obs, action, reward, done, _ in itertools.islice(steps(1), size + 200):
        last = (np.moveaxis(each[0], 0, -1) for each in (obs, next_obs))
        rival.add(**dict(zip(("obs", "next_obs"), last, strict=True)), act=action, rew=reward, done=done)
        if done[0]:
            rival.on_episode_end()
    errors = np.random.default_rng(0).random(32)
    return lambda: rival.update_priorities(rival.sample(32)["indexes"], errors)


def frame_rows(quick: bool) -> Rows:
    """Measure stacks of four images, each frame stored once, in episodes of 40 steps."""
    size = 2_000 if quick else 50_000

    def framed(n_envs: int = 1) -> Any:
        return _lapped(PrioritizedReplayBuffer, size, n_envs, frames=4)

    def sample(rival: str, theirs: Callable[[], Any], repetitions: int = 20) -> Row:
        """Measure the time of a draw, and of an update for rivals with priorities."""
        return compare("sample(32) + update, frames", rival, sample_and_update(framed(), 32), theirs, repetitions)

    def stock() -> Row:
        other = _lapped(ReplayBuffer, size)
        return sample("ReplayBuffer", lambda: other.sample(32))

    def extra() -> Row:
        from sb3_extra_buffers.compressed import CompressedReplayBuffer

        other = _lapped(CompressedReplayBuffer, size)  # random images are its worst case
        return sample("sb3-extra-buffers, rle, without priorities", lambda: other.sample(32), 2)

    def plain() -> Row:
        return sample("PrioritizedReplayBuffer", sample_and_update(_lapped(PrioritizedReplayBuffer, size), 32))

    def add(n_envs: int) -> Row:
        recorded = list(itertools.islice(steps(n_envs), 200))
        runs = [add_again(buffer, recorded) for buffer in (framed(n_envs), _lapped(ReplayBuffer, size, n_envs))]
        return compare(f"add, frames, {n_envs} environment{'s' * (n_envs > 1)}", "ReplayBuffer", *runs, 80)

    def memory() -> Row:
        buffer = framed()
        columns = (buffer.actions, buffer.rewards, buffer.dones, buffer.timeouts, buffer.priority_sampler.tree[:])
        n_bytes = buffer.observations.store.nbytes + sum(column.nbytes for column in columns)
        return Row("memory of frames, bytes per transition, plain 56,468", "", n_bytes / size)

    def learn() -> Row:
        models, n_steps, n_parts = [], *((200, 2) if quick else (2_000, 10))
        for kwargs in (dict(frames=4), {}):
            env = VecFrameStack(make_vec_env(lambda: FakeImageEnv(4, 84, 84, 1), 1), 4)
            small: dict[str, Any] = dict(buffer_size=5_000, learning_starts=100, seed=0)
            models.append(PERDQN("CnnPolicy", env, replay_buffer_kwargs=kwargs, **small))
        return learn_in_turn("learn(), PERDQN with CnnPolicy, frames", "plain", models, n_steps, n_parts)

    yield "frames peer cpprb", lambda: sample("cpprb, next_of, stack_compress", _cpprb(size), 50)
    yield "frames peer extra", extra
    yield "frames sample", stock
    yield "frames sample plain", plain
    yield "frames add 1", lambda: add(1)
    yield "frames add 16", lambda: add(16)
    yield "frames memory", memory
    yield "frames learn", learn
