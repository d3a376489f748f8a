"""Recurrent SAC: the tests of recurrent DQN, for the actor, the critics and the target critics."""

import copy
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per import PERRecurrentSAC, PrioritizedSequenceReplayBuffer
from sb3_per.algorithms.recurrent.networks import transitions_in, zero_states
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
    transitions_of,
)


def make(form: str = "box", n_envs: int = 2, **kwargs: Any) -> PERRecurrentSAC:
    # Copied: SB3 writes into policy_kwargs.
    settings = copy.deepcopy({**SMALL, **kwargs})
    return PERRecurrentSAC(POLICIES[form], envs(n_envs, form, is_continuous=True), **settings)


@pytest.fixture(scope="module")
def _learned() -> PERRecurrentSAC:
    return make().learn(200)


@pytest.fixture
def learned(_learned) -> PERRecurrentSAC:
    """Copy a model that has learned for 200 steps, and seed the generators."""
    set_random_seed(0)
    return copy.deepcopy(_learned)


def networks(model: PERRecurrentSAC) -> tuple[Any, ...]:
    return model.actor, model.critic, model.critic_target


def heads(network: Any, features: th.Tensor, actions: th.Tensor) -> np.ndarray:
    """Compute mean and standard deviation of an actor, or Q-values, of shape (n, ...)."""
    with th.no_grad():
        found = network(features, actions) if hasattr(network, "q_networks") else network.get_action_dist_params(features)[:2]
        return th.cat([part.expand(len(features), -1) for part in found], dim=1).numpy()


# ---- the states


@pytest.mark.parametrize("setting, n_layers", [({}, 2), (dict(action_noise=NormalActionNoise(np.zeros(2), np.ones(2))), 1)])
def test_unrolled_windows_have_the_states_of_acting(setting, n_layers):
    """Compare actor, critics and target critics, as for DQN. The target critics still equal the critics here."""
    policy_kwargs = dict(lstm_hidden_size=8, net_arch=[8], n_lstm_layers=n_layers)
    model = make(replay_buffer_class=Recorder, gradient_steps=0, policy_kwargs=policy_kwargs, **setting)
    learn_with_seams(model, is_continuous=True)
    buffer = model.replay_buffer
    batch = buffer.sample(16)
    with th.no_grad():
        unrolled = [network.unroll(batch) for network in networks(model)]
    n_full = 0
    for i, ids, length, prefix_start in histories(buffer, batch):
        for network, features in zip(networks(model), unrolled, strict=True):
            own = model.actor.own_states if network is model.actor else model.critic.own_states
            states = tuple(map(th.as_tensor, zero_states(model.policy.state_shapes[own], 1)))
            expected = []
            for id_ in ids:
                obs, acting, _ = buffer.seen[id_]
                for state, of_acting in zip(states, acting[own], strict=True):
                    np.testing.assert_allclose(state[:, 0], of_acting, rtol=1e-4, atol=1e-5)
                with th.no_grad():
                    outputs, states = network.step(th.as_tensor(obs[None]), states)
                expected.append(outputs)
            by_hand = th.cat(expected[-length:])
            np.testing.assert_allclose(features[:length, i], by_hand, rtol=1e-4, atol=1e-5)
            actions = batch.actions[:length, i]
            np.testing.assert_allclose(
                heads(network, features[:length, i], actions), heads(network, by_hand, actions), rtol=1e-4, atol=1e-5
            )
        n_full += len(ids) - length > buffer.burn_in
        assert len(batch.states) == 4
        for state, acting in zip(batch.states, buffer.seen[prefix_start][1], strict=True):
            np.testing.assert_array_equal(state[:, i].numpy(), acting)
    assert n_full > 3


def actor_loss(model: PERRecurrentSAC, batch: Any) -> th.Tensor:
    observations = model._actor_observations(transitions_of(model, batch))
    actions, log_prob = model.actor.action_log_prob(observations)
    q = th.cat(model.critic(observations, actions), dim=1).min(dim=1).values
    return (log_prob - q).mean()


