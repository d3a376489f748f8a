"""Recurrent DQN: learning sees the recurrent states that acting had, and padding has no effect."""

import contextlib
import copy
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.save_util import save_to_pkl
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per import (
    R2D2,
    PERRecurrentDQN,
    PERRecurrentSAC,
    PrioritizedDictSequenceReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedSequenceReplayBuffer,
)
from sb3_per.algorithms.recurrent.networks import zero_states
from sb3_per.algorithms.recurrent.value_rescaling import rescale, unscale
from tests.helpers.algorithms import recorded
from tests.helpers.recurrent import (
    POLICIES,
    SMALL,
    Recorder,
    critic_loss,
    envs,
    histories,
    learn_with_seams,
    mean_return,
    spoiled,
)


def make(form: str = "box", n_envs: int = 2, **kwargs: Any) -> PERRecurrentDQN:
    return PERRecurrentDQN(POLICIES[form], envs(n_envs, form), **{**SMALL, **kwargs})


@pytest.fixture(scope="module")
def _learned() -> PERRecurrentDQN:
    return make().learn(200)


@pytest.fixture
def learned(_learned) -> PERRecurrentDQN:
    """Copy a model that has learned for 200 steps, and seed the generators."""
    set_random_seed(0)
    return copy.deepcopy(_learned)


def unrolled(network: Any, batch: Any) -> th.Tensor:
    """Compute the Q-values at all observations of windows."""
    return network(network.unroll(batch))


def q_by_hand(model: PERRecurrentDQN, ids: list[int], states: list[np.ndarray]) -> np.ndarray:
    """Compute Q-values step by step, from a recurrent state on."""
    tensors = tuple(th.as_tensor(state[:, None]) for state in states)
    found = []
    with th.no_grad():
        for id_ in ids:
            outputs, tensors = model.q_net.step(th.as_tensor(model.replay_buffer.seen[id_][0][None]), tensors)
            found.append(model.q_net(outputs)[0].numpy())
    return np.array(found)


@pytest.mark.parametrize("setting, n_layers", [(dict(exploration_fraction=1.0), 1), (dict(learning_starts=10_000), 2)])
def test_unrolled_windows_have_the_states_of_acting(setting, n_layers):
    """
    Compare Q-values of windows with those computed step by step from the start of the episode. The weights do not change.
    Cover random actions, ends of episodes and a second `learn`.
    """
    policy_kwargs = dict(lstm_hidden_size=8, net_arch=[8], n_lstm_layers=n_layers)
    model = make(replay_buffer_class=Recorder, gradient_steps=0, policy_kwargs=policy_kwargs, **setting)
    learn_with_seams(model)
    buffer = model.replay_buffer
    batch = buffer.sample(24)
    with th.no_grad():
        q_values = unrolled(model.q_net, batch).numpy()
    n_full = 0
    for i, ids, length, prefix_start in histories(buffer, batch):
        zeros = [state[:, 0] for state in zero_states(model.policy.state_shapes, 1)]
        expected = q_by_hand(model, ids, zeros)[-length:]
        np.testing.assert_allclose(q_values[:length, i], expected, rtol=1e-4, atol=1e-5)
        n_full += len(ids) - length > buffer.burn_in
        # What was stored is what acting had before the first step of the prefix.
        for state, acting in zip(batch.states, buffer.seen[prefix_start][1], strict=True):
            np.testing.assert_array_equal(state[:, i].numpy(), acting)
    assert n_full > 3  # with a stored state that is not zero


def test_without_stored_states_windows_start_from_zeros(learned):
    model = make(replay_buffer_kwargs=dict(store_state=False), gradient_steps=0).learn(100)
    assert all((state == 0).all() for state in model.replay_buffer.sample(20).states)
    assert any((state != 0).any() for state in learned.replay_buffer.sample(20).states)


def gradients(model: PERRecurrentDQN, batch: Any) -> list[np.ndarray]:
    model.policy.zero_grad()
    loss, _ = critic_loss(model, batch)
    loss.backward()
    return [parameter.grad.numpy().copy() for parameter in model.q_net.parameters()]


