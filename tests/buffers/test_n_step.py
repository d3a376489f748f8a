"""n-step returns: windows stop at terminations, truncations, the newest step, and the end of a run."""

from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.buffers import NStepReplayBuffer

from sb3_per import PERDQN, PrioritizedHerReplayBuffer, PrioritizedReplayBuffer
from tests.helpers.buffers import (
    add_one,
    assert_same_batches,
    brute_force_n_step,
    counting_env,
    fill,
    make_buffer,
    normalizer,
    stock_like,
    stock_rows,
)


@pytest.mark.parametrize(
    "obs_space, optimize_memory_usage, n_steps, n_envs",
    [("dict", False, 2, 3), ("box", False, 40, 1), ("box", True, 7, 3)],
)
def test_n_step_returns_equal_a_brute_force_loop(n_envs, n_steps, obs_space, optimize_memory_usage):
    """Compare before and after wrap-around; windows stop at the end of an episode and at the newest step."""
    gamma, n_rows = 0.9, 12
    storage = dict(optimize_memory_usage=True, handle_timeout_termination=False) if optimize_memory_usage else {}
    buffer = make_buffer(n_rows, n_envs, obs_space, n_steps=n_steps, gamma=gamma, alpha=0.0, **storage)
    steps: list[list[tuple[float, bool, bool]]] = [[] for _ in range(n_envs)]
    next_obs_of: list[list[Any]] = [[] for _ in range(n_envs)]
    rng = np.random.default_rng(0)
    buffer.observation_space.seed(0)
    key = None if obs_space == "box" else "vec"
    obs = {key: rng.normal(size=(n_envs, 3)).astype(np.float32), "num": np.zeros(n_envs, dtype=int)}
    for step in range(31):
        reward, done = rng.normal(size=n_envs).astype(np.float32), rng.random(n_envs) < 0.15
        truncated = done & (rng.random(n_envs) < 0.5) & (not optimize_memory_usage)
        next_obs = {key: rng.normal(size=(n_envs, 3)).astype(np.float32), "num": np.zeros(n_envs, dtype=int)}
        infos = [{"TimeLimit.truncated": bool(t)} for t in truncated]
        args = [obs, next_obs] if key else [obs[key], next_obs[key]]
        buffer.add(*args, np.zeros((n_envs, 2)), reward, done, infos)
        for e in range(n_envs):
            steps[e].append((float(reward[e]), bool(done[e]), bool(truncated[e])))
            next_obs_of[e].append(next_obs[key][e])
        obs = next_obs
        if step % 3 == 1:
            continue

        batch = buffer.sample(80)
        n_drawable = (buffer.size() - (optimize_memory_usage and buffer.full)) * n_envs
        if n_drawable <= 40:
            assert len(set(batch.indices)) == n_drawable  # stratified draws include every step
        actual_next = batch.next_observations[key] if key else batch.next_observations
        for i, index in enumerate(batch.indices):
            start, e = divmod(int(index), n_envs)
            value, discount, last, dones = brute_force_n_step(steps[e], start, n_steps, gamma)
            assert batch.rewards[i].item() == pytest.approx(value, rel=1e-5, abs=1e-5)
            assert batch.discounts[i].item() == pytest.approx(discount, rel=1e-5)
            assert batch.dones[i].item() == dones
            # After a done, the reset observation overwrites the next observation, which no target uses.
            if not (optimize_memory_usage and steps[e][last][1]):
                np.testing.assert_array_equal(actual_next[i], next_obs_of[e][last])


@pytest.mark.parametrize("n_steps, n_rows_added, normalize", [(2, 4, False), (5, 17, True)])
def test_n_step_sample_equals_stock(n_steps, n_rows_added, normalize, monkeypatch):
    buffer = make_buffer(n_envs=2, n_steps=n_steps, gamma=0.97, alpha=0.0)
    stock = stock_like(buffer, NStepReplayBuffer, n_steps=n_steps, gamma=0.97)
    fill([buffer, stock], n_rows_added)
    env = normalizer(buffer.observation_space, buffer.action_space) if normalize else None
    batch = buffer.sample(50, env=env)
    expected = stock_rows(stock, batch.indices, env, monkeypatch)
    assert_same_batches(batch, expected)