def test_burn_in_has_no_gradient(learned):
    """This holds for the loss of the critics and for the loss of the actor."""
    model = learned
    batch = model.replay_buffer.sample(16)
    has_prefix = batch.prefix_lengths > 0
    assert has_prefix.any()
    for loss_of in (lambda m, b: critic_loss(m, b)[0], actor_loss):
        tensors = [batch.prefix, batch.observations, *batch.states]
        for tensor in tensors:
            tensor.grad = None
            tensor.requires_grad_(True)
        loss_of(model, batch).backward()
        assert batch.prefix.grad is None
        assert (batch.observations.grad != 0).any()
        for state in batch.states:
            assert state.grad is None or (state.grad[:, has_prefix] == 0).all()


def test_burn_in_warms_up_each_network(learned):
    """The target critics have an LSTM of their own."""
    model = learned
    batch = model.replay_buffer.sample(16)
    has_prefix = (batch.prefix_lengths > 0).numpy()
    other = batch._replace(prefix=batch.prefix + 1.0)
    with th.no_grad():
        for network in networks(model):
            changed = (network.unroll(batch) - network.unroll(other)).abs().amax(dim=(0, 2)).numpy()
            np.testing.assert_array_equal(changed > 1e-5, has_prefix)
        # Other states show which states the actor uses, and which the critics use.
        for network, own in zip(networks(model), ([0, 1], [2, 3], [2, 3]), strict=True):
            for i in range(4):
                states = tuple(state + 1.0 * (i == j) for j, state in enumerate(batch.states))
                is_same = th.equal(network.unroll(batch), network.unroll(batch._replace(states=states)))
                assert is_same == (i not in own)
        before = [network.unroll(batch) for network in networks(model)]
        for parameter in model.critic_target.lstm.parameters():
            parameter.add_(0.1)
        is_same = [th.equal(a, network.unroll(batch)) for a, network in zip(before, networks(model), strict=True)]
        assert is_same == [True, True, False]


def everything(model: PERRecurrentSAC) -> list[th.Tensor]:
    return [*model.policy.state_dict().values(), model.log_ent_coef.detach()]


def test_nan_in_the_padding_has_no_effect(learned):
    """A gradient step gives the same networks, TD errors and metrics, except for rounding."""
    model = learned
    batch = model.replay_buffer.sample(32)
    assert not batch.mask.all()
    bad = spoiled(batch)
    bad = bad._replace(actions=th.where(batch.mask[..., None], batch.actions, th.tensor(np.nan)))
    parameters, log_ent_coef = copy.deepcopy(model.get_parameters()), model.log_ent_coef.detach().clone()
    found = []
    for windows in (batch, bad):
        model.set_parameters(copy.deepcopy(parameters))
        with th.no_grad():
            model.log_ent_coef.copy_(log_ent_coef)
        th.manual_seed(0)
        td_errors, metrics = model._update(windows, 0)
        assert (td_errors[~batch.mask] == 0).all() and (td_errors[batch.mask] != 0).all()
        del metrics["per/replay_ratio"]  # over all steps so far
        found.append([td_errors.detach().clone(), *metrics.values(), *(part.clone() for part in everything(model))])
    for actual, expected in zip(found[1], found[0], strict=True):
        th.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert not th.equal(found[0][-1], log_ent_coef)


def test_steps_are_selected_and_put_back_into_windows(learned):
    batch = learned.replay_buffer.sample(20)
    times = th.arange(8).reshape(8, 1) * 100 + th.arange(20)
    transitions = transitions_in(batch._replace(rewards=times[:6].float()), {})
    numbers, places = transitions.rewards.long(), times.flatten()
    steps, windows = numbers[:, 0] // 100, numbers[:, 0] % 100
    assert len(steps) == batch.mask.sum()
    assert th.equal(places[transitions.observations.places], numbers[:, 0])
    assert th.equal(places[transitions.next_observations.places], batch.next_steps[steps, windows] * 100 + windows)
    assert th.equal(transitions.observations.in_windows(numbers)[..., 0], th.where(batch.mask, times[:6], 0))
    assert th.equal(transitions.weights, batch.weights[windows])
    np.testing.assert_array_equal(transitions.indices, batch.indices[windows])


