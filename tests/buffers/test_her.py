"""Hindsight experience replay (HER): which transitions can be drawn, which are relabelled, and which ids they have."""

import pickle
import re
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import DQN, HerReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv

from sb3_per import (
    PERDQN,
    PERSAC,
    PrioritizedDictReplayBuffer,
    PrioritizedHerReplayBuffer,
    Proportional,
)
from tests.helpers.buffers import assert_same
from tests.helpers.her import N_BITS, Player, make_env, make_her


def assert_finished_episodes_have_mass(buffer: PrioritizedHerReplayBuffer) -> None:
    np.testing.assert_array_equal(buffer.masses > 0, buffer.ep_length > 0)
    assert buffer.draw_candidates().n == np.count_nonzero(buffer.ep_length)


def test_only_finished_complete_episodes_have_mass():
    """Check after every step of several laps: exactly the transitions that SB3 would draw have mass."""
    n_envs = 3
    env = make_env(n_envs)
    buffer, stock = make_her(PrioritizedHerReplayBuffer, env, scheme="rank"), make_her(HerReplayBuffer, env)
    player = Player(env, buffer, stock)
    for step in range(40):
        player.step()
        assert_finished_episodes_have_mass(buffer)
        np.testing.assert_array_equal(buffer.ep_length, stock.ep_length)
        if buffer.ep_length.any():
            ids = buffer.sample(8).indices
            rows, envs = (ids // n_envs) % buffer.buffer_size, ids % n_envs
            assert (buffer.ep_length[rows, envs] > 0).all()
            buffer.update_priorities(ids, np.random.default_rng(step).exponential(size=8))
            every_id = np.arange(buffer.transition_ids.max() + 1)
            # This updates every id ever issued, but only transitions that can be drawn are written.
            written = buffer.update_priorities(every_id, np.ones(len(every_id)))
            assert written == np.count_nonzero(buffer.ep_length)
            assert_finished_episodes_have_mass(buffer)
    assert buffer.transition_ids.max() > 2 * buffer.masses.size


def test_a_truncated_trajectory_can_be_drawn():
    """After loading a buffer, SB3 truncates the unfinished trajectory."""
    env = make_env(2)
    buffer = make_her(PrioritizedHerReplayBuffer, env)
    player = Player(env, buffer)
    player.step(23)
    clone = pickle.loads(pickle.dumps(buffer))
    np.testing.assert_array_equal(clone.priorities, buffer.masses)
    clone.set_env(env)
    assert (clone._current_ep_start != clone.pos).any()
    with pytest.warns(UserWarning, match="truncated"):
        clone.truncate_last_trajectory()
    assert_finished_episodes_have_mass(clone)
    assert (clone.priorities[clone.pos - 1] > 0).all()
    Player(env, clone).step(40)
    assert_finished_episodes_have_mass(clone)
    clone.sample(10)


@pytest.mark.parametrize("strategy, copy_info_dict, n_envs", [("future", True, 3), ("final", False, 3), ("episode", False, 1)])
def test_sample_equals_stock(strategy, copy_info_dict, n_envs):
    """Real rows, which come first, and relabelled rows both equal SB3's rows with these ids, bit for bit."""
    env = make_env(n_envs)
    kwargs = dict(goal_selection_strategy=strategy, copy_info_dict=copy_info_dict, n_sampled_goal=3)
    buffer, stock = make_her(PrioritizedHerReplayBuffer, env, **kwargs), make_her(HerReplayBuffer, env, **kwargs)
    Player(env, buffer, stock).step(30)
    n_virtual = int(0.75 * 40)
    batch = None
    for seed in range(3):
        np.random.seed(seed)
        shuffled = buffer._sample_goals
        state: list[Any] = []

        def spying(rows, envs, state=state, shuffled=shuffled):
            state.append(np.random.get_state())  # the state just before goals are drawn
            return shuffled(rows, envs)

        buffer._sample_goals = spying
        batch = buffer.sample(40)
        del buffer._sample_goals
        rows, envs = (batch.indices // n_envs) % buffer.buffer_size, batch.indices % n_envs
        real = stock._get_real_samples(rows[: 40 - n_virtual], envs[: 40 - n_virtual])
        np.random.set_state(state[0])
        virtual = stock._get_virtual_samples(rows[40 - n_virtual :], envs[40 - n_virtual :])
        for name in ("observations", "actions", "next_observations", "dones", "rewards"):
            whole = getattr(batch, name)
            for part, expected in ((slice(0, 40 - n_virtual), real), (slice(40 - n_virtual, None), virtual)):
                actual = {k: v[part] for k, v in whole.items()} if isinstance(whole, dict) else whole[part]
                assert_same(actual, getattr(expected, name))
        masses = buffer.masses[rows, envs]
        weights = (masses / masses.min()) ** -buffer.beta
        np.testing.assert_allclose(batch.weights[:, 0], weights, rtol=1e-6)
        buffer.update_priorities(batch.indices, np.random.exponential(size=40))


def test_relabelling_is_independent_of_age():
    """Stratified draws come sorted, but old and new transitions are relabelled equally often."""
    env = make_env(1)
    buffer = make_her(PrioritizedHerReplayBuffer, env, n_rows=200, n_sampled_goal=1)
    Player(env, buffer).step(200)
    np.random.seed(0)
    real, virtual = [], []
    for _ in range(120):
        ids = buffer.sample(20).indices
        real.append(ids[:10].mean())
        virtual.append(ids[10:].mean())
    assert abs(np.mean(real) - np.mean(virtual)) < 5 * np.std(real) / np.sqrt(120) * 2


@pytest.mark.parametrize("update_from_virtual", [True, False])
def test_virtual_transitions_update_priorities_only_with_update_from_virtual(update_from_virtual):
    env = make_env(2)
    buffer = make_her(PrioritizedHerReplayBuffer, env, n_rows=50, update_from_virtual=update_from_virtual, alpha=1.0)
    Player(env, buffer).step(50)
    buffer.update_priorities(np.arange(100), np.ones(100)) if update_from_virtual else None
    before = buffer.masses.ravel()
    batch = buffer.sample(30)
    n_real = 30 - int(0.8 * 30)
    written = buffer.update_priorities(batch.indices, np.full(30, 7.0))
    changed = np.flatnonzero(buffer.masses.ravel() != before)
    expected = batch.indices if update_from_virtual else batch.indices[:n_real]
    assert set(changed) == set(expected)
    assert written == len(expected)
    before = buffer.masses
    with pytest.raises(ValueError, match="nan"):
        buffer.update_priorities(batch.indices, [*np.ones(29), np.nan])
    with pytest.raises(IndexError, match="never issued"):
        buffer.update_priorities([*batch.indices[:29], 10**9], np.ones(30))
    np.testing.assert_array_equal(buffer.masses, before)
    with pytest.raises(ValueError, match=r"\(29,\)"):
        buffer.update_priorities(batch.indices, np.ones(29))


class Counted(Proportional):
    """Notes how many priorities it computes at once."""

    computed: ClassVar[list[int]] = []

    def priority(self, abs_td_errors: np.ndarray) -> np.ndarray:
        self.computed.append(len(abs_td_errors))
        return super().priority(abs_td_errors)


def test_an_update_computes_each_priority_that_it_writes_once():
    env = make_env(2)
    buffer = make_her(PrioritizedHerReplayBuffer, env, n_rows=50, update_from_virtual=False, scheme=Counted())
    Player(env, buffer).step(50)
    ids = buffer.sample(30).indices
    Counted.computed.clear()
    buffer.update_priorities(ids, np.ones(30))
    assert Counted.computed == [30 - int(0.8 * 30)]


def test_sampling_before_the_first_finished_episode_raises_an_error_of_the_type_of_sb3():
    """A bad batch size still raises our own error."""
    env = make_env(2)
    buffer, stock = make_her(PrioritizedHerReplayBuffer, env), make_her(HerReplayBuffer, env)
    Player(env, buffer, stock).step(1)
    buffer.ep_length[:] = stock.ep_length[:] = 0
    for each in (stock, buffer):
        with pytest.raises(RuntimeError, match="before the end of the first episode"):
            each.sample(4)
    with pytest.raises(ValueError, match="0"):
        buffer.sample(0)


def test_reset_forgets_episodes():
    env = make_env(2)
    buffer = make_her(PrioritizedHerReplayBuffer, env)
    Player(env, buffer).step(22)
    old = buffer.sample(6).indices
    buffer.reset()
    assert (buffer.masses == 0).all()
    with pytest.raises(RuntimeError):
        buffer.sample(4)
    Player(env, buffer).step(12)
    assert_finished_episodes_have_mass(buffer)
    assert set(buffer.sample(50).indices).isdisjoint(old)


def test_n_step_returns_of_virtual_transitions_use_the_new_goal():
    n_envs, gamma, n_steps = 2, 0.9, 3
    env = make_env(n_envs)
    buffer = make_her(PrioritizedHerReplayBuffer, env, n_steps=n_steps, gamma=gamma)
    player = Player(env, buffer)
    for _ in range(8):
        player.step(4)
        if not buffer.ep_length.any():
            continue
        batch = buffer.sample(20)
        n_real = 20 - int(0.8 * 20)
        for i, index in enumerate(batch.indices):
            row, e = (index // n_envs) % buffer.buffer_size, index % n_envs
            goal = batch.observations["desired_goal"][i].numpy()
            np.testing.assert_array_equal(goal, batch.next_observations["desired_goal"][i])
            value, discount = 0.0, 1.0
            for _ in range(n_steps):
                achieved = buffer.next_observations["achieved_goal"][row, e]
                reward = env.env_method("compute_reward", achieved[None], goal[None], [{}], indices=[0])[0].item()
                if i < n_real:
                    assert reward == buffer.rewards[row, e]
                value += discount * reward
                discount *= gamma
                if buffer.dones[row, e]:
                    break
                row = (row + 1) % buffer.buffer_size
            assert batch.rewards[i].item() == pytest.approx(value, rel=1e-5)
            assert batch.discounts[i].item() == pytest.approx(discount, rel=1e-5)
            np.testing.assert_array_equal(batch.next_observations["achieved_goal"][i], achieved)


def test_learn_save_and_load_keep_priorities(tmp_path):
    env = make_vec_env(lambda: BitFlippingEnv(n_bits=N_BITS, continuous=True, max_steps=N_BITS), n_envs=2)
    model = PERSAC(
        "MultiInputPolicy",
        env,
        buffer_size=60,
        learning_starts=20,
        n_steps=3,
        batch_size=16,
        policy_kwargs=dict(net_arch=[8]),
        replay_buffer_class=PrioritizedHerReplayBuffer,
        replay_buffer_kwargs=dict(n_sampled_goal=2, alpha=0.7, update_from_virtual=False),
    )
    model.learn(80)
    assert_finished_episodes_have_mass(model.replay_buffer)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    loaded = PERSAC.load(tmp_path / "model", env=env)
    assert type(loaded.replay_buffer) is PrioritizedHerReplayBuffer
    assert (loaded.replay_buffer.scheme.alpha, loaded.replay_buffer.n_sampled_goal) == (0.7, 2)
    assert not loaded.replay_buffer.update_from_virtual
    loaded.load_replay_buffer(tmp_path / "buffer", truncate_last_traj=False)
    np.testing.assert_array_equal(loaded.replay_buffer.masses, model.replay_buffer.masses)
    loaded.learn(20, reset_num_timesteps=False)


@pytest.mark.parametrize("name", ["her.buffer", "her.pkl"])
def test_an_episode_that_the_environment_continues_after_a_load_stays_one_as_in_sb3(tmp_path, name):
    """The load comes in the middle of an episode, and ``truncate_last_traj=False`` says that it goes on."""
    found = {}
    for cls in (DQN, PERDQN):
        env = make_vec_env(lambda: BitFlippingEnv(n_bits=12, continuous=False, max_steps=20), n_envs=1)
        model = cls("MultiInputPolicy", env, replay_buffer_class=HerReplayBuffer, buffer_size=200, learning_starts=100, seed=0)
        model.learn(30)
        path = tmp_path / ("stock.pkl" if cls is DQN else name)
        model.save(tmp_path / "model")
        model.save_replay_buffer(path)
        model = cls.load(tmp_path / "model", env=env, force_reset=False)
        model.load_replay_buffer(path, truncate_last_traj=False)
        model.learn(25, reset_num_timesteps=False)
        found[cls] = model.replay_buffer.dones.copy(), model.replay_buffer.ep_length.copy()
    for ours, stocks in zip(found[PERDQN], found[DQN], strict=True):
        np.testing.assert_array_equal(ours, stocks)
    assert found[PERDQN][1][20] == 20


def test_her_models_load_as_stock_models_and_back(tmp_path):
    """A saved model with HER loads as stock DQN, and back; an SB3 HER buffer becomes a prioritized one."""
    env = make_env(2)
    kwargs: dict[str, Any] = dict(buffer_size=100, learning_starts=30)
    stock = DQN(
        "MultiInputPolicy", env, replay_buffer_class=HerReplayBuffer, replay_buffer_kwargs=dict(n_sampled_goal=2), **kwargs
    )
    stock.learn(80)
    stock.save(tmp_path / "stock")
    stock.save_replay_buffer(tmp_path / "buffer")
    model = PERDQN.load(tmp_path / "stock", env=env)
    assert type(model.replay_buffer) is PrioritizedHerReplayBuffer
    model.load_replay_buffer(tmp_path / "buffer", truncate_last_traj=False)
    assert type(model.replay_buffer) is PrioritizedHerReplayBuffer
    assert model.replay_buffer.n_sampled_goal == 2
    assert_finished_episodes_have_mass(model.replay_buffer)
    np.testing.assert_array_equal(model.replay_buffer.ep_length, stock.replay_buffer.ep_length)
    model.learn(60, reset_num_timesteps=False)
    assert_finished_episodes_have_mass(model.replay_buffer)
    model.save(tmp_path / "ours")
    assert type(DQN.load(tmp_path / "ours", env=env).replay_buffer) is HerReplayBuffer


class OddGoals(BitFlippingEnv):
    """A BitFlippingEnv whose `compute_reward` returns rewards in another form."""

    form: Any = None

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, infos: Any) -> Any:
        return self.form(super().compute_reward(achieved_goal, desired_goal, infos))


def test_compute_reward_must_return_one_reward_per_row(monkeypatch):
    """NumPy would broadcast a single number to the whole batch."""
    for form, accepted, n_steps in (
        (lambda rewards: rewards.reshape(-1, 1), True, 3),
        (lambda rewards: rewards.tolist(), True, 1),
        (lambda rewards: float(rewards.mean()), False, 3),
        (lambda rewards: rewards.reshape(1, -1), False, 1),
    ):
        monkeypatch.setattr(OddGoals, "form", staticmethod(form))
        env, plain = (make_vec_env(lambda c=c: c(n_bits=N_BITS, max_steps=5)) for c in (OddGoals, BitFlippingEnv))
        buffers = [make_her(PrioritizedHerReplayBuffer, e, n_rows=40, n_steps=n_steps) for e in (env, plain)]
        Player(plain, *buffers).step(30)
        if not accepted:
            with pytest.raises(ValueError, match=r"compute_reward\(\).*must return one reward for each row, shape \(\d+,\)"):
                buffers[0].sample(20)
            continue
        batches = []
        for buffer in buffers:
            np.random.seed(0)
            batches.append(buffer.sample(20))
        assert_same(batches[0].rewards, batches[1].rewards)


def test_rewards_of_new_goals_must_be_finite(monkeypatch):
    monkeypatch.setattr(OddGoals, "form", staticmethod(lambda rewards: rewards))
    env = make_vec_env(lambda: OddGoals(n_bits=N_BITS, max_steps=5))
    buffer = make_her(PrioritizedHerReplayBuffer, env, n_rows=40)
    Player(env, buffer).step(30)
    monkeypatch.setattr(OddGoals, "form", staticmethod(lambda rewards: np.full(len(rewards), -np.inf)))
    with pytest.raises(ValueError, match=r"compute_reward\(\) of the environment returned -inf"):
        buffer.sample(20)


def test_achieved_goals_that_do_not_fit_desired_goals_are_refused():
    """Otherwise, relabelling would cast an achieved goal silently, e.g. 0.7 to 0."""
    for achieved, desired, fits in [
        (spaces.Box(-1, 1, (3,), np.float64), spaces.Box(-1, 1, (3,), np.float32), True),
        (spaces.Box(-9, 9, (3,), np.int64), spaces.Box(-9, 9, (3,), np.float32), True),
        (spaces.Box(-9, 9, (3,), np.float32), spaces.Box(-9, 9, (3,), np.int64), False),
        (spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-1, 1, (2,), np.float32), False),
    ]:
        space = spaces.Dict({"observation": achieved, "achieved_goal": achieved, "desired_goal": desired})
        arguments = (10, space, spaces.Discrete(2), make_env(1))
        if fits:
            PrioritizedHerReplayBuffer(*arguments)
            continue
        first, second = (re.escape(f"{goal.dtype} of shape {goal.shape}") for goal in (achieved, desired))
        with pytest.raises(ValueError, match=rf"{first} \(achieved_goal\) does not fit.*{second} \(desired_goal\)"):
            PrioritizedHerReplayBuffer(*arguments)


class IntegerGoals(BitFlippingEnv):
    """A BitFlippingEnv that achieves int64 goals, and desires float32."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        box = spaces.Box(0, 1, (N_BITS,), np.float32)
        parts = {**self.observation_space.spaces, "achieved_goal": spaces.Box(0, 1, (N_BITS,), np.int64), "desired_goal": box}
        self.observation_space = spaces.Dict(parts)

    def _get_obs(self) -> Any:
        obs = super()._get_obs()
        return {**obs, "achieved_goal": np.int64(obs["achieved_goal"]), "desired_goal": np.float32(obs["desired_goal"])}


def test_integer_goals_become_float_goals_as_in_stock():
    env = make_vec_env(lambda: IntegerGoals(n_bits=N_BITS, max_steps=5), n_envs=2)
    buffer = make_her(PrioritizedHerReplayBuffer, env, scheme="uniform", stratified=False)
    stock = make_her(HerReplayBuffer, env)
    Player(env, buffer, stock).step(40)
    batches = []
    for each in (buffer, stock):
        np.random.seed(0)
        batches.append(each.sample(21))
    assert buffer.observations["achieved_goal"].dtype == np.int64
    for name in batches[1]._fields[:5]:
        assert_same(getattr(batches[0], name), getattr(batches[1], name))


def test_uniform_independent_draws_equal_stock():
    """The same seed gives the same batch, bit for bit, including virtual goals."""
    n_envs = 3
    env = make_env(n_envs)
    buffer, stock = (
        make_her(PrioritizedHerReplayBuffer, env, scheme="uniform", stratified=False),
        make_her(HerReplayBuffer, env),
    )
    player = Player(env, buffer, stock)
    for seed in range(4):
        player.step(11)
        np.random.seed(seed)
        expected = stock.sample(21)
        np.random.seed(seed)
        batch = buffer.sample(21)
        for name in expected._fields[:5]:
            assert_same(getattr(batch, name), getattr(expected, name))
        rows, envs = (batch.indices // n_envs) % buffer.buffer_size, batch.indices % n_envs
        np.testing.assert_array_equal(batch.actions, buffer.actions[rows, envs])


@pytest.mark.parametrize("named, prioritized", [(False, True), (True, False)])
def test_her_survives_loading_a_buffer_or_a_model(named, prioritized, tmp_path):
    """A loaded HER buffer stays one, whether or not the model names a class. As in SB3, a zip has the class that was named."""
    env = make_env(2)
    cls, buffer_class = (PERDQN, PrioritizedHerReplayBuffer) if prioritized else (DQN, HerReplayBuffer)
    kwargs: dict[str, Any] = dict(replay_buffer_class=buffer_class, replay_buffer_kwargs=dict(n_sampled_goal=2))
    saved = cls("MultiInputPolicy", env, buffer_size=100, learning_starts=30, **kwargs).learn(60)
    saved.save_replay_buffer(tmp_path / "buffer")
    saved.save(tmp_path / "model")
    named_class = PrioritizedHerReplayBuffer if named else None
    model = PERDQN("MultiInputPolicy", env, buffer_size=100, learning_starts=30, replay_buffer_class=named_class)
    model.load_replay_buffer(tmp_path / "buffer", truncate_last_traj=False)
    assert type(model.replay_buffer) is PrioritizedHerReplayBuffer
    assert model.replay_buffer.n_sampled_goal == 2
    np.testing.assert_array_equal(model.replay_buffer.ep_length, saved.replay_buffer.ep_length)
    assert_finished_episodes_have_mass(model.replay_buffer)
    model.learn(20, reset_num_timesteps=False)
    model.save(tmp_path / "again")
    for path, names_her in (("again", named), ("model", True)):
        found = type(PERDQN.load(tmp_path / path, env=env).replay_buffer)
        assert found is (PrioritizedHerReplayBuffer if names_her else PrioritizedDictReplayBuffer)
        found = type(PERDQN.load(tmp_path / path, env=env, replay_buffer_class=HerReplayBuffer).replay_buffer)
        assert found is PrioritizedHerReplayBuffer


def test_the_her_buffer_class_of_sb3_is_replaced():
    model = PERDQN("MultiInputPolicy", make_env(1), buffer_size=100, replay_buffer_class=HerReplayBuffer)
    assert type(model.replay_buffer) is PrioritizedHerReplayBuffer


def test_loading_a_buffer_without_goals_into_a_her_model_is_refused(tmp_path):
    env = make_env(1)
    for cls in (DQN, PERDQN):
        cls("MultiInputPolicy", env, buffer_size=100, learning_starts=30).learn(40).save_replay_buffer(tmp_path / "buffer")
        model = PERDQN("MultiInputPolicy", env, buffer_size=100, replay_buffer_class=PrioritizedHerReplayBuffer)
        before = model.replay_buffer
        with pytest.raises(ValueError, match=r"DictReplayBuffer does not fit this model|cannot take over a DictReplayBuffer"):
            model.load_replay_buffer(tmp_path / "buffer")
        assert model.replay_buffer is before


def test_optimize_memory_usage_is_refused():
    with pytest.raises(NotImplementedError, match="optimize_memory_usage"):
        make_her(PrioritizedHerReplayBuffer, make_env(1), optimize_memory_usage=True)
