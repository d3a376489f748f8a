"""Ids, ends of windows, and what comes in past `add`: held against a reference that remembers every step."""

import copy
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv

from sb3_per import PERDQN, PERSAC, PrioritizedHerReplayBuffer, PrioritizedReplayBuffer
from tests.utils import add_one, assert_same_state, fill, interrupt, make_buffer


class CountingEnv(gym.Env):
    """Observations are (episode, step): whether two of them are of the same episode can be read off. Nothing ever ends."""

    def __init__(self, goals: bool = False, discrete: bool = True):
        self.goals = goals
        box = spaces.Box(0, 1e6, (2,), np.float32)
        parts = {key: box for key in ("observation", "achieved_goal", "desired_goal")}
        self.observation_space = spaces.Dict(parts) if goals else box
        self.action_space = spaces.Discrete(2) if discrete else spaces.Box(-1, 1, (1,), np.float32)
        self.episode = self.t = 0

    def observation(self) -> Any:
        obs = np.array([self.episode, self.t], np.float32)
        return {key: obs.copy() for key in self.observation_space.spaces} if self.goals else obs

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episode, self.t = self.episode + 1, 0
        return self.observation(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return self.observation(), 1.0, False, False, {}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, infos: Any) -> np.ndarray:
        # Both are (episode, step): a goal of another episode would be paid for.
        return (achieved_goal[:, 0] != desired_goal[:, 0]).astype(np.float32)


def counting_env(n_envs: int = 2, **kwargs: Any) -> VecEnv:
    return make_vec_env(lambda: CountingEnv(**kwargs), n_envs=n_envs)


def every_window(buffer: PrioritizedReplayBuffer) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Episodes in which all the windows begin and end, and their lengths."""
    leaves = np.flatnonzero(buffer.priorities.ravel())
    batch = buffer._gather(leaves, np.ones((len(leaves), 1), np.float32), None)
    obs, next_obs = batch.observations, batch.next_observations
    if isinstance(obs, dict):
        obs, next_obs = obs["observation"], next_obs["observation"]
    lengths = np.log(batch.discounts.numpy()) / np.log(buffer.gamma)
    return obs[:, 0].numpy(), next_obs[:, 0].numpy(), lengths.ravel().round().astype(int)


def learn_again(model: Any) -> Any:
    return model.learn(14)


def set_env(model: Any) -> Any:
    model.set_env(counting_env(goals=isinstance(model.replay_buffer, PrioritizedHerReplayBuffer)))
    for env in model.env.envs:
        env.unwrapped.episode = 100
    return model.learn(14, reset_num_timesteps=False)


def continue_from_a_file(model: Any) -> Any:
    """The model goes on where it is, but its buffer is that of another run."""
    other = PERDQN("MlpPolicy", counting_env(), **SETTINGS).learn(18)
    for env in other.env.envs:
        env.unwrapped.episode += 50
    other.learn(18, reset_num_timesteps=True)
    other.save_replay_buffer("buffer.pkl")
    model.load_replay_buffer("buffer.pkl")
    return model.learn(14, reset_num_timesteps=False)


SETTINGS: dict[str, Any] = dict(
    n_steps=5, gamma=0.9, buffer_size=60, learning_starts=5, batch_size=8, policy_kwargs=dict(net_arch=[4]), seed=0
)


@pytest.mark.parametrize("proceed", [learn_again, set_env, continue_from_a_file])
def test_windows_never_cross_into_another_run(proceed, tmp_path, monkeypatch):
    """Resets without a done: a second `learn()`, another environment, another buffer."""
    monkeypatch.chdir(tmp_path)
    model = PERDQN("MlpPolicy", counting_env(), **SETTINGS).learn(20)
    for _ in range(3):
        proceed(model)
        begins, ends, lengths = every_window(model.replay_buffer)
        np.testing.assert_array_equal(begins, ends)
        assert lengths.max() == 5 and (lengths < 5).any()
    # The value behind the seam still counts: nothing was terminated.
    assert (model.replay_buffer.dones * (1 - model.replay_buffer.timeouts) == 0).all()


def test_windows_go_on_where_the_run_goes_on():
    model = PERDQN("MlpPolicy", counting_env(), **SETTINGS).learn(20)
    for _ in range(3):
        model.learn(10, reset_num_timesteps=False)
    begins, ends, lengths = every_window(model.replay_buffer)
    np.testing.assert_array_equal(begins, ends)
    newest_first = np.sort(lengths)
    assert (newest_first[8:] == 5).all()  # of both environments, only the last four windows are short
    assert (model.replay_buffer.dones == 0).all()


@pytest.mark.parametrize("n_steps", [1, 3])
def test_goals_never_come_from_another_run(n_steps):
    """HER's episode ends where the environments were reset; goals and windows stay inside."""
    kwargs = {**SETTINGS, "n_steps": n_steps, "replay_buffer_class": PrioritizedHerReplayBuffer, "learning_starts": 1000}
    model = PERDQN("MultiInputPolicy", counting_env(goals=True), **kwargs)
    for proceed in (learn_again, learn_again, set_env, learn_again):
        proceed(model)
        buffer = model.replay_buffer
        # The last episode is not over yet, so it is the only one that cannot be drawn.
        held = buffer.observations["observation"][: buffer.pos, :, 0]
        np.testing.assert_array_equal(buffer.priorities[: buffer.pos] > 0, held < held[-1])
        if not buffer.priorities.any():
            continue
        batch = buffer.sample(64)
        assert (batch.rewards[64 - int(0.8 * 64) :] == 0).all()  # all goals are of the same episode
        if n_steps > 1:
            begins, ends, _ = every_window(buffer)
            np.testing.assert_array_equal(begins, ends)