# ---- targets and losses


@pytest.mark.parametrize("n_steps, gamma", [(3, 0.99), (1, 0.8)])
def test_losses_equal_a_scalar_reference(n_steps, gamma):
    """The reference goes step by step, with n-step returns, terminations, truncations, twins, entropy, weights and means."""
    model = make(n_steps=n_steps, gamma=gamma, tau=0.0, ent_coef="auto_0.3").learn(200)
    assert (model.replay_buffer.n_steps, model.replay_buffer.gamma) == (n_steps, gamma)
    with th.no_grad():
        for parameter in model.critic_target.parameters():
            parameter.add_(0.1 * th.randn_like(parameter))
    batch = model.replay_buffer.sample(24)
    assert batch.dones.any() and not batch.mask.all()
    # Nothing learns, so that all three are of the same networks.
    for parameter in (*model.policy.parameters(), model.log_ent_coef):
        parameter.requires_grad_(False)
    with th.no_grad():
        actor, critic, target = (network.unroll(batch) for network in networks(model))
    ent_coef = float(model.log_ent_coef.detach().exp())
    n_learned = int(batch.mask.sum())
    th.manual_seed(3)
    noise, next_noise = (th.normal(th.zeros(n_learned, 2), th.ones(n_learned, 2)).numpy() for _ in range(2))
    th.manual_seed(3)
    td_errors, metrics = model._update(batch, 0)
    losses = [float(metrics[name].detach()) for name in ("critic_loss", "ent_coef_loss", "actor_loss")]

    def act(features: th.Tensor, eps: np.ndarray) -> tuple[th.Tensor, float]:
        mean, log_std = np.split(heads(model.actor, features[None], None)[0], 2)
        action = np.tanh(mean + np.exp(log_std) * eps)
        log_prob = -0.5 * eps**2 - log_std - 0.5 * np.log(2 * np.pi) - np.log(1 - action**2 + 1e-6)
        return th.as_tensor(action[None]), float(log_prob.sum())

    def q_of(network: Any, features: th.Tensor, action: th.Tensor) -> np.ndarray:
        return heads(network, features[None], action)[0]

    weighted_loss, sums, k = 0.0, np.zeros(2), 0
    for t in range(model.sequence_length):
        for i in range(24):
            if not batch.mask[t, i]:
                assert (td_errors[t, i] == 0).all()
                continue
            after = int(batch.next_steps[t, i])
            action, log_prob = act(actor[after, i], next_noise[k])
            value = q_of(model.critic_target, target[after, i], action).min() - ent_coef * log_prob
            y = float(batch.rewards[t, i] + (1 - batch.dones[t, i]) * model.gamma ** (after - t) * value)
            errors = y - q_of(model.critic, critic[t, i], batch.actions[t, i][None])
            np.testing.assert_allclose(td_errors[t, i].detach(), errors, atol=1e-4)
            weighted_loss += float(batch.weights[i]) * 0.5 * (errors**2).sum() / n_learned

            action, log_prob = act(actor[t, i], noise[k])
            sums[0] -= np.log(ent_coef) * (log_prob + model.target_entropy)
            sums[1] += ent_coef * log_prob - q_of(model.critic, critic[t, i], action).min()
            k += 1
    assert losses == pytest.approx([weighted_loss, *sums / n_learned], rel=1e-4)


def test_window_priorities_mix_maximum_and_mean_of_td_errors():
    """The error of a step is the mean over the critics; that of a window is eta max + (1 - eta) mean over its steps."""
    model = make(replay_buffer_kwargs=dict(eta=0.7, epsilon=0.01, alpha=1.0)).learn(100)
    buffer, batch, found = model.replay_buffer, model.replay_buffer.sample(8), []
    update = buffer.update_priorities
    buffer.sample = lambda *args, **kwargs: batch
    buffer.update_priorities = lambda ids, errors: found.append(errors) or update(ids, errors)
    model.train(1)
    td_errors = found[0].abs().numpy().mean(axis=2)
    for i, id_ in enumerate(batch.indices):
        errors = td_errors[batch.mask.numpy()[:, i], i]
        if id_ not in batch.indices[i + 1 :]:
            expected = 0.7 * errors.max() + 0.3 * errors.mean() + 0.01
            assert buffer.masses.reshape(-1)[id_ % buffer.masses.size] == pytest.approx(expected, rel=1e-4)