def test_burn_in_has_no_gradient(learned):
    """Neither the observations of the prefix nor the states before the prefix receive gradients."""
    model = learned
    batch = model.replay_buffer.sample(16)
    assert (batch.prefix_lengths > 0).any()
    batch.prefix.requires_grad_(True)
    for state in batch.states:
        state.requires_grad_(True)
    batch.observations.requires_grad_(True)
    critic_loss(model, batch)[0].backward()
    assert batch.prefix.grad is None
    assert (batch.observations.grad != 0).any()
    # Windows without a prefix begin with the states themselves, which are data.
    has_prefix = batch.prefix_lengths > 0
    for state in batch.states:
        assert state.grad is None or (state.grad[:, has_prefix] == 0).all()


def test_burn_in_warms_up_each_network(learned):
    """The states after the prefix depend on the prefix, in the online and in the target network."""
    model = learned
    batch = model.replay_buffer.sample(16)
    other = batch._replace(prefix=batch.prefix + 1.0)
    has_prefix = (batch.prefix_lengths > 0).numpy()
    with th.no_grad():
        for net in (model.q_net, model.q_net_target):
            changed = (unrolled(net, batch) - unrolled(net, other)).abs().amax(dim=(0, 2)).numpy()
            np.testing.assert_array_equal(changed > 1e-5, has_prefix)
        before = model.td_errors(batch)
        for parameter in model.q_net_target.lstm.parameters():
            parameter.add_(0.1)
        assert not th.equal(model.td_errors(batch), before)