def test_end_of_episodes_in_the_arrays():
    """Truncations, where no episode had ended anyway; with optimize_memory_usage terminations, as SB3 does it."""
    buffer = make_buffer(6, n_envs=3)
    buffer.end_episodes()  # nothing to end
    assert (buffer.dones == 0).all()
    for _ in range(8):
        add_one(buffer)
    buffer.dones[1] = [0, 1, 1]
    buffer.timeouts[1] = [0, 0, 1]
    rest = buffer.dones[[0, 2, 3, 4, 5]].copy()
    buffer.end_episodes()
    np.testing.assert_array_equal(buffer.dones[1], [1, 1, 1])
    np.testing.assert_array_equal(buffer.timeouts[1], [1, 0, 1])
    np.testing.assert_array_equal(buffer.dones[[0, 2, 3, 4, 5]], rest)
    buffer = make_buffer(6, optimize_memory_usage=True, handle_timeout_termination=False)
    add_one(buffer)
    buffer.end_episodes()
    assert (buffer.dones[0], buffer.timeouts[0]) == (1, 0)


@pytest.mark.parametrize("n_envs", [1, 2])
def test_without_handling_of_timeouts_an_end_is_a_termination(n_envs):
    """SB3 never writes `timeouts` then: what ends in the same row a lap later is a termination, and so is this one."""
    buffer = make_buffer(4, n_envs, handle_timeout_termination=False)
    add_one(buffer)
    buffer.end_episodes()
    assert (buffer.dones[0] == 1).all() and (buffer.timeouts == 0).all()
    for _ in range(4):
        add_one(buffer)
    assert (buffer.timeouts == 0).all()


# ---- what comes in past `add`


