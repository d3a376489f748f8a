"""Models have the settings, buffers and files of ``sb3_per``."""

import inspect
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

import sb3_per
import sb3_per.sbx
from sb3_per import PrioritizedHerReplayBuffer, PrioritizedReplayBuffer, PrioritizedSequenceReplayBuffer
from sb3_per.distributed import make_actors
from tests.helpers.algorithms import Records, recorded
from tests.helpers.buffers import CountingEnv, fill
from tests.helpers.sbx_models import ALGORITHMS, BATCH_SIZE, leaves, logged, make, names, shared


def test_constructors_are_those_of_sbx():
    for name, (mine, stock, _) in ALGORITHMS.items():
        parameters = dict(inspect.signature(mine).parameters)
        assert list(inspect.signature(mine.__init__).parameters) == ["self", *parameters]
        if name == "dqn":
            assert parameters.pop("double_q").default is False
        assert parameters == dict(inspect.signature(stock).parameters)


def test_every_algorithm_names_a_class_for_the_other_actions():
    for name, (cls, _, _) in ALGORITHMS.items():
        env = "CartPole-v1" if cls.has_actor else "Pendulum-v1"
        other = getattr(sb3_per.sbx, cls.class_for_other_actions)
        assert {cls.takes_actions, other.takes_actions} == {"continuous", "discrete"}
        with pytest.raises(AssertionError, match=f"is for {cls.takes_actions} actions, .*: take {other.__name__}$"):
            make(name, env=env)


def test_draws_are_those_of_sb3_per():
    """Same seed, same data: same transitions and weights, whichever side draws, also for several gradient steps."""
    model = shared("td3")
    other = sb3_per.PERTD3("MlpPolicy", "Pendulum-v1", buffer_size=80, policy_kwargs=dict(net_arch=[4]))
    fill([other.replay_buffer], 60)
    batches = recorded(model.replay_buffer)
    np.random.seed(3)
    model.train(3, BATCH_SIZE)
    del model.replay_buffer.sample
    np.random.seed(3)
    first = model.replay_buffer.transition_ids.max() - other.replay_buffer.transition_ids.max()
    for batch in batches:
        expected = other.replay_buffer.sample(BATCH_SIZE)
        np.testing.assert_array_equal(batch.indices - first, expected.indices)
        np.testing.assert_array_equal(batch.weights, expected.weights)


# ---- what is refused


def test_what_cannot_work_is_refused_when_constructed():
    for name, kwargs, error, named in (
        ("dqn", dict(replay_buffer_kwargs=dict(actor_batch="uniform")), NotImplementedError, "it has no actor"),
        ("dqn", dict(replay_buffer_class=PrioritizedSequenceReplayBuffer), NotImplementedError, "not recurrent"),
        ("dqn", dict(replay_buffer_class=type("Own", (ReplayBuffer,), {})), ValueError, "needs a prioritized replay buffer"),
        ("dqn", dict(n_steps=3, replay_buffer_kwargs=dict(n_steps=2)), ValueError, "n_steps=3 contradicts"),
        (
            "dqn",
            dict(env=make_actors("CartPole-v1", 1, engine="local")),
            NotImplementedError,
            "PERDQN with actors and networks",
        ),
    ):
        with pytest.raises(error, match=named):
            make(name, **kwargs)


@pytest.mark.slow
def test_double_q_is_checked_by_the_constructor_and_by_load(tmp_path):
    model = make("dqn", double_q=True)
    model.save(tmp_path / "model")
    for value in ("no", 5):
        with pytest.raises(ValueError, match=f"double_q must be True or False, not {value!r}"):
            make("dqn", double_q=value)
        with pytest.raises(ValueError, match=f"double_q must be True or False, not {value!r}"):
            type(model).load(tmp_path / "model", double_q=value)


def test_schemes_with_a_loss_of_their_own_are_refused_by_quantiles():
    for scheme in ("lap", "pal"):
        with pytest.raises(NotImplementedError, match="have no such loss"):
            make("tqc", replay_buffer_kwargs=dict(scheme=scheme))


# ---- what a user's script does to a model


def test_a_stock_buffer_that_is_assigned_becomes_prioritized():
    model = make("dqn")
    spaces_ = (model.observation_space, model.action_space)
    stock = ReplayBuffer(60, *spaces_, device="cpu")
    fill([stock], 30)
    model.replay_buffer = stock
    assert type(model.replay_buffer) is PrioritizedReplayBuffer
    assert np.shares_memory(model.replay_buffer.rewards, stock.rewards)
    before = model.replay_buffer
    own = type("Own", (ReplayBuffer,), {})
    with pytest.raises(ValueError, match="Own is not: use a subclass of PrioritizedReplayBuffer,"):
        model.replay_buffer = own(60, *spaces_, device="cpu")
    assert model.replay_buffer is before


