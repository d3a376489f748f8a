"""Rows that a user's method has written without calling ours: they are new, and all others keep their priorities."""

from typing import Any

import numpy as np
import pytest
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer

from sb3_per import PrioritizedDictReplayBuffer, PrioritizedHerReplayBuffer, PrioritizedReplayBuffer
from tests.helpers.buffers import ACTION_SPACES, OBSERVATION_SPACES, assert_same_batches, counting_env, fill, stock_like


class InFull:
    """Writes a step by itself, as a copy of SB3's method."""

    def add(self: Any, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        row = self.pos
        self.observations[row] = obs
        if self.optimize_memory_usage:
            self.observations[(row + 1) % self.buffer_size] = next_obs
        else:
            self.next_observations[row] = next_obs
        self.actions[row] = action.reshape(self.n_envs, self.action_dim)
        self.rewards[row] = np.clip(reward, -1, 1)
        self.dones[row] = done
        if self.handle_timeout_termination:
            self.timeouts[row] = [info.get("TimeLimit.truncated", False) for info in infos]
        self.pos = (row + 1) % self.buffer_size
        self.full = self.full or self.pos == 0


class Past:
    """Calls SB3's method past ours."""

    def add(self: Any, *args: Any) -> None:
        base = DictReplayBuffer if isinstance(self, DictReplayBuffer) else ReplayBuffer
        base.add(self, *args)


class AtOnce:
    """Writes several steps at once, and calls our `add` for single ones."""

    def extend(self: Any, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        rows = (self.pos + np.arange(len(reward))) % self.buffer_size
        self.observations[rows], self.next_observations[rows], self.actions[rows] = obs, next_obs, action
        self.rewards[rows], self.dones[rows] = reward, done
        self.full = bool(self.full or rows[-1] < self.pos or rows[-1] == self.buffer_size - 1)
        self.pos = int(rows[-1] + 1) % self.buffer_size


MEMORY: dict[str, Any] = dict(optimize_memory_usage=True, handle_timeout_termination=False)


def make(mixin: type, n_rows: int = 10, obs_space: str = "box", cls: Any = PrioritizedReplayBuffer, **kwargs: Any) -> Any:
    own: Any = type("Own", (mixin, cls), {})
    settings = {"alpha": 1.0, **kwargs}
    return own(2 * n_rows, OBSERVATION_SPACES[obs_space], ACTION_SPACES["box"], "cpu", 2, **settings)


def extend(buffer: Any, n_steps: int) -> None:
    zeros = np.zeros((n_steps, 2))
    vectors = np.zeros((n_steps, 2, 3))
    buffer.extend(vectors, vectors, vectors[..., :2], zeros, zeros, [[{}, {}]] * n_steps)


WAYS: dict[str, tuple[Any, Any]] = {
    "in full": (lambda **kwargs: make(InFull, **kwargs), lambda buffer, n: fill([buffer], n)),
    "in full, memory": (lambda **kwargs: make(InFull, **kwargs, **MEMORY), lambda buffer, n: fill([buffer], n)),
    "past ours": (lambda **kwargs: make(Past, **kwargs), lambda buffer, n: fill([buffer], n)),
    "past ours, dict": (
        lambda **kwargs: make(Past, obs_space="dict", cls=PrioritizedDictReplayBuffer, **kwargs),
        lambda buffer, n: fill([buffer], n),
    ),
    "td errors": (
        lambda **kwargs: make(InFull, initial_priority="td_error", **kwargs),
        lambda buffer, n: fill([buffer], n),
    ),
    "at once": (lambda **kwargs: make(AtOnce, **kwargs), extend),
    "at once, and one by one": (
        lambda **kwargs: make(AtOnce, **kwargs),
        lambda buffer, n: (extend(buffer, n - 1), fill([buffer], 1)),
    ),
    "3 steps": (lambda **kwargs: make(InFull, n_steps=3, **kwargs), lambda buffer, n: fill([buffer], n)),
}


@pytest.mark.parametrize("way", WAYS)
def test_rows_that_a_users_method_writes_are_new_and_others_keep_their_priorities(way):
    """Over several laps, with draws after every few rows."""
    made, write = WAYS[way]
    buffer = made()
    expected: dict[int, float] = {}
    n_written, rng = 0, np.random.default_rng(0)
    for round_ in range(14):
        n = int(rng.integers(2, 5))
        write(buffer, n)
        expected |= dict.fromkeys(range(2 * n_written, 2 * (n_written + n)), buffer.max_priority)
        n_written += n
        n_held = min(n_written, 10 - buffer.optimize_memory_usage)
        expected = {id_: mass for id_, mass in expected.items() if id_ >= 2 * (n_written - n_held)}
        ids, masses = buffer.transition_ids, buffer.masses
        found = {id_: mass for id_, mass in zip(ids.ravel().tolist(), masses.ravel().tolist(), strict=True) if mass > 0}
        assert found == pytest.approx(expected)
        drawn = buffer.sample(4).indices
        assert buffer.update_priorities(drawn, np.full(4, round_ + 0.5)) == 4
        expected |= dict.fromkeys(drawn.tolist(), round_ + 0.5 + 1e-6)


def test_uniform_draws_equal_those_of_sb3():
    """Bit for bit, beyond the end of the buffer."""
    ours = make(InFull, scheme="uniform", stratified=False, alpha=None)
    stock = stock_like(ours, type("Stock", (InFull, ReplayBuffer), {}))
    for _ in range(8):
        fill([ours, stock], 3, seed=ours.pos)
        batches = []
        for buffer in (ours, stock):
            np.random.seed(0)
            batches.append(buffer.sample(20))
        assert_same_batches(batches[0], batches[1], batches[1]._fields[:5])


def test_rows_that_nobody_has_drawn_for_a_lap_are_all_new():
    buffer = make(InFull)
    fill([buffer], 10)
    buffer.update_priorities(buffer.sample(4).indices, np.full(4, 7.0))
    fill([buffer], 9)
    assert np.count_nonzero(buffer.masses == buffer.max_priority) >= 18


def test_rows_that_are_forgotten_by_hand_make_all_others_new():
    """Also in a class with an `add` of its own."""
    for change in (dict(pos=2), dict(full=False), dict(full=False, pos=0)):
        buffer = make(InFull)
        fill([buffer], 6 if change == dict(pos=2) else 13)
        ids = buffer.sample(8).indices
        buffer.update_priorities(ids, np.full(8, 0.5))
        for name, value in change.items():
            setattr(buffer, name, value)
        assert set(buffer.masses.ravel()) <= {0.0, 1.0}
        assert buffer.update_priorities(ids, np.ones(8)) == 0


def test_a_reward_of_nan_is_named():
    buffer = make(Past)
    fill([buffer], 3)
    buffer.sample(2)
    zeros = np.zeros((2, 3))
    buffer.add(zeros, zeros, zeros[:, :2], np.array([0.0, np.nan]), np.zeros(2), [{}, {}])
    with pytest.raises(ValueError, match="must be a finite number, not nan"):
        buffer.sample(2)


@pytest.mark.parametrize("update_each", [1, 5])
def test_hindsight_follows_the_episodes_of_an_own_add(update_each):
    """Exactly what SB3 would draw has mass, and transitions of episodes that stay keep theirs."""

    class Own(PrioritizedHerReplayBuffer):
        def add(self, *args: Any) -> None:
            super(PrioritizedReplayBuffer, self).add(*args)

    env = counting_env(goals=True)
    buffer = Own(24, env.observation_space, env.action_space, env, "cpu", 2, alpha=1.0)
    own: dict[int, float] = {}
    for step in range(40):
        obs = {key: np.full((2, 2), step, np.float32) for key in env.observation_space.spaces}
        buffer.add(obs, dict(obs), np.zeros((2, 1)), np.zeros(2), np.array([step % 4 == 3, step % 6 == 5]), [{}] * 2)
        if step % update_each != 0 or not buffer.ep_length.any():
            continue
        masses, ids = buffer.masses, buffer.transition_ids
        np.testing.assert_array_equal(masses > 0, buffer.ep_length > 0)
        for id_, mass in zip(ids[masses > 0].tolist(), masses[masses > 0].tolist(), strict=True):
            assert mass == pytest.approx(own.get(id_, buffer.max_priority))
        drawn = np.unique(buffer.sample(3).indices)
        buffer.update_priorities(drawn, np.full(len(drawn), 0.25))
        own |= dict.fromkeys(drawn.tolist(), 0.25 + 1e-6)