def every_window(buffer: PrioritizedReplayBuffer) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the episodes in which all windows begin and end, and the lengths of the windows."""
    batch = buffer.read_drawn(np.flatnonzero(buffer.masses))
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
    """Continue the same model with the buffer of another run."""
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
    """A second `learn()`, another environment or another buffer resets the environments without a done."""
    monkeypatch.chdir(tmp_path)
    model = PERDQN("MlpPolicy", counting_env(), **SETTINGS).learn(20)
    for _ in range(3):
        proceed(model)
        begins, ends, lengths = every_window(model.replay_buffer)
        np.testing.assert_array_equal(begins, ends)
        assert lengths.max() == 5 and (lengths < 5).any()
    # The last window of a run still bootstraps from its last next observation, because nothing was terminated.
    assert (model.replay_buffer.dones * (1 - model.replay_buffer.timeouts) == 0).all()


def test_windows_continue_across_learn_calls_of_the_same_run():
    model = PERDQN("MlpPolicy", counting_env(), **SETTINGS).learn(20)
    for _ in range(3):
        model.learn(10, reset_num_timesteps=False)
    begins, ends, lengths = every_window(model.replay_buffer)
    np.testing.assert_array_equal(begins, ends)
    sorted_lengths = np.sort(lengths)
    assert (sorted_lengths[8:] == 5).all()  # only the last four windows of each of the two environments are short
    assert (model.replay_buffer.dones == 0).all()


@pytest.mark.parametrize("n_steps", [1, 3])
def test_her_goals_never_come_from_another_run(n_steps):
    """A reset of the environments ends HER's episode, so goals and windows stay within one run."""
    kwargs = {**SETTINGS, "n_steps": n_steps, "replay_buffer_class": PrioritizedHerReplayBuffer, "learning_starts": 1000}
    model = PERDQN("MultiInputPolicy", counting_env(goals=True), **kwargs)
    for proceed in (learn_again, learn_again, set_env, learn_again):
        proceed(model)
        buffer = model.replay_buffer
        # The last episode is not over yet, so it is the only one that cannot be drawn.
        held = buffer.observations["observation"][: buffer.pos, :, 0]
        np.testing.assert_array_equal(buffer.masses[: buffer.pos] > 0, held < held[-1])
        if not buffer.masses.any():
            continue
        batch = buffer.sample(64)
        assert (batch.rewards[64 - int(0.8 * 64) :] == 0).all()  # every goal comes from the episode of its transition
        if n_steps > 1:
            begins, ends, _ = every_window(buffer)
            np.testing.assert_array_equal(begins, ends)


def test_end_episodes_truncates_the_newest_steps():
    """Steps that already end an episode stay as they are."""
    buffer = make_buffer(6, n_envs=3)
    buffer.end_episodes()  # an empty buffer has no episode to end
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


@pytest.mark.parametrize("optimize_memory_usage", [False, True])
def test_end_episodes_writes_terminations_without_handle_timeout_termination(optimize_memory_usage):
    """For single steps, a truncation does, unless the next observation is lost. Its flag does not stay for the next lap."""
    for n_steps in (1, 3):
        buffer = make_buffer(
            4, 2, n_steps=n_steps, handle_timeout_termination=False, optimize_memory_usage=optimize_memory_usage
        )
        add_one(buffer)
        buffer.end_episodes()
        is_truncation = n_steps == 1 and not optimize_memory_usage
        assert (buffer.dones[0] == 1).all() and (buffer.timeouts[0] == is_truncation).all()
        assert (buffer.sample(4).dones == (not is_truncation)).all()
        for _ in range(5):
            add_one(buffer)
        assert (buffer.timeouts == 0).all()


def test_n_step_returns_of_single_steps_end_where_their_episodes_were_ended():
    buffer = make_buffer(20, 1, handle_timeout_termination=False)
    for _ in range(2):
        add_one(buffer)
    buffer.end_episodes()
    for _ in range(4):
        add_one(buffer)
    changed = type(buffer).from_replay_buffer(buffer, n_steps=4, gamma=1.0)
    batch = changed.sample(60)
    lengths = {int(i): 2 - int(i) if i < 2 else min(4, 6 - int(i)) for i in batch.indices}
    rewards = changed.rewards[:, 0]
    for i, reward in zip(batch.indices.tolist(), batch.rewards[:, 0].tolist(), strict=True):
        assert reward == pytest.approx(rewards[i : i + lengths[i]].sum(), abs=1e-5)


def test_a_discount_factor_of_numpy_gives_float32():
    buffer = make_buffer(10, n_steps=3, gamma=np.float64(0.9))
    fill([buffer], 8)
    batch = buffer.sample(4)
    assert batch.rewards.dtype == batch.discounts.dtype == th.float32
