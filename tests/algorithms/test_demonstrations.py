"""Algorithms learn from demonstrations, before and during training, and log it."""

from contextlib import nullcontext

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per import PERDQN, PERSAC, PERCrossQ, PERRecurrentDQN, Proportional
from sb3_per.algorithms import base
from sb3_per.sampling.shuffled import Shuffled
from tests.helpers.algorithms import Records, recorded
from tests.helpers.buffers import fill
from tests.helpers.models import STOCK

DISCRETE = [cls.__name__ for cls in STOCK if "DQN" in cls.__name__]


def make_model(cls, **kwargs):
    """Make a small model with 40 demonstrations on a task that fits its actions; return it with its log."""
    env = "CartPole-v1" if cls.__name__ in DISCRETE else "Pendulum-v1"
    buffer_kwargs = dict(demonstration_fraction=0.25, **kwargs.pop("replay_buffer_kwargs", {}))
    settings = dict(policy_kwargs=dict(net_arch=[8]), buffer_size=200, learning_starts=0, batch_size=16, seed=0, device="cpu")
    model = cls("MlpPolicy", env, **{**settings, **kwargs}, replay_buffer_kwargs=buffer_kwargs)
    expert = cls("MlpPolicy", env, **{**settings, "learning_starts": 100}).learn(40)
    model.replay_buffer.add_demonstrations_from(expert.replay_buffer)
    records = Records()
    model.set_logger(Logger(None, [records]))
    return model, records.lines


def parameters(model):
    return th.cat([p.detach().ravel().clone() for p in model.policy.parameters()])


@pytest.mark.parametrize("cls", [PERSAC, PERCrossQ], ids=lambda cls: cls.__name__)
def test_algorithms_pretrain_and_learn_from_mixed_batches(cls):
    model, lines = make_model(cls, train_freq=1, gradient_steps=1)
    before = parameters(model)
    assert model.pretrain(5) is model
    assert (model.num_timesteps, model._n_updates, model.replay_buffer.size()) == (0, 5, 0)
    assert not th.equal(parameters(model), before)
    assert lines[-1]["demonstrations/share"] == 1.0 and "demonstrations/td_error_of_experience" not in lines[-1]
    model.learn(30, log_interval=1)
    model.dump_logs()
    last = lines[-1]
    assert last["demonstrations/share"] == 0.25
    for name in ("td_error", "td_error_of_experience", "mean_priority"):
        assert np.isfinite(last[f"demonstrations/{name}"]) and last[f"demonstrations/{name}"] > 0.0
    assert len(model.replay_buffer.demonstrations) == 40


def test_the_log_of_shuffled_priorities_draws_no_random_numbers(monkeypatch):
    """The control shuffles with NumPy's generator: a run with the log equals one without. No mean priority is logged."""
    runs = []
    for metrics in (base.demonstration_metrics, lambda *args: {}):
        monkeypatch.setattr(base, "demonstration_metrics", metrics)
        model, lines = make_model(PERDQN, train_freq=1, replay_buffer_kwargs=dict(scheme=Shuffled(Proportional())))
        drawn = recorded(model.replay_buffer)
        model.learn(20)
        model.dump_logs()
        runs.append((lines[-1], np.concatenate([batch.indices for batch in drawn]), np.random.get_state()[1:]))
    (logged, ids, state), (not_logged, same_ids, same_state) = runs
    assert logged["demonstrations/td_error"] > 0.0 and "demonstrations/td_error" not in not_logged
    assert "demonstrations/mean_priority" not in logged
    np.testing.assert_array_equal(ids, same_ids)
    assert (state[0] == same_state[0]).all() and state[1:] == same_state[1:]


def test_learning_can_start_at_the_first_step():
    model, _ = make_model(PERSAC)
    model.learn(3)
    assert model._n_updates >= 2 and model.replay_buffer.size() == 3


def test_pretraining_moves_the_target_network_as_often_as_learning():
    """The target network is copied every 20 steps and there is an update every 4 steps, so it is copied every 5 updates."""
    model, _ = make_model(PERDQN, train_freq=4, gradient_steps=1, target_update_interval=20)
    for n_updates in range(1, 11):
        before = th.cat([p.ravel().clone() for p in model.q_net_target.parameters()])
        model.pretrain(1)
        is_copied = not th.equal(th.cat([p.ravel() for p in model.q_net_target.parameters()]), before)
        assert is_copied == (n_updates % 5 == 0)


