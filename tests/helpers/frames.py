"""Streams of stacked frames, and buffers with and without `frames`."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from sb3_per import (
    PrioritizedReplayBuffer,
)

ACTIONS = spaces.Discrete(3)


# Shape of a frame, and the axis along which frames are stacked: the first one, the last one, or a new one.
FORMS: dict[str, tuple[tuple[int, ...], str]] = {
    "channels first": ((1, 3, 5), "first"),
    "three channels first": ((3, 5, 5), "first"),
    "channels last": ((6, 5, 1), "last"),
    "vector": ((3,), "last"),
    "matrix": ((4, 2), "last"),
    "new axis": ((2, 3), "new"),
}


def stacked(frames: list[np.ndarray], how: str) -> np.ndarray:
    """Stack several frames into one observation."""
    if how == "new":
        return np.stack(frames)
    return np.concatenate(frames, axis=0 if how == "first" else -1)


def shape_of(form: str, k: int) -> tuple[int, ...]:
    frame, how = FORMS[form]
    return stacked([np.zeros(frame)] * k, how).shape


class Stream:
    """
    Makes stacks of frames of several environments, with all irregularities: episodes that are shorter than a stack, any
    padding, restarts without a done, a flipped bit in a terminal observation, and data that are no stacks at all.
    """

    def __init__(self, form: str, k: int, dtype: Any, n_envs: int, seed: int, junk: bool = True):
        self.frame, self.how = FORMS[form]
        self.k, self.dtype, self.n_envs, self.junk = k, np.dtype(dtype), n_envs, junk
        self.rng = np.random.default_rng(seed)
        self.stacks = [self.reset() for _ in range(n_envs)]

    def new_frame(self) -> np.ndarray:
        """Make a frame of any bytes; floats include NaN with payloads, infinities and -0.0."""
        n_bytes = int(np.prod(self.frame)) * self.dtype.itemsize
        if self.rng.random() < 0.1:
            return np.zeros(self.frame, self.dtype)
        if self.dtype == np.bool_:
            return self.rng.random(self.frame) < 0.5
        if self.rng.random() < 0.1 and self.dtype.kind == "f":
            return np.full(self.frame, -0.0, self.dtype)
        return np.frombuffer(self.rng.bytes(n_bytes), self.dtype).reshape(self.frame)

    def reset(self) -> list[np.ndarray]:
        first = self.new_frame()
        kind = self.rng.integers(3)
        padding = [np.zeros_like(first), first, self.new_frame()][kind]
        return [padding] * (self.k - 1) + [first]

    def step(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        obs = np.stack([stacked(frames, self.how) for frames in self.stacks])
        nexts, dones, infos = [], [], []
        for e in range(self.n_envs):
            following = [*self.stacks[e][1:], self.new_frame()]
            kind = self.rng.random()
            done = kind < 0.15
            following_obs = stacked(following, self.how)
            if self.junk and done and self.rng.random() < 0.3:  # flip one bit of the terminal observation
                following_obs = following_obs.copy()
                following_obs.reshape(-1).view(np.uint8)[self.rng.integers(following_obs.nbytes)] ^= 1
            elif self.junk and 0.15 <= kind < 0.2:
                following_obs = stacked([self.new_frame() for _ in range(self.k)], self.how)
            nexts.append(following_obs)
            dones.append(done)
            infos.append({"TimeLimit.truncated": bool(done and self.rng.random() < 0.5)})
            restarts = done or (self.junk and self.rng.random() < 0.05)
            self.stacks[e] = self.reset() if restarts else following
        return obs, np.stack(nexts), np.array(dones), infos


def add(buffers: Any, stream: Stream, n_steps: int) -> None:
    for _ in range(n_steps):
        obs, next_obs, dones, infos = stream.step()
        action, reward = stream.rng.integers(0, 3, (stream.n_envs, 1)), stream.rng.normal(size=stream.n_envs)
        for buffer in buffers:
            buffer.add(obs.copy(), next_obs.copy(), action, reward, dones, infos)


def same_bytes(actual: Any, expected: Any) -> None:
    """Check that arrays, tensors or dictionaries have the same bytes, which tells NaN payloads and -0.0 apart."""
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        for key in expected:
            same_bytes(actual[key], expected[key])
        return
    actual, expected = (np.ascontiguousarray(np.asarray(each)) for each in (actual, expected))
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    assert actual.tobytes() == expected.tobytes()


def same_batches(framed: Any, plain: Any, n: int = 20, same_ids: bool = True) -> None:
    batches = []
    for buffer in (framed, plain):
        np.random.seed(n)
        batches.append(buffer.sample(n))
    for actual, expected in list(zip(*batches, strict=True))[: None if same_ids else -1]:
        if expected is not None:
            same_bytes(actual, expected)
    for buffer, batch in zip((framed, plain), batches, strict=True):
        buffer.update_priorities(batch.indices, np.random.default_rng(n).exponential(size=n))


def twins(form: str, k: int, dtype: Any, n_rows: int, n_envs: int, **kwargs: Any) -> tuple[Any, Any]:
    dtype = np.dtype(dtype)
    low, high = (0, 255) if dtype == np.uint8 else (0, 1) if dtype == np.bool_ else (-np.inf, np.inf)
    space = spaces.Box(low, high, shape_of(form, k), dtype)
    arguments = (n_rows * n_envs, space, ACTIONS, "cpu", n_envs)
    return PrioritizedReplayBuffer(*arguments, frames=k, **kwargs), PrioritizedReplayBuffer(*arguments, **kwargs)


class Frames(gym.Env):
    """Random images or vectors, in episodes of different lengths; some end by truncation."""

    def __init__(self, shape: tuple[int, ...] = (10, 10, 1), dtype: Any = np.uint8):
        self.observation_space = spaces.Box(0, 255, shape, dtype)
        self.action_space = spaces.Discrete(3)

    def _observation(self) -> np.ndarray:
        return self.np_random.integers(0, 255, self.observation_space.shape).astype(self.observation_space.dtype)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t, self.length = 0, self.np_random.integers(2, 30)
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        ends = self.t >= self.length
        return self._observation(), 1.0, bool(ends and self.length % 2), bool(ends and not self.length % 2), {}