def test_nan_in_the_padding_has_no_effect():
    """
    Loss, gradients and TD errors do not change, except for rounding: an LSTM may round differently without gradient, as
    `td_errors` has it.
    """
    model = make("dict", gradient_steps=0).learn(120)
    batch = model.replay_buffer.sample(32)
    assert not batch.mask.all()
    bad = spoiled(batch)
    loss, td_errors = critic_loss(model, batch)
    bad_loss, bad_td_errors = critic_loss(model, bad)
    for actual, expected in ((bad_loss, loss), (bad_td_errors, td_errors), (model.td_errors(bad), td_errors.detach())):
        th.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert (td_errors[~batch.mask] == 0).all()
    for actual, expected in zip(gradients(model, bad), gradients(model, batch), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("value_rescaling, double_q, n_steps, gamma", [(False, True, 3, 0.99), (True, False, 1, 0.8)])
def test_targets_and_loss_equal_a_scalar_reference(value_rescaling, double_q, n_steps, gamma):
    """The reference goes step by step, with n-step returns, terminations, truncations, weights, and the mean over steps."""
    model = make(double_q=double_q, value_rescaling=value_rescaling, n_steps=n_steps, gamma=gamma).learn(200)
    assert (model.replay_buffer.n_steps, model.replay_buffer.gamma) == (n_steps, gamma)
    with th.no_grad():
        for parameter in model.q_net_target.parameters():
            parameter.add_(0.05 * th.randn_like(parameter))
    batch = model.replay_buffer.sample(24)
    assert batch.dones.any() and not batch.mask.all()
    with th.no_grad():
        q, target_q = (unrolled(net, batch).numpy() for net in (model.q_net, model.q_net_target))
    total, count = 0.0, 0
    td_errors = model.td_errors(batch)
    for t in range(model.sequence_length):
        for i in range(24):
            if not batch.mask[t, i]:
                continue
            k = int(batch.next_steps[t, i])
            best = q[k, i].argmax() if double_q else target_q[k, i].argmax()
            value = th.tensor(target_q[k, i, best])
            value = float(unscale(value)) if value_rescaling else float(value)
            target = float(batch.rewards[t, i] + (1 - batch.dones[t, i]) * model.gamma ** (k - t) * value)
            target = float(rescale(th.tensor(target))) if value_rescaling else target
            td_error = target - q[t, i, int(batch.actions[t, i, 0])]
            assert float(td_errors[t, i]) == pytest.approx(td_error, abs=1e-5)
            loss = 0.5 * td_error**2 if abs(td_error) < 1 else abs(td_error) - 0.5
            total, count = total + float(batch.weights[i]) * loss, count + 1
    assert float(critic_loss(model, batch)[0].detach()) == pytest.approx(total / count, rel=1e-5)


def test_window_priorities_mix_maximum_and_mean_of_td_errors():
    """Priorities come from the TD errors before the update: eta max + (1 - eta) mean over the steps of the window."""
    model = make(replay_buffer_kwargs=dict(eta=0.7, epsilon=0.01, alpha=1.0)).learn(100)
    buffer = model.replay_buffer
    batch = buffer.sample(8)
    buffer.sample = lambda *args, **kwargs: batch
    td_errors = critic_loss(model, batch)[1].detach().abs().numpy()
    model.train(1)
    mask = batch.mask.numpy()
    for i, id_ in enumerate(batch.indices):
        if id_ in batch.indices[i + 1 :]:
            continue
        errors = td_errors[mask[:, i], i]
        expected = 0.7 * errors.max() + 0.3 * errors.mean() + 0.01
        assert buffer.masses.reshape(-1)[id_ % buffer.masses.size] == pytest.approx(expected, rel=1e-4)


# ---- predict


@pytest.mark.parametrize("form", ["box", "dict"])
def test_predict_takes_and_returns_states(form):
    """Cover no state, one observation or several, episode starts by environment, and deterministic actions."""
    model, env = make(form, 3), envs(3, form)
    obs = env.reset()
    one = {key: part[0] for key, part in obs.items()} if isinstance(obs, dict) else obs[0]
    action, state = model.predict(one, deterministic=True)
    assert action.shape == () and [part.shape for part in state] == [(1, 1, 8)] * 2
    actions, states = model.predict(obs, deterministic=True)
    assert actions.shape == (3,) and [part.shape for part in states] == [(1, 3, 8)] * 2
    assert actions[0] == action
    np.testing.assert_allclose(states[0][:, :1], state[0], rtol=1e-4, atol=1e-5)
    zeros = zero_states(model.policy.state_shapes, 3)
    restarted = model.predict(obs, states, np.array([False, True, False]), deterministic=True)[1]
    fresh, gone_on = (model.predict(obs, before, deterministic=True)[1] for before in (zeros, states))
    for i, expected in enumerate((gone_on, fresh, gone_on)):
        np.testing.assert_allclose(restarted[0][:, i], expected[0][:, i], rtol=1e-4, atol=1e-5)
    assert all(np.array_equal(a, b) for a, b in zip(states, model.predict(obs, None, np.ones(3, bool))[1], strict=True))


def test_environments_explore_independently_without_changing_the_state():
    model, env = make(n_envs=4), envs(4)
    obs = env.reset()
    greedy, state = model.predict(obs, deterministic=True)
    model.exploration_rate = 0.5
    np.random.seed(0)
    model.action_space.seed(0)
    differ = np.zeros(5, int)
    for _ in range(300):
        actions, explored = model.predict(obs)
        differ[(actions != greedy).sum()] += 1
        for a, b in zip(explored, state, strict=True):
            np.testing.assert_array_equal(a, b)
    # Binomial with p = 0.5 * 2 / 3, not all or nothing.
    assert differ[1] > 60 and differ[0] < 150 and differ[4] < 30
    single = {int(model.predict(obs[0])[0]) for _ in range(60)}
    assert single == {0, 1, 2}


def test_evaluate_policy_passes_the_state_on(learned):
    model = learned
    env = envs(1)
    model.exploration_rate = 1.0
    env.seed(5)
    mean = evaluate_policy(model, env, 4, deterministic=True, warn=False)[0]
    env.seed(5)
    assert mean == pytest.approx(mean_return(model, env, 4, deterministic=True), rel=1e-6)


# ---- the algorithm as a whole


@pytest.mark.parametrize("algorithm", [PERRecurrentDQN, PERRecurrentSAC])
def test_no_update_is_made_before_the_first_window_is_complete(algorithm, tmp_path):
    """From the first step on with ``learning_starts=0``, and in a run that continues without its buffer."""
    env = envs(2, is_continuous=algorithm is PERRecurrentSAC)
    arguments = copy.deepcopy({**SMALL, "train_freq": 1, "learning_starts": 0})
    model = algorithm("MlpLstmPolicy", env, **arguments).learn(4)
    assert model._n_updates == 0
    model.learn(32, reset_num_timesteps=False)
    assert model._n_updates > 0
    model.save(tmp_path / "model")
    resumed = algorithm.load(tmp_path / "model", env=env)
    before = resumed._n_updates
    resumed.learn(4, reset_num_timesteps=False)
    assert resumed._n_updates == before
    resumed.learn(32, reset_num_timesteps=False)
    assert resumed._n_updates > before


def test_an_update_without_any_step_is_an_error():
    model = make()
    model.set_logger(Logger(folder=None, output_formats=[]))
    with pytest.raises(ValueError, match="Cannot sample"):
        model.train(1)


def test_a_saved_model_continues_with_its_buffer_and_states(tmp_path):
    """The networks change while learning, the zip and the buffer are loaded with the states, and learning continues."""
    form, n_envs = "dict", 2
    model = make(form, n_envs)
    before = copy.deepcopy(list(model.q_net.parameters()))
    model.learn(120, callback=EvalCallback(envs(1, form), n_eval_episodes=1, eval_freq=40, verbose=0, warn=False))
    assert all(not th.equal(a, b) for a, b in zip(model.q_net.parameters(), before, strict=True))
    assert type(model.replay_buffer) is PrioritizedDictSequenceReplayBuffer
    metrics = model.logger.name_to_value
    assert 0 < metrics["per/valid_fraction"] <= 1 and metrics["per/replay_ratio"] > 0
    model.save(tmp_path / "m")
    model.save_replay_buffer(tmp_path / "b")
    loaded = PERRecurrentDQN.load(tmp_path / "m", env=envs(n_envs, form), device="cpu")
    assert (loaded.sequence_length, loaded.burn_in, loaded.n_steps) == (6, 4, 2)
    loaded.load_replay_buffer(tmp_path / "b")
    obs = envs(n_envs, form).reset()
    for a, b in zip(loaded.predict(obs, deterministic=True)[1], model.predict(obs, deterministic=True)[1], strict=True):
        np.testing.assert_array_equal(a, b)
    loaded.learn(24, reset_num_timesteps=False)
    policy = type(model.policy).load
    model.policy.save(tmp_path / "p")
    np.testing.assert_array_equal(policy(tmp_path / "p").predict(obs)[0], model.predict(obs, deterministic=True)[0])


def test_the_replay_ratio_is_that_of_the_run(tmp_path):
    """It counts from 0 where SB3 counts the steps of the environment from 0, and goes on where SB3 goes on."""
    model = make()
    batches = recorded(model.replay_buffer)

    def learned_per_step(model: PERRecurrentDQN) -> float:
        return sum(int(batch.mask.sum()) for batch in batches) / model.num_timesteps

    model.learn(120)
    assert model.logger.name_to_value["per/replay_ratio"] == pytest.approx(learned_per_step(model))
    model.learn(40, reset_num_timesteps=False)
    assert model.logger.name_to_value["per/replay_ratio"] == pytest.approx(learned_per_step(model))
    batches.clear()
    model.learn(120)
    assert model.logger.name_to_value["per/replay_ratio"] == pytest.approx(learned_per_step(model))
    model.save(tmp_path / "m")
    loaded = PERRecurrentDQN.load(tmp_path / "m", env=envs(), device="cpu")
    batches = recorded(loaded.replay_buffer)
    loaded.learn(120)
    assert loaded.logger.name_to_value["per/replay_ratio"] == pytest.approx(learned_per_step(loaded))


def test_a_loaded_buffer_has_the_settings_of_the_model(learned, tmp_path):
    save_to_pkl(tmp_path / "b.pkl", learned.replay_buffer)
    learned.save_replay_buffer(tmp_path / "b")
    for name, value, file in (("eta", 0.3, "b.pkl"), ("sequence_period", 2, "b"), ("store_state", False, "b")):
        other = make(replay_buffer_kwargs={name: value})
        missing = pytest.warns(UserWarning, match="states of the stored steps")
        named = pytest.warns(UserWarning, match=f"{name}=.*this model: {value}")
        with missing if name == "sequence_period" else contextlib.nullcontext(), named:
            other.load_replay_buffer(tmp_path / file)
        assert getattr(other.replay_buffer, name) == value
        other.learn(24, reset_num_timesteps=False)


def test_observations_are_stored_as_they_are_and_normalized_when_drawn():
    env = VecNormalize(envs(2), clip_obs=0.01)
    model = PERRecurrentDQN("MlpLstmPolicy", env, **SMALL).learn(100)
    assert np.abs(model.replay_buffer.observations[:50]).max() > 0.01
    observations = model.replay_buffer.sample(4, env=env).observations
    assert observations.shape == (8, 4, 3) and 0 < observations.abs().max() <= 0.01


def test_the_settings_of_r2d2_fit_the_constructor():
    model = PERRecurrentDQN("MlpLstmPolicy", envs(), **{**R2D2, "buffer_size": 2_000, "device": "cpu"})
    buffer = model.replay_buffer
    assert (buffer.sequence_length, buffer.burn_in, buffer.sequence_period, buffer.eta) == (80, 40, 40, 0.9)
    settings = buffer.settings
    assert (settings.beta_start, settings.beta_end, buffer.scheme.alpha, model.gamma) == (0.6, 0.6, 0.9, 0.997)
    assert model.policy.optimizer.defaults["eps"] == 1e-3 and model.value_rescaling


def test_bad_settings_are_refused():
    for kwargs, error in (
        (dict(sequence_length=0), ValueError),
        (dict(burn_in=-1), ValueError),
        (dict(replay_buffer_kwargs=dict(sequence_length=7)), ValueError),
        (dict(replay_buffer_kwargs=dict(scheme="lap")), NotImplementedError),
        (dict(replay_buffer_kwargs=dict(eta=2.0)), ValueError),
        (dict(policy_kwargs=dict(lstm_kwargs=dict(bidirectional=True))), ValueError),
        (dict(optimize_memory_usage=True), NotImplementedError),
    ):
        with pytest.raises(error):
            make(**kwargs)


# ---- buffers that are assigned


def test_a_buffer_that_the_agent_cannot_learn_from_is_refused(learned):
    buffer = learned.replay_buffer
    arguments = (400, buffer.observation_space, buffer.action_space, "cpu", 2)
    for wrong, error in (
        (PrioritizedReplayBuffer(*arguments), NotImplementedError),
        (PrioritizedSequenceReplayBuffer(*arguments, sequence_length=6, state_shapes=((1, 16), (1, 16))), ValueError),
    ):
        with pytest.raises(error, match=f"PERRecurrentDQN with {type(wrong).__name__}"):
            learned.replay_buffer = wrong
        assert learned.replay_buffer is buffer


@pytest.mark.parametrize("cls, n_steps", [(ReplayBuffer, 2), (NStepReplayBuffer, 5)])
def test_a_buffer_of_sb3_becomes_one_of_sequences(learned, cls, n_steps):
    buffer = learned.replay_buffer
    arguments = {} if cls is ReplayBuffer else dict(n_steps=5, gamma=0.9)
    with pytest.warns(UserWarning, match=f"The empty {cls.__name__} became a PrioritizedSequenceReplayBuffer"):
        learned.replay_buffer = cls(400, buffer.observation_space, buffer.action_space, "cpu", 2, **arguments)
    made = learned.replay_buffer
    assert (made.n_steps, made.gamma) == (n_steps, arguments.get("gamma", learned.gamma))
    assert (made.sequence_length, made.burn_in, made.state_shapes) == (6, 4, buffer.state_shapes)
    learned.learn(100)
    assert made.can_draw()
