"""A reference for windows of sequences: plain Python that remembers every step."""

import copy
from typing import Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces

from sb3_per import (
    PrioritizedSequenceReplayBuffer,
    SequenceReplayBufferSamples,
)
from tests.helpers.drawable import first_whole_window

SHAPES = ((1, 2), (2, 3))


SPACES = (spaces.Box(0, 1e6, (2,), np.float32), spaces.Box(-1, 1, (1,), np.float32))


def make_sequences(n_rows: int = 30, n_envs: int = 2, **kwargs: Any) -> PrioritizedSequenceReplayBuffer:
    """Make a buffer with ``n_rows`` rows, observations of two numbers, and recurrent states of SHAPES."""
    kwargs = {"sequence_length": 4, "burn_in": 3, "state_shapes": SHAPES, **kwargs}
    return PrioritizedSequenceReplayBuffer(n_rows * n_envs, *SPACES, device="cpu", n_envs=n_envs, **kwargs)


class Step(NamedTuple):
    """One step; ``number`` is its reward and identifies it, and its observations are numbers too."""

    number: float
    obs: float
    next_obs: float
    t: int
    state: float


class Reference:
    """
    Plays random episodes into buffers, and knows what every window must contain.

    :param buffers: sequence buffers with the same spaces and number of environments
    :param seed: seed of the episodes
    :param p_end: probability that an episode ends at a step
    :param gamma: discount factor that the buffers must have
    """

    def __init__(self, *buffers: Any, seed: int = 0, p_end: float = 0.15, gamma: float = 0.99):
        self.buffers, self.n_envs, self.gamma = buffers, buffers[0].n_envs, gamma
        self.rng, self.p_end = np.random.default_rng(seed), p_end
        self.number = 0.0
        # `steps` holds the steps of each environment since the last reset. `ends` maps the number of the last step of an
        # episode to whether the step is a termination.
        self.steps: list[list[Step]] = [[] for _ in range(self.n_envs)]
        self.ends: dict[float, bool] = {}

    def play(self, n_steps: int = 1, p_told: float = 0.0, plain: bool = False) -> None:
        """
        Add random steps to all buffers.

        :param n_steps: number of steps of each environment
        :param p_told: probability that `episode_starts` starts a new episode although the last one has no end
        :param plain: whether to pass SB3's arguments alone, without episode starts and states
        """
        for _ in range(n_steps):
            told = self.rng.random(self.n_envs) < p_told
            done = self.rng.random(self.n_envs) < self.p_end
            truncated = done & (self.rng.random(self.n_envs) < 0.5)
            new = []
            for e in range(self.n_envs):
                last = self.steps[e][-1] if self.steps[e] else None
                is_start = last is None or last.number in self.ends or bool(told[e])
                if last is not None and is_start:
                    self.ends.setdefault(last.number, False)
                self.number += 1
                obs = self.number + 0.25 if is_start or last is None else last.next_obs
                state = 0.0 if is_start or plain else self.number + 0.5
                t = 0 if is_start or last is None else last.t + 1
                new.append(Step(self.number, obs, self.number + 0.75, t, state))
                if done[e]:
                    self.ends[self.number] = not truncated[e]
                self.steps[e].append(new[-1])
            obs, next_obs, reward = (
                np.array([getattr(s, name) for s in new], np.float32) for name in ("obs", "next_obs", "number")
            )
            arguments = (
                np.stack((obs, -obs), axis=1),
                np.stack((next_obs, -next_obs), axis=1),
                reward[:, None] / 1e4,
                reward,
                done,
                [{"TimeLimit.truncated": bool(t)} for t in truncated],
            )
            for buffer in self.buffers:
                if plain:
                    buffer.add(*copy.deepcopy(arguments))
                    continue
                states = states_of(np.array([s.state if s.t > 0 else 77.0 for s in new]))
                buffer.add(*copy.deepcopy(arguments), episode_starts=told, states=states)

    def end_episodes(self) -> None:
        for buffer in self.buffers:
            buffer.end_episodes()
        for steps in self.steps:
            if steps:
                self.ends.setdefault(steps[-1].number, False)

    def reset(self) -> None:
        for buffer in self.buffers:
            buffer.reset()
        self.steps = [[] for _ in range(self.n_envs)]

    def window(self, e: int, i: int, n_steps: int) -> list[Step]:
        """Return up to `n_steps` steps from the i-th one on, all of the same episode."""
        found: list[Step] = []
        for step in self.steps[e][i : i + n_steps]:
            found.append(step)
            if step.number in self.ends:
                break
        return found

    def drawable(self, buffer: PrioritizedSequenceReplayBuffer) -> set[float]:
        """Return the numbers of the steps whose windows can be drawn."""
        found = set()
        n_recorded = buffer.sequence_length + buffer.n_steps - 1
        period = buffer.sequence_period or buffer.sequence_length
        for e, steps in enumerate(self.steps):
            retired = first_whole_window(buffer.burn_in, period)
            oldest = len(steps) - buffer.buffer_size + retired if buffer.full else 0
            for i in range(oldest, len(steps)):
                if steps[i].t % period == 0:
                    window = self.window(e, i, n_recorded)
                    if len(window) == n_recorded or window[-1].number in self.ends:
                        found.add(steps[i].number)
        return found

    def check(self, buffer: PrioritizedSequenceReplayBuffer, is_whole: bool = True) -> list[float]:
        """
        Check that exactly the right windows can be drawn, and that each has the right contents.

        :param buffer: a buffer with the steps of this reference
        :param is_whole: whether the buffer must hold every window that fits
        :return: numbers of all learned steps of all windows
        """
        slots = np.flatnonzero(buffer.masses)
        expected = self.drawable(buffer)
        drawn = set(buffer.rewards.ravel()[slots].tolist())
        assert drawn == expected if is_whole else drawn <= expected
        if not len(slots):
            return []
        batch = buffer.read_drawn(slots)
        np.testing.assert_array_equal(batch.indices, buffer.transition_ids.ravel()[slots])
        places = {step.number: (e, i) for e, steps in enumerate(self.steps) for i, step in enumerate(steps)}
        learned = []
        for b, slot in enumerate(slots):
            self.check_window(buffer, batch, b, *places[float(buffer.rewards.ravel()[slot])])
            learned += (batch.actions[:, b, 0][batch.mask[:, b]] * 1e4).round().tolist()
        return learned

    def check_window(
        self, buffer: PrioritizedSequenceReplayBuffer, batch: SequenceReplayBufferSamples, b: int, e: int, i: int
    ) -> None:
        length, n, gamma = buffer.sequence_length, buffer.n_steps, self.gamma
        window = self.window(e, i, length + n - 1)
        observed = [window[0].obs, *(step.next_obs for step in window)]
        assert_padded(batch.observations[:, b, 0], observed)
        assert_padded(batch.observations[:, b, 1], [-obs for obs in observed])

        n_before = min(self.steps[e][i].t, buffer.burn_in)
        before = self.steps[e][i - n_before : i]
        assert batch.prefix_lengths[b] == n_before
        assert batch.prefix.shape[0] == buffer.burn_in
        assert_padded(batch.prefix[:, b, 0], [step.obs for step in before])
        for state, known in zip(batch.states, states_of(np.array([(before or window)[0].state])), strict=True):
            assert np.array_equal(state[:, b], known[:, 0] if buffer.store_state else 0.0 * known[:, 0]), (state, known)

        learned = window[:length]
        assert batch.mask[:, b].tolist() == [True] * len(learned) + [False] * (length - len(learned))
        assert_padded(batch.actions[:, b, 0], [step.number / 1e4 for step in learned], 1e-6)
        rewards, discounts, dones, next_steps = [], [], [], []
        for k in range(len(learned)):
            followed = window[k : k + n]
            rewards.append(sum(gamma**j * step.number for j, step in enumerate(followed)))
            discounts.append(gamma ** len(followed))
            dones.append(float(self.ends.get(followed[-1].number, False)))
            next_steps.append(k + len(followed))
            assert batch.observations[next_steps[-1], b, 0] == followed[-1].next_obs
        assert_padded(batch.rewards[:, b], rewards, 1e-5)
        assert_padded(batch.discounts[:, b], discounts, 1e-6)
        assert_padded(batch.dones[:, b], dones)
        assert_padded(batch.next_steps[:, b], next_steps)


def states_of(numbers: np.ndarray) -> list[np.ndarray]:
    """Make states of shape (n_layers, n, hidden) from these numbers; every unit differs by a small offset."""
    found = []
    for n_layers, hidden in SHAPES:
        units = np.arange(n_layers * hidden).reshape(n_layers, 1, hidden) * 0.001
        found.append(((numbers[:, None] + units) * (numbers != 0)[:, None]).astype(np.float32))
    return found


def assert_padded(actual: th.Tensor, expected: list[float], rtol: float = 0.0) -> None:
    """Check that a tensor holds these numbers, followed by zeros."""
    padded = expected + [0.0] * (len(actual) - len(expected))
    assert all(abs(a - b) <= rtol * abs(b) for a, b in zip(actual.tolist(), padded, strict=True)), (actual, expected)


def played(**kwargs: Any) -> PrioritizedSequenceReplayBuffer:
    """Make a buffer of random episodes, with windows of 6 steps."""
    buffer = make_sequences(60, 2, **{"sequence_length": 6, "epsilon": 1e-3, "alpha": 0.7, **kwargs})
    Reference(buffer, p_end=0.2).play(50)
    return buffer