def normalized(**kwargs):
    """Make a model under a fresh VecNormalize, with 60 demonstrations of two episodes."""
    env = VecNormalize(make_vec_env("Pendulum-v1"), gamma=0.9)
    settings = dict(policy_kwargs=dict(net_arch=[8]), buffer_size=200, learning_starts=0, batch_size=16, seed=0, device="cpu")
    model = PERSAC("MlpPolicy", env, replay_buffer_kwargs=dict(demonstration_fraction=0.25), **{**settings, **kwargs})
    rng = np.random.default_rng(0)
    steps = [rng.normal([50.0, 0.0, -3.0], [5.0, 1.0, 0.1], (30, 2, 3)) for _ in range(2)]
    rewards = rng.normal(-100.0, 30.0, (30, 2))
    steps += [rng.uniform(-1, 1, (30, 2, 1)), rewards, np.zeros((30, 2), bool), [[{}, {}]] * 30]
    model.replay_buffer.add_demonstrations(*steps)
    return model, env, steps


def test_pretraining_begins_the_statistics_of_a_fresh_normalizer():
    """As many numbers would come from environments that make the same steps; a reset alone gives no statistics."""
    for is_reset in (True, False):
        model, env, (obs, _, _, rewards, _, _) = normalized()
        if is_reset:
            env.reset()
        model.pretrain(1)
        assert env.ret_rms.count == pytest.approx(60, abs=0.1)
        if not is_reset:
            np.testing.assert_allclose(env.obs_rms.mean, obs.reshape(-1, 3).mean(axis=0), rtol=1e-3, atol=1e-3)
            np.testing.assert_allclose(env.obs_rms.var, obs.reshape(-1, 3).var(axis=0), rtol=0.1)
        returns = np.zeros((30, 2))
        for t in range(30):
            returns[t] = rewards[t] + (0.9 * returns[t - 1] if t > 0 else 0.0)
        assert env.ret_rms.var == pytest.approx(returns.var(), rel=1e-2)
        batch = model.replay_buffer.sample(50, env=env)
        assert (batch.observations[batch.is_demonstration].abs() < 10).all()
        count = env.obs_rms.count
        model.pretrain(1)
        assert env.obs_rms.count == count


def test_learning_from_the_first_step_begins_the_statistics_of_a_fresh_normalizer():
    model, env, _ = normalized()
    model.learn(3)
    assert env.ret_rms.count == pytest.approx(63, abs=0.1)


def test_other_statistics_of_a_normalizer_stay():
    for seen in ("steps", "not training", "no demonstrations are drawn"):
        buffer_kwargs = dict(demonstration_fraction=0.0 if "drawn" in seen else 0.25)
        env = VecNormalize(make_vec_env("Pendulum-v1"), training=seen != "not training")
        if seen == "steps":
            env.reset()
            env.step(np.zeros((1, 1)))
        settings = dict(policy_kwargs=dict(net_arch=[8]), buffer_size=200, learning_starts=100, batch_size=16, device="cpu")
        model = PERSAC("MlpPolicy", env, replay_buffer_kwargs=buffer_kwargs, **settings)
        stored = type(model.replay_buffer)(10, model.observation_space, model.action_space)
        fill([stored], 10)
        stored.actions[:] = 0.0
        model.replay_buffer.add_demonstrations_from(stored)
        before = env.ret_rms.count
        model.learn(1)
        assert env.ret_rms.count == before + (seen != "not training"), seen