def test_a_train_method_of_the_user_that_forgets_priorities_warns():
    class Own(ALGORITHMS["dqn"][0]):  # type: ignore[misc]
        def train(self, gradient_steps: int, batch_size: int) -> None:
            self.replay_buffer.sample(batch_size)

    model = Own("MlpPolicy", "CartPole-v1", buffer_size=80, policy_kwargs=dict(net_arch=[4, 4]))
    fill([model.replay_buffer], 10)
    with pytest.warns(UserWarning, match=r"train\(\) of your own, multiply the loss by batch\.weights"):
        for _ in range(12):
            model.train(1, 4)


def test_a_run_begins_with_the_first_step_and_is_reproduced_by_its_seed(tmp_path):
    """Its log has the name of the stock class."""
    pytest.importorskip("tensorboard", reason="needs the extra extra")
    models = []
    for log in (str(tmp_path), None):
        model = make("dqn", seed=5, learning_starts=0, train_freq=1, tensorboard_log=log).learn(2)
        assert model._n_updates > 0
        assert [path.name for path in tmp_path.iterdir()] == ["DQN_1"]
        models.append(model.learn(20, reset_num_timesteps=False))
    for one, other in zip(*map(leaves, models), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(models[0].replay_buffer.masses, models[1].replay_buffer.masses)


# ---- files


@pytest.mark.parametrize("name", names("dqn"))
def test_zips_load_both_ways(name, tmp_path):
    _, stock, _ = ALGORITHMS[name]
    kwargs = dict(replay_buffer_kwargs=dict(alpha=0.5, scheme="rank"), n_steps=2)
    model = make(name, **kwargs)
    fill([model.replay_buffer], 30)
    model.set_logger(Logger(None, []))
    model.train(1, BATCH_SIZE)
    model.replay_buffer.beta = 0.7
    model.save(tmp_path / "ours.zip")
    loaded = type(model).load(tmp_path / "ours.zip", env=model.get_env())
    assert (loaded.replay_buffer.scheme.alpha, loaded.replay_buffer.beta, loaded.replay_buffer.n_steps) == (0.5, 0.7, 2)
    theirs = stock.load(tmp_path / "ours.zip", env=model.get_env())
    theirs.save(tmp_path / "theirs.zip")
    back = type(model).load(tmp_path / "theirs.zip", env=model.get_env())
    for other in (loaded, theirs, back):
        for one, same in zip(leaves(model), leaves(other), strict=True):
            np.testing.assert_array_equal(one, same)
    obs = model.observation_space.sample()
    np.testing.assert_allclose(model.predict(obs, deterministic=True)[0], back.predict(obs, deterministic=True)[0])


def test_a_buffer_goes_from_pytorch_to_jax_and_back(tmp_path):
    collected = sb3_per.PERTD3("MlpPolicy", "Pendulum-v1", buffer_size=80, policy_kwargs=dict(net_arch=[4]), seed=0)
    fill([collected.replay_buffer], 30)
    ids = np.arange(30)
    collected.replay_buffer.update_priorities(ids, np.random.default_rng(0).normal(size=30))
    priorities = collected.replay_buffer.masses
    model = shared("td3")
    before = model.replay_buffer
    try:
        for path in ("buffer.pkl", "all.buffer"):
            collected.save_replay_buffer(tmp_path / path)
            model.load_replay_buffer(tmp_path / path)
            np.testing.assert_array_equal(model.replay_buffer.masses, priorities)
            assert model.replay_buffer.device.type == "cpu"
        model.train(1, BATCH_SIZE)
        changed = model.replay_buffer.masses
        assert (changed != priorities).any()
        for path in ("back.pkl", "back.buffer"):
            model.save_replay_buffer(tmp_path / path)
            collected.load_replay_buffer(tmp_path / path)
            np.testing.assert_array_equal(collected.replay_buffer.masses, changed)
    finally:
        model.replay_buffer = before


# ---- settings of SBX and of the buffer, together


class Images(gym.Env):
    """Images of 36 x 36 pixels, the least that SBX's network takes."""

    observation_space = spaces.Box(0, 255, (36, 36, 1), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return np.zeros((36, 36, 1), np.uint8), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.full((36, 36, 1), self.t, np.uint8), 1.0, self.t >= 7, False, {}


def goal_env() -> Any:
    return make_vec_env(lambda: gym.wrappers.TimeLimit(CountingEnv(goals=True, discrete=False), 6), n_envs=2)


CONFIGURATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "gsde": ("sac", dict(use_sde=True)),
    "simba": ("sac", dict(policy="SimbaPolicy", policy_delay=2)),
    "droq": ("sac", dict(policy_kwargs=dict(dropout_rate=0.01, layer_norm=True), gradient_steps=3, policy_delay=3)),
    "resets": ("sac", dict(param_resets=[30])),
    "fixed entropy": ("sac", dict(ent_coef=0.1)),
    "crossq simba": ("crossq", dict(policy="SimbaPolicy")),
    "her": ("td3", dict(env=goal_env, policy="MultiInputPolicy", replay_buffer_class=HerReplayBuffer, n_steps=2)),
    "dict": ("td3", dict(env=goal_env, policy="MultiInputPolicy", n_steps=3)),
    "uniform actor": ("td3", dict(replay_buffer_kwargs=dict(actor_batch="uniform"))),
    "pal": ("td3", dict(replay_buffer_kwargs=dict(scheme="pal"))),
    "normalized": ("td3", dict(env=lambda: VecNormalize(make_vec_env("Pendulum-v1", n_envs=3)), gradient_steps=-1)),
    "episodes": ("td3", dict(env=goal_env, policy="MultiInputPolicy", train_freq=2, gradient_steps=5)),
    "double": ("dqn", dict(double_q=True, n_steps=3, replay_buffer_kwargs=dict(scheme="lap"))),
    "images": ("dqn", dict(env=lambda: VecFrameStack(make_vec_env(Images, n_envs=2), 4), policy="CnnPolicy")),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CONFIGURATIONS)
def test_settings_work_together(case):
    name, kwargs = CONFIGURATIONS[case]
    kwargs = dict(kwargs)
    if "env" in kwargs:
        kwargs["env"] = kwargs["env"]()
    if case == "images":
        kwargs["replay_buffer_kwargs"] = dict(frames="auto")
    model = make(name, **kwargs)
    model.learn(50)
    buffer = model.replay_buffer
    assert model._n_updates > 0 and all(np.isfinite(leaf).all() for leaf in leaves(model))
    masses = buffer.masses[buffer.masses > 0]
    assert len(np.unique(masses)) > 1 or buffer.scheme.draws_uniformly
    assert {"per/beta", "per/max_priority", "per/mean_weight", "per/effective_sample_size"} <= logged(model).keys()
    expected = PrioritizedHerReplayBuffer if case == "her" else PrioritizedReplayBuffer
    assert isinstance(buffer, expected) and buffer.n_steps == kwargs.get("n_steps", 1)


def test_hindsight_gives_the_networks_the_joined_parts_of_an_observation():
    """In the order of the space, as SBX joins them."""
    model = make("td3", env=goal_env(), policy="MultiInputPolicy", replay_buffer_class=HerReplayBuffer)
    assert isinstance(model.replay_buffer, PrioritizedHerReplayBuffer)
    model.learning_starts = 100
    model.learn(40)
    batch = model.replay_buffer.sample(BATCH_SIZE)
    names = ("achieved_goal", "desired_goal", "observation")
    observations = {name: batch.observations[name] + number for number, name in enumerate(names)}  # all three differ
    jax_batch = model._jax_batch_of(batch._replace(observations=observations), updates_actor=False)
    for joined, parts in ((jax_batch.observations, observations), (jax_batch.next_observations, batch.next_observations)):
        np.testing.assert_array_equal(joined, np.concatenate([parts[name].numpy() for name in names], axis=1))


def test_demonstrations_are_learned_before_and_during_training():
    model = make("dqn", replay_buffer_kwargs=dict(demonstration_fraction=0.25), train_freq=1, target_update_interval=5)
    expert = make("dqn", learning_starts=100)
    expert.learn(40)
    model.replay_buffer.add_demonstrations_from(expert.replay_buffer)
    records = Records()
    model.set_logger(Logger(None, [records]))
    before = leaves(model)
    assert model.pretrain(6) is model
    assert (model.num_timesteps, model._n_updates, model.replay_buffer.size()) == (0, 6, 0)
    assert records.lines[-1]["demonstrations/share"] == 1.0
    assert any((one != other).any() for one, other in zip(leaves(model), before, strict=True))
    model.learn(30, log_interval=1_000)
    last = logged(model)
    assert last["demonstrations/share"] == 0.25
    assert all(last[f"demonstrations/{name}"] > 0 for name in ("td_error", "td_error_of_experience", "mean_priority"))