@settings(max_examples=100)
@given(data=st.data())
def test_ids_whatever_writes_the_rows(data):
    """Through `add`, by code that knows SB3's class only, by hand, or an `add` that was interrupted before it had counted."""
    n_rows, n_envs = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 3))
    buffer = make_buffer(n_rows, n_envs, scheme=data.draw(st.sampled_from(["proportional", "rank"])))
    n_known = 0  # steps since the buffer was last looked at
    seen: dict[int, float] = {}  # reward by id: what an id once named, it names for ever
    number = 0.0
    for operation in data.draw(
        st.lists(st.sampled_from(["add", "foreign", "interrupted", "by hand", "reset", "look"]), max_size=40)
    ):
        if operation in ("add", "foreign", "interrupted", "by hand"):
            if operation != "add" and n_known == n_rows - 1:
                operation = "add"  # a lap that is written past `add` looks like none
            number += 1
            reward = np.full(n_envs, number)
            step = (
                np.zeros((n_envs, 3)),
                np.zeros((n_envs, 3)),
                np.zeros((n_envs, 2)),
                reward,
                np.zeros(n_envs),
                [{}] * n_envs,
            )
            if operation == "add":
                buffer.add(*step)
            elif operation == "by hand":
                buffer.rewards[buffer.pos] = reward
                buffer.full = bool(buffer.full or buffer.pos == n_rows - 1)
                buffer.pos = (buffer.pos + 1) % n_rows
            else:
                ReplayBuffer.add(buffer, *step)
            n_known += operation != "add"
        elif operation == "reset":
            buffer.pos, buffer.full = 0, False
            buffer.transition_ids  # noqa: B018
            n_known = 0
        elif buffer.size():
            n_known = 0
            batch = buffer.sample(16)
            assert buffer.update_priorities(batch.indices, np.ones(16)) == 16
            ids, held = buffer.transition_ids, buffer.priorities > 0
            assert held.sum() == buffer.size() * n_envs
            np.testing.assert_array_equal(ids[held] % held.size, np.flatnonzero(held))
            newest_first = np.sort(ids[held])[::-1]
            np.testing.assert_array_equal(newest_first, newest_first[0] - np.arange(held.sum()))
            for id_, stored in zip(ids[held].tolist(), buffer.rewards[held].tolist(), strict=True):
                assert seen.setdefault(id_, stored) == stored


@pytest.mark.parametrize("n_before", [0, 3, 4, 7])
def test_an_interrupted_add_is_there_or_not(n_before):
    """Ctrl-C at any line of `add`, also in the last row: the ids, and what can be drawn, fit what is held."""
    filled = make_buffer(4, n_envs=2)
    fill([filled], n_before)
    stored = set()
    for n_lines in range(1, 200):
        buffer = pickle.loads(pickle.dumps(filled))
        if not interrupt(lambda buffer=buffer: add_one(buffer), n_lines):
            break
        add_one(buffer)
        stored.add(buffer.transition_ids.max() - (n_before + 1) * 2 + 1)
        assert (buffer.priorities > 0).sum() == buffer.size() * 2
    assert stored == {0, 2}


def test_an_add_that_was_interrupted_in_the_middle():
    """SB3 moves its cursor behind the last row before it sets it back."""
    buffer = make_buffer(4)
    fill([buffer], 3)
    buffer.rewards[3] = 5.0
    buffer.pos = 4
    add_one(buffer)
    assert (buffer.pos, buffer.full) == (1, True)
    np.testing.assert_array_equal(buffer.transition_ids[:, 0], [4, 1, 2, 3])


def test_learning_after_rows_were_written_by_hand():
    model = PERDQN(
        "MlpPolicy", "CartPole-v1", buffer_size=1000, learning_starts=0, batch_size=16, policy_kwargs=dict(net_arch=[4])
    )
    buffer = model.replay_buffer
    buffer.observations[:500] = np.random.default_rng(0).normal(size=(500, 1, 4))
    buffer.pos = 500
    model.learn(20)
    assert buffer.transition_ids.max() == 519
    assert (buffer.priorities[:520] > 0).all()


# ---- several steps at once