# ---- predict


def test_predict_takes_and_returns_states():
    """Cover no state, one observation or several, and episode starts by environment. The returned states are the actor's."""
    model, env = make("dict", 3), envs(3, "dict", is_continuous=True)
    obs = env.reset()
    action, state = model.predict({key: part[0] for key, part in obs.items()}, deterministic=True)
    assert action.shape == (2,) and [part.shape for part in state] == [(1, 1, 8)] * 2
    actions, states = model.predict(obs, deterministic=True)
    assert actions.shape == (3, 2) and [part.shape for part in states] == [(1, 3, 8)] * 2
    np.testing.assert_allclose(actions[0], action, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(states[0][:, :1], state[0], rtol=1e-4, atol=1e-5)
    restarted = model.predict(obs, states, np.array([False, True, False]), deterministic=True)
    fresh, gone_on = (model.predict(obs, before, deterministic=True) for before in (None, states))
    for i, expected in enumerate((gone_on, fresh, gone_on)):
        np.testing.assert_allclose(restarted[0][i], expected[0][i], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(restarted[1][0][:, i], expected[1][0][:, i], rtol=1e-4, atol=1e-5)
    assert not np.allclose(fresh[1][0], gone_on[1][0])
    # A sample is another action within the bounds, and the same state.
    model.action_space.seed(0)
    samples = [model.predict(obs, states) for _ in range(20)]
    assert np.std([each[0] for each in samples], axis=0).min() > 0.1
    assert np.abs([each[0] for each in samples]).max() <= 2.0
    assert all(np.array_equal(each[1][0], gone_on[1][0]) for each in samples)


def test_evaluate_policy_passes_the_state_on(learned):
    model, env = learned, envs(1, is_continuous=True)
    for deterministic in (True, False):
        env.seed(5)
        th.manual_seed(0)
        mean = evaluate_policy(model, env, 4, deterministic=deterministic, warn=False)[0]
        env.seed(5)
        th.manual_seed(0)
        assert mean == pytest.approx(mean_return(model, env, 4, deterministic=deterministic), rel=1e-6)


# ---- the algorithm as a whole


def test_a_saved_model_continues_with_its_buffer_and_states(tmp_path):
    """The networks change while learning, the zip and the buffer are loaded with the states, and learning continues."""
    form, n_envs = "image", 1
    model = make(form, n_envs, lstm_learning_rate=1e-3)
    before = copy.deepcopy(list(model.policy.parameters()))
    callback = EvalCallback(envs(1, form, is_continuous=True), n_eval_episodes=1, eval_freq=90, verbose=0, warn=False)
    model.learn(100, callback=callback)
    assert all(not th.equal(a, b) for a, b in zip(model.policy.parameters(), before, strict=True))
    assert type(model.replay_buffer) is PrioritizedSequenceReplayBuffer and len(model.replay_buffer.state_shapes) == 4
    metrics = model.logger.name_to_value
    assert 0 < metrics["per/valid_fraction"] <= 1 and metrics["per/replay_ratio"] > 0
    assert {"train/actor_loss", "train/critic_loss", "train/ent_coef", "train/ent_coef_loss"} <= set(metrics)
    model.save(tmp_path / "m")
    model.save_replay_buffer(tmp_path / "b")
    loaded = PERRecurrentSAC.load(tmp_path / "m", env=envs(n_envs, form, is_continuous=True), device="cpu")
    assert (loaded.sequence_length, loaded.burn_in, loaded.n_steps, loaded.lstm_learning_rate) == (6, 4, 2, 1e-3)
    loaded.load_replay_buffer(tmp_path / "b")
    obs = envs(n_envs, form, is_continuous=True).reset()
    action, states = model.predict(obs, deterministic=True)
    model.policy.save(tmp_path / "p")
    for other in (loaded, type(model.policy).load(tmp_path / "p")):
        np.testing.assert_array_equal(other.predict(obs, deterministic=True)[0], action)
        for a, b in zip(other.predict(obs, deterministic=True)[1], states, strict=True):
            np.testing.assert_array_equal(a, b)
    loaded.learn(16, reset_num_timesteps=False)


def test_lstm_learning_rate_applies_only_to_lstms():
    """The rate is a number or a schedule. Every parameter is in exactly one group."""

    def rates(model: PERRecurrentSAC) -> list[list[float]]:
        return [[group["lr"] for group in network.optimizer.param_groups] for network in networks(model)[:2]]

    model = make(learning_rate=1e-3, lstm_learning_rate=lambda progress: 0.1 * progress).learn(80)
    assert [rate[0] for rate in rates(model)] == [1e-3] * 2
    assert all(0.0 <= rate[1] < 0.1 / 3 for rate in rates(model))
    for network in networks(model)[:2]:
        others, of_lstm = ({id(p) for p in group["params"]} for group in network.optimizer.param_groups)
        assert of_lstm == {id(p) for p in network.lstm.parameters()}
        assert others == {id(p) for p in network.parameters()} - of_lstm
    assert rates(make(learning_rate=1e-3).learn(80)) == [[1e-3] * 2] * 2


def test_training_works_with_other_settings():
    for kwargs in (
        dict(use_sde=True, sde_sample_freq=4, use_sde_at_warmup=True),
        dict(ent_coef=0.1, replay_buffer_kwargs=dict(scheme="uniform", store_state=False)),
        dict(sequence_length=1, burn_in=0, policy_kwargs=dict(lstm_hidden_size=8, net_arch=[8], n_critics=3)),
    ):
        model = make(**kwargs).learn(100)
        assert model._n_updates > 0 and all(part.isfinite().all() for part in model.policy.state_dict().values())
        evaluate_policy(model, envs(1, is_continuous=True), 1, deterministic=False, warn=False)


def test_a_shared_extractor_learns_from_the_actor_only():
    """This is as in SB3. The critics' LSTM learns from the critics."""
    policy_kwargs = dict(lstm_hidden_size=8, net_arch=[8], share_features_extractor=True)
    model = make("image", policy_kwargs=policy_kwargs, gradient_steps=0).learn(80)
    assert model.critic.features_extractor is model.actor.features_extractor
    batch = model.replay_buffer.sample(8)
    model.policy.zero_grad()
    critic_loss(model, batch)[0].backward()
    assert all(p.grad is None for p in model.actor.features_extractor.parameters())
    assert all((p.grad != 0).any() for p in model.critic.lstm.parameters())
    model.policy.zero_grad()
    actor_loss(model, batch).backward()
    assert any((p.grad != 0).any() for p in model.actor.features_extractor.parameters())


def test_observations_are_stored_as_they_are_and_normalized_when_drawn():
    env = VecNormalize(envs(2, is_continuous=True), clip_obs=0.01)
    model = PERRecurrentSAC("MlpLstmPolicy", env, **copy.deepcopy(SMALL)).learn(100)
    assert np.abs(model.replay_buffer.observations[:50]).max() > 0.01
    observations = model.replay_buffer.sample(4, env=env).observations
    assert observations.shape == (8, 4, 3) and 0 < observations.abs().max() <= 0.01


def test_bad_settings_are_refused():
    for kwargs in (
        dict(policy_kwargs=dict(lstm_kwargs=dict(bidirectional=True))),
        dict(lstm_learning_rate=-1e-3),
        dict(lstm_learning_rate="fast"),
        dict(replay_buffer_kwargs=dict(burn_in=5)),
    ):
        with pytest.raises(ValueError, match=r"bidirectional|lstm_learning_rate|burn_in"):
            make(**kwargs)