def test_the_progress_bar_of_pretraining_counts_updates(monkeypatch):
    """The bar is that of SB3's `learn`. Its end is the number of updates, also if they are made several at a time."""
    pytest.importorskip("rich", reason="needs the extra extra")
    import tqdm.rich

    bars = []

    class Bar:
        def __init__(self, total):
            self.total, self.counts, self.is_closed = total, [], False
            bars.append(self)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.is_closed = True

        def update(self, n):
            self.counts.append(n)

    monkeypatch.setattr(tqdm.rich, "tqdm", Bar)
    model, _ = make_model(PERSAC, gradient_steps=4, train_freq=4)
    model.pretrain(10)
    assert bars == []
    model.pretrain(10, progress_bar=True)
    (bar,) = bars
    assert (bar.total, bar.counts, bar.is_closed) == (10, [4, 4, 2], True)


def test_pretraining_without_demonstrations_is_refused():
    model = PERSAC("MlpPolicy", "Pendulum-v1", buffer_size=100, policy_kwargs=dict(net_arch=[8]))
    with pytest.raises(ValueError, match="needs demonstrations"):
        model.pretrain(10)
    with pytest.raises(ValueError, match="gradient_steps must be an integer of at least 1, not 0"):
        model.pretrain(0)


def test_pretraining_a_recurrent_model_is_refused():
    model = PERRecurrentDQN("MlpLstmPolicy", "CartPole-v1", buffer_size=100)
    with pytest.raises(NotImplementedError, match="a buffer of sequences has none"):
        model.pretrain(10)


def test_pretraining_needs_no_demonstration_fraction_and_logs_at_intervals():
    model, lines = make_model(PERSAC, gradient_steps=-1, train_freq=3)
    model.replay_buffer = type(model.replay_buffer).from_replay_buffer(model.replay_buffer, demonstration_fraction=0.0)
    model.pretrain(10, log_interval=4)
    assert len(lines) == 3 and model._n_updates == 10
    assert not model.replay_buffer.demonstrations.are_drawn


def test_the_share_follows_the_training_progress():
    model, _ = make_model(PERSAC, replay_buffer_kwargs=dict(demonstration_fraction_end=0.0))
    model.learn(20)
    assert model.replay_buffer.demonstrations.share.value == pytest.approx(0.0, abs=0.01)


def test_hindsight_learns_before_its_first_episode_has_ended():
    env = BitFlippingEnv(n_bits=3, continuous=False, max_steps=50)
    settings = dict(policy_kwargs=dict(net_arch=[8]), buffer_size=100, batch_size=8, train_freq=1, device="cpu")
    settings["replay_buffer_class"] = HerReplayBuffer
    expert = PERDQN("MultiInputPolicy", env, learning_starts=99, **settings).learn(30)
    with_share = dict(replay_buffer_kwargs=dict(demonstration_fraction=0.5), learning_starts=0)
    model = PERDQN("MultiInputPolicy", env, **with_share, **settings)
    model.replay_buffer.add_demonstrations_from(expert.replay_buffer)
    model.learn(3)
    assert model._n_updates >= 2


def test_a_saved_model_keeps_the_settings(tmp_path):
    model, _ = make_model(PERSAC, replay_buffer_kwargs=dict(demonstration_fraction_end=0.1))
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer.pkl")
    loaded = PERSAC.load(tmp_path / "model", env=gym.make("Pendulum-v1"))
    assert loaded.replay_buffer.settings == model.replay_buffer.settings
    loaded.load_replay_buffer(tmp_path / "buffer.pkl")
    assert len(loaded.replay_buffer.demonstrations) == 40


def test_demonstrations_that_are_not_drawn_change_no_update():
    models = []
    for with_demonstrations in (False, True):
        settings = dict(learning_starts=10, batch_size=16, policy_kwargs=dict(net_arch=[8]))
        model = PERSAC("MlpPolicy", "Pendulum-v1", buffer_size=100, **settings)
        if with_demonstrations:
            stored = type(model.replay_buffer)(10, model.observation_space, model.action_space)
            fill([stored], 5)
            stored.actions[:] = model.policy.scale_action(stored.actions)
            model.replay_buffer.add_demonstrations_from(stored)
        th.manual_seed(0)
        for layer in model.policy.modules():
            if isinstance(layer, th.nn.Linear):
                layer.reset_parameters()
        model.set_random_seed(0)
        with pytest.warns(UserWarning, match="draws none of them") if with_demonstrations else nullcontext():
            models.append(model.learn(25))
    assert th.equal(*map(parameters, models))