@pytest.mark.parametrize("obs_space", ["box", "dict"])
@pytest.mark.parametrize("n_steps", [0, 1, 4, 9])
def test_extend_is_add_step_by_step(obs_space, n_steps):
    one_by_one, at_once = (make_buffer(6, n_envs=2, obs_space=obs_space) for _ in range(2))
    rng = np.random.default_rng(0)

    def observations() -> Any:
        vec = rng.random((n_steps, 2, 3), dtype=np.float32)
        return {"vec": vec, "num": rng.integers(0, 5, (n_steps, 2))} if obs_space == "dict" else vec

    obs, next_obs = observations(), observations()
    actions, rewards, dones = rng.random((n_steps, 2, 2)), rng.random((n_steps, 2)), rng.random((n_steps, 2)) < 0.3
    infos = [[{"TimeLimit.truncated": bool(i % 2)}, {}] for i in range(n_steps)]
    at_once.extend(obs, next_obs, actions, rewards, dones, infos)
    for i in range(n_steps):
        step = [{key: part[i] for key, part in each.items()} if obs_space == "dict" else each[i] for each in (obs, next_obs)]
        one_by_one.add(*step, actions[i], rewards[i], dones[i], infos[i])
    assert_same_state(at_once, one_by_one)


@pytest.mark.parametrize("scheme", ["proportional", "rank", "lap"])
@pytest.mark.parametrize("n_steps", [2, 7])
def test_extend_with_masses(scheme, n_steps):
    """They are what a new transition is drawn by, until it is updated or overwritten; those without one get the maximum."""
    buffer = make_buffer(6, n_envs=2, scheme=scheme)
    fill([buffer], 4)
    buffer.update_priorities(buffer.sample(8).indices, np.full(8, 30.0))
    maximum = buffer.max_priority
    masses = np.random.default_rng(0).uniform(0.5, 2.0, (n_steps, 2))
    zeros = np.zeros((n_steps, 2, 3))
    buffer.extend(zeros, zeros, np.zeros((n_steps, 2, 2)), zeros[..., 0], zeros[..., 0], [[{}, {}]] * n_steps, masses)
    ids = buffer.transition_ids
    n_given = min(n_steps, 6) * 2
    given = np.argsort(ids, axis=None)[-n_given:]
    expected = masses.ravel()[-n_given:]
    actual = buffer.priorities.ravel()[given]
    if scheme == "rank":
        np.testing.assert_array_equal(np.argsort(actual), np.argsort(expected))  # by rank, behind all that are larger
    else:
        np.testing.assert_array_equal(actual, expected)
    assert buffer.max_priority == maximum
    add_one(buffer)
    assert (buffer.priorities[buffer.pos - 1] >= buffer.priorities.max() * (0.5 if scheme == "rank" else 1)).all()
    clone = pickle.loads(pickle.dumps(buffer))
    np.testing.assert_array_equal(clone.priorities, buffer.priorities)


def test_masses_of_another_scheme_do_not_count():
    """They are in its unit: with another scheme all transitions are at the maximum."""
    buffer = make_buffer(6, n_envs=2)
    zeros = np.zeros((3, 2, 3))
    buffer.extend(zeros, zeros, np.zeros((3, 2, 2)), zeros[..., 0], zeros[..., 0], [[{}, {}]] * 3, np.full((3, 2), 0.01))
    assert (buffer.priorities[:3] == 0.01).all()
    changed = PrioritizedReplayBuffer.from_replay_buffer(buffer, alpha=0.9)
    assert (changed.priorities[:3] == 1.0).all()


def test_masses_wait_for_the_end_of_the_episode():
    """With hindsight, a transition can be drawn later than it comes in."""
    env = counting_env(n_envs=2, goals=True)
    buffer = PrioritizedHerReplayBuffer(20, env.observation_space, env.action_space, env, device="cpu", n_envs=2)
    masses = np.arange(1.0, 7.0).reshape(3, 2)
    obs = {key: np.zeros((3, 2, 2), np.float32) for key in env.observation_space.spaces}
    arguments = (obs, obs, np.zeros((3, 2, 1)), np.zeros((3, 2)))
    buffer.extend(*arguments, np.zeros((3, 2)), [[{}, {}]] * 3, masses)
    assert not buffer.priorities.any()
    buffer.extend(*arguments, np.array([[0, 0], [1, 0], [0, 0]]), [[{}, {}]] * 3)
    np.testing.assert_array_equal(buffer.priorities[:6, 0], [1, 3, 5, 1, 1, 0])
    assert not buffer.priorities[:, 1].any()


@pytest.mark.parametrize(
    "masses, value",
    [
        (np.ones((3, 1)), r"\(3, 1\)"),
        (np.full((3, 2), -1.0), "-1"),
        ([[1, 1], [1, 0], [1, 1]], "0"),
        ([[1, 1], [1, np.nan], [1, 1]], "nan"),
    ],
)
def test_bad_masses_store_nothing(masses, value):
    buffer = make_buffer(6, n_envs=2)
    fill([buffer], 2)
    before = pickle.dumps(buffer)
    zeros = np.zeros((3, 2, 3))
    with pytest.raises(ValueError, match=value):
        buffer.extend(zeros, zeros, np.zeros((3, 2, 2)), zeros[..., 0], zeros[..., 0], [[{}, {}]] * 3, masses)
    with pytest.raises(ValueError):
        buffer.extend(zeros, zeros[:2], np.zeros((3, 2, 2)), zeros[..., 0], zeros[..., 0], [[{}, {}]] * 3)
    assert pickle.dumps(buffer) == before


# ---- reading observations goes through two methods


class ElsewhereBuffer(PrioritizedReplayBuffer):
    """Stores observations elsewhere than in SB3's arrays."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.elsewhere = [self.observations.copy(), self.next_observations.copy()]

    def add(self, obs: Any, next_obs: Any, *args: Any) -> None:
        for stored, new in zip(self.elsewhere, (obs, next_obs), strict=True):
            stored[self.pos] = new
        super().add(obs * np.nan, next_obs * np.nan, *args)

    def _observations_at(self, leaves: np.ndarray) -> np.ndarray:
        return self.elsewhere[0].reshape(-1, *self.obs_shape)[leaves]

    def _next_observations_at(self, leaves: np.ndarray) -> np.ndarray:
        return self.elsewhere[1].reshape(-1, *self.obs_shape)[leaves]


@pytest.mark.parametrize("n_steps", [1, 3])
def test_observations_can_be_stored_elsewhere(n_steps):
    plain = make_buffer(10, n_envs=2, n_steps=n_steps)
    elsewhere = ElsewhereBuffer(20, plain.observation_space, plain.action_space, "cpu", 2, n_steps=n_steps)
    fill([plain, elsewhere], 23)
    batches = []
    for buffer in (plain, elsewhere):
        np.random.seed(0)
        batches.append([buffer.sample(30), buffer._get_samples(np.arange(10))])
    for actual, expected in zip(batches[1], batches[0], strict=True):
        assert th.equal(actual.observations, expected.observations)
        assert th.equal(actual.next_observations, expected.next_observations)


@pytest.mark.parametrize("cls", [PERSAC, PERDQN])
def test_a_run_can_be_stored_elsewhere(cls):
    """To the bit the parameters of a run on SB3's arrays."""
    parameters = []
    for buffer_class in (PrioritizedReplayBuffer, ElsewhereBuffer):
        env = "Pendulum-v1" if cls is PERSAC else "CartPole-v1"
        model = cls("MlpPolicy", env, **copy.deepcopy(SETTINGS), replay_buffer_class=buffer_class).learn(60)
        parameters.append(model.policy.state_dict())
    for key, value in parameters[0].items():
        assert th.equal(value, parameters[1][key]), key
