"""An update is that of SBX with weights, and priorities come from its TD errors."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch as th
from stable_baselines3.common.logger import Logger

from sb3_per.algorithms.metrics import weight_metrics
from sb3_per.sbx.jax_loop import UpdateInputs
from tests.helpers.buffers import fill
from tests.helpers.sbx_models import ALGORITHMS, BATCH_SIZE, SGD, forward, leaves, logged, make, names, shared
from tests.helpers.targets import assert_targets_have

# Two programs of XLA that compute the same may round differently, in ways that depend on the processor.
RTOL, ATOL = 1e-4, 1e-6


@pytest.fixture
def give(monkeypatch):
    """Let a model draw these batches, one after the other, and return what it hands back."""

    def apply(model: Any, *batches: Any) -> list[tuple[np.ndarray, np.ndarray]]:
        remaining, handed_back = list(batches), []
        buffer = model.replay_buffer
        monkeypatch.setattr(buffer, "sample", lambda batch_size, env=None, **kwargs: remaining.pop(0))
        monkeypatch.setattr(
            buffer, "update_priorities", lambda ids, errors: handed_back.append((ids, np.array(errors))) or len(ids)
        )
        return handed_back

    return apply


def weighted(batch: Any, seed: int = 0) -> Any:
    weights = np.random.default_rng(seed).uniform(0.1, 1.0, (len(batch.weights), 1)).astype(np.float32)
    return batch._replace(weights=th.from_numpy(weights))


# ---- equal weights


@pytest.mark.parametrize("name", names("sac", "dqn"))
def test_an_update_with_equal_weights_is_that_of_sbx(name):
    """Two updates, so that both sides of a policy delay are seen. The slow tests have the optimizers of SBX's defaults."""
    model, stock = shared(name), make(name, stock=True, **SGD)
    stock.set_logger(Logger(None, []))
    for _ in range(2):
        batch = model.replay_buffer.sample(BATCH_SIZE)._replace(weights=th.ones(BATCH_SIZE, 1))
        with pytest.MonkeyPatch.context() as patch:
            for each in (model, stock):
                patch.setattr(each.replay_buffer, "sample", lambda *args, batch=batch, **kwargs: batch)
                each.train(gradient_steps=1, batch_size=BATCH_SIZE)
        for mine, theirs in zip(leaves(model), leaves(stock), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=RTOL, atol=ATOL)
        np.testing.assert_array_equal(model.key, stock.key)
    assert model._n_updates == stock._n_updates == 2
    assert logged(stock).keys() <= logged(model).keys()
    if name != "tqc":  # SBX logs the loss of the first critic alone
        assert logged(model)["train/critic_loss"] == pytest.approx(logged(stock)["train/critic_loss"], rel=RTOL)


#: Settings of SBX that change an update.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ALGORITHMS},
    "droq": ("sac", dict(policy_kwargs=dict(dropout_rate=0.2, layer_norm=True), policy_delay=2)),
    "droq tqc": ("tqc", dict(policy_kwargs=dict(dropout_rate=0.2))),
    "simba": ("sac", dict(policy="SimbaPolicy")),
    "gsde": ("sac", dict(use_sde=True)),
    "fixed entropy": ("sac", dict(ent_coef=0.1)),
    "own rate of the critics": ("sac", dict(qf_learning_rate=1e-2)),
    "schedule": ("sac", dict(learning_rate=lambda progress: 1e-2 * progress)),
    "n steps": ("td3", dict(n_steps=3)),
    "reset": ("td3", dict(param_resets=[0])),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", VARIANTS)
def test_an_update_with_settings_of_sbx_is_that_of_sbx(case):
    name, kwargs = VARIANTS[case]
    model, stock = make(name, replay_buffer_kwargs=dict(scheme="uniform"), **kwargs), make(name, stock=True, **kwargs)
    fill([model.replay_buffer], 30)
    for each in (model, stock):
        each.set_logger(Logger(None, []))
        each._current_progress_remaining = 0.5
    for _ in range(2):
        batch = model.replay_buffer.sample(BATCH_SIZE)
        assert (batch.discounts is not None) == (case == "n steps")
        for each in (model, stock):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(each.replay_buffer, "sample", lambda *args, batch=batch, **kwargs: batch)
                each.train(gradient_steps=1, batch_size=BATCH_SIZE)
        for mine, theirs in zip(leaves(model), leaves(stock), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=RTOL, atol=ATOL)
        np.testing.assert_array_equal(model.key, stock.key)


@pytest.mark.slow
def test_a_uniform_actor_batch_is_what_the_actor_alone_learns_from():
    models = [make("ddpg", replay_buffer_kwargs=dict(actor_batch=each)) for each in ("prioritized", "uniform", "uniform")]
    fill([models[0].replay_buffer], 30)
    batch = models[0].replay_buffer.sample(BATCH_SIZE)
    for model, observations in zip(models, (None, batch.observations, 1 - batch.observations), strict=True):
        model.set_logger(Logger(None, []))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(model.replay_buffer, "sample", lambda *args, **kwargs: batch)
            patch.setattr(model.replay_buffer, "update_priorities", lambda *args: None)
            patch.setattr(model.replay_buffer, "sample_observations", lambda *args, each=observations, **kwargs: each)
            model.train(1, BATCH_SIZE)
    one, same, other = models
    for mine, theirs in zip(leaves(one), leaves(same), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=RTOL, atol=ATOL)
    critics = [jax.tree.leaves(model.policy.qf_state.params) for model in (one, other)]
    actors = [jax.tree.leaves(model.policy.actor_state.params) for model in (one, other)]
    for mine, theirs in zip(*critics, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=RTOL, atol=ATOL)
    assert any(np.abs(mine - theirs).max() > 1e-5 for mine, theirs in zip(*actors, strict=True))


# ---- targets


@pytest.mark.parametrize("name", names("dqn"))
def test_n_steps_and_gamma_of_the_model_are_those_of_its_targets(name):
    for n_steps, gamma in ((1, 0.5), (3, 0.9)):
        model = make(name, n_steps=n_steps, gamma=gamma)
        fill([model.replay_buffer], 60)
        assert (model.n_steps, model.gamma, model.replay_buffer.n_steps) == (n_steps, gamma, n_steps)
        assert_targets_have(model, n_steps, gamma)


# ---- weights


def estimates(name: str, model: Any, batch: Any) -> np.ndarray:
    """Estimates of the critics in NumPy, shape (batch_size, n_critics); with TQC, means of the quantiles."""
    obs, actions = batch.observations.numpy(), batch.actions.numpy()
    if name == "dqn":
        return np.take_along_axis(forward(model.policy.qf_state.params, obs), actions, axis=1)
    if name == "tqc":
        states = (model.policy.qf1_state, model.policy.qf2_state)
        return np.stack([forward(state.params, obs, actions).mean(axis=1) for state in states], axis=1)
    stacked = model.policy.qf_state.params["params"]["VmapContinuousCritic_0"]
    n_critics = len(stacked["Dense_0"]["kernel"])
    each = [{"params": jax.tree.map(lambda leaf, i=i: leaf[i], stacked)} for i in range(n_critics)]
    return np.concatenate([forward(params, obs, actions) for params in each], axis=1)


@pytest.mark.parametrize("name", [each for each in names("td3", "dqn") if each.values != ("crossq",)])
def test_td_errors_equal_those_of_numpy(name, give):
    """All transitions are terminal, so that the target is the reward."""
    model = shared(name)
    batch = weighted(model.replay_buffer.sample(BATCH_SIZE))
    batch = batch._replace(dones=th.ones(BATCH_SIZE, 1))
    expected = batch.rewards.numpy() - estimates(name, model, batch)
    before = leaves(model)
    td_errors = model.td_errors(batch)
    np.testing.assert_allclose(td_errors, expected, rtol=1e-4, atol=1e-5)
    for after, leaf in zip(leaves(model), before, strict=True):
        np.testing.assert_array_equal(after, leaf)
    handed_back = give(model, batch)
    model.train(1, BATCH_SIZE)
    np.testing.assert_allclose(handed_back[0][1], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(handed_back[0][0], batch.indices)


def test_targets_are_discounted_next_values(monkeypatch):
    model = shared("dqn")
    batch = model.replay_buffer.sample(BATCH_SIZE)._replace(dones=th.tensor([[0.0], [1.0]] * (BATCH_SIZE // 2)))
    params = model.policy.qf_state.params
    next_q = forward(params, batch.next_observations.numpy())  # the target network is still the same
    continues = 1 - batch.dones.numpy()
    expected = batch.rewards.numpy() + continues * 0.99 * next_q.max(axis=1, keepdims=True) - estimates("dqn", model, batch)
    np.testing.assert_allclose(model.td_errors(batch), expected, rtol=1e-4, atol=1e-5)
    discounted = batch._replace(discounts=th.full((BATCH_SIZE, 1), 0.5))
    expected = batch.rewards.numpy() + continues * 0.5 * next_q.max(axis=1, keepdims=True) - estimates("dqn", model, batch)
    np.testing.assert_allclose(model.td_errors(discounted), expected, rtol=1e-4, atol=1e-5)

    # With Double Q-learning, the online network chooses. Its output is turned around here, so it chooses another action.
    (state,) = model._networks()
    last = f"Dense_{len(params['params']) - 1}"
    turned = {"params": {**params["params"], last: jax.tree.map(jnp.negative, params["params"][last])}}
    model._set_networks((state.replace(params=turned),))
    monkeypatch.setattr(model, "double_q", True)
    expected = batch.rewards.numpy() + continues * 0.99 * next_q.min(axis=1, keepdims=True) - estimates("dqn", model, batch)
    np.testing.assert_allclose(model.td_errors(batch), expected, rtol=1e-4, atol=1e-5)


def critics_of(model: Any) -> tuple[Any, ...]:
    names = ("qf1_state", "qf2_state") if hasattr(model.policy, "qf1_state") else ("qf_state",)
    return tuple(getattr(model.policy, name) for name in names)


def written_out(name: str, model: Any, batch: Any) -> Any:
    """Parameters of the critics after one step of SGD with rate 0.1 on the weighted loss, for terminal transitions."""
    obs, actions = jnp.asarray(batch.observations.numpy()), jnp.asarray(batch.actions.numpy())
    rewards, weights = batch.rewards.numpy()[:, 0], batch.weights.numpy()[:, 0]
    noise_key = jax.random.split(model.key, 3)[1]

    def loss(params: Any) -> Any:
        total = 0.0
        if name == "dqn":
            q = jnp.stack([model.policy.qf_state.apply_fn(params[0], obs)[i, actions[i, 0]] for i in range(BATCH_SIZE)])
            size = jnp.abs(q - rewards)
            per_sample = jnp.where(size < 1, 0.5 * size**2, size - 0.5)
        elif name == "tqc":
            per_sample = 0.0
            for state, each in zip(critics_of(model), params, strict=True):
                quantiles = state.apply_fn(each, obs, actions)
                delta = rewards[:, None] - quantiles
                huber = jnp.where(jnp.abs(delta) > 1, jnp.abs(delta) - 0.5, 0.5 * delta**2)
                midpoints = (jnp.arange(5) + 0.5) / 5
                per_sample += (jnp.where(delta < 0, 1 - midpoints, midpoints) * huber).mean(axis=1)
        else:
            state = model.policy.qf_state
            if name == "crossq":
                actor = model.policy.actor_state
                variables = {"params": actor.params, "batch_stats": actor.batch_stats}
                next_obs = jnp.asarray(batch.next_observations.numpy())
                next_actions = actor.apply_fn(variables, next_obs, train=False).sample(seed=noise_key)
                q = state.apply_fn(
                    {"params": params[0], "batch_stats": state.batch_stats},
                    jnp.concatenate([obs, next_obs]),
                    jnp.concatenate([actions, next_actions]),
                    mutable=["batch_stats"],
                    train=True,
                )[0][:, :BATCH_SIZE, 0]
            else:
                q = state.apply_fn(params[0], obs, actions)[:, :, 0]
            per_sample = (0.5 * (q - rewards) ** 2).sum(axis=0)
        for i in range(BATCH_SIZE):
            total += weights[i] * per_sample[i] / BATCH_SIZE
        return total

    params = tuple(state.params for state in critics_of(model))
    gradients = jax.jit(jax.grad(loss))(params)
    rate = {"ddpg": 1e-3}.get(name, 0.1)
    return jax.tree.map(lambda each, gradient: np.asarray(each - rate * gradient), params, gradients)


@pytest.mark.parametrize("name", names("td3", "dqn"))
def test_a_weighted_update_is_the_one_written_out(name, give):
    model = shared(name)
    batch = weighted(model.replay_buffer.sample(BATCH_SIZE))._replace(dones=th.ones(BATCH_SIZE, 1))
    expected = written_out(name, model, batch)
    before = [state.params for state in critics_of(model)]
    give(model, batch)
    model.train(1, BATCH_SIZE)
    after = tuple(state.params for state in critics_of(model))
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-6), after, expected)
    changes = jax.tree.map(lambda one, other: float(jnp.abs(one - other).max()), tuple(before), after)
    assert max(jax.tree.leaves(changes)) > 1e-5
    for metric, value in weight_metrics(batch.weights.numpy()).items():
        assert logged(model)[metric] == pytest.approx(value, rel=1e-5)


# ---- several gradient steps


@pytest.mark.parametrize("name", names("td3", "dqn"))
def test_several_gradient_steps_of_a_call_are_as_many_calls_with_delayed_priorities(name, give):
    """Three steps, which are compiled for up to four."""
    model = shared(name)
    batches = [weighted(model.replay_buffer.sample(BATCH_SIZE), seed) for seed in range(3)]
    handed_back = give(model, *batches)
    for _ in range(3):
        model.train(1, BATCH_SIZE)
    one_by_one, key, metrics = leaves(model), model.key, logged(model)

    model = shared(name)
    together = give(model, *batches)
    model.train(3, BATCH_SIZE)
    for mine, other in zip(leaves(model), one_by_one, strict=True):
        np.testing.assert_allclose(mine, other, rtol=RTOL, atol=ATOL)
    np.testing.assert_array_equal(model.key, key)
    assert model._n_updates == 3 and logged(model).keys() == metrics.keys()
    for (ids, errors), (same_ids, same_errors) in zip(together, handed_back, strict=True):
        np.testing.assert_array_equal(ids, same_ids)
        np.testing.assert_allclose(errors, same_errors, rtol=1e-4, atol=1e-5)


def record_calls(buffer: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []

    def recorded(name: str, method: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return method(*args, **kwargs)

        return call

    for name in ("sample", "update_priorities"):
        monkeypatch.setattr(buffer, name, recorded(name, getattr(buffer, name)))
    return calls


def test_batches_of_a_call_are_drawn_before_the_first_update_and_priorities_written_in_order(monkeypatch):
    model = shared("dqn")
    buffer, calls = model.replay_buffer, record_calls(model.replay_buffer, monkeypatch)
    before = buffer.masses
    model.train(3, BATCH_SIZE)
    assert calls == ["sample"] * 3 + ["update_priorities"] * 3
    assert (buffer.masses != before).sum() > BATCH_SIZE


def test_many_draws_before_the_first_update_of_a_call_do_not_warn(recwarn):
    """The buffer takes ten of them for a stock algorithm's otherwise, whose priorities nobody updates."""
    model = make("dqn", replay_buffer_kwargs=dict(demonstration_fraction=0.25))
    buffer = model.replay_buffer
    fill([buffer], 30)
    buffer.add_demonstrations_from(shared("dqn").replay_buffer)
    for _ in range(2):
        batches, _ = model._draw_ahead(BATCH_SIZE, 0, 12)
        assert len(batches) == 12
        for batch in batches:
            buffer.update_priorities(batch.indices, np.ones(BATCH_SIZE))
    assert not [w for w in recwarn if "update_priorities() was not called" in str(w.message)]
    with pytest.warns(UserWarning, match=r"update_priorities\(\) was not called"):
        for _ in range(10):
            buffer.sample(BATCH_SIZE)


def test_a_large_call_goes_to_the_device_in_parts(monkeypatch):
    """A part sees the priorities of those before."""
    model = shared("dqn")
    monkeypatch.setattr(model, "max_bytes_ahead", 2 * BATCH_SIZE * (4 + 4 + 1 + 4) * 4 + 8)
    calls = record_calls(model.replay_buffer, monkeypatch)
    model.train(3, BATCH_SIZE)
    assert calls == ["sample"] * 2 + ["update_priorities"] * 2 + ["sample", "update_priorities"] and model._n_updates == 3


# ---- schedules


@pytest.mark.parametrize("name", names())
def test_learning_rates_follow_their_schedule(name, tmp_path):
    """Networks move while the rate is above 0, and then stop; also after a reset of the parameters, and in a loaded model."""

    def schedule(progress: float) -> float:
        return 1e-2 if progress > 0.5 else 0.0

    def moves(model: Any) -> bool:
        networks = (*model.actor_states, *model.critic_states)
        before = jax.tree.map(np.asarray, [getattr(model.policy, each).params for each in networks])
        model.train(2, BATCH_SIZE)
        after = [getattr(model.policy, each).params for each in networks]
        return any(jax.tree.leaves(jax.tree.map(lambda one, other: bool((one != other).any()), before, after)))

    resets: dict[str, Any] = {} if name in ("dqn", "ddpg") else dict(param_resets=[10])  # not an argument of all classes
    rate_of_critics: dict[str, Any] = dict(qf_learning_rate=None) if name == "ddpg" else {}
    model = make(name, learning_rate=schedule, **resets, **rate_of_critics)
    fill([model.replay_buffer], 30)
    model.set_logger(Logger(None, []))
    assert moves(model)
    model._current_progress_remaining = 0.4
    assert not moves(model)
    assert logged(model)["train/learning_rate_critic"] == 0.0
    if resets:
        model.num_timesteps = 10
        model._reset_networks_if_due()
        assert not moves(model)
    model.save(tmp_path / "model")
    loaded = type(model).load(tmp_path / "model", env=model.env)
    for mine, theirs in zip(leaves(loaded), leaves(model), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    fill([loaded.replay_buffer], 30)
    loaded.set_logger(Logger(None, []))
    assert not moves(loaded)
    loaded._current_progress_remaining = 1.0
    assert moves(loaded)


def test_a_schedule_that_is_constant_gives_the_update_of_sbx():
    model, stock = make("td3", learning_rate=lambda progress: 1e-2), make("td3", stock=True, learning_rate=1e-2)
    fill([model.replay_buffer], 30)
    for _ in range(2):
        batch = model.replay_buffer.sample(BATCH_SIZE)._replace(weights=th.ones(BATCH_SIZE, 1))
        for each in (model, stock):
            each.set_logger(Logger(None, []))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(each.replay_buffer, "sample", lambda *args, batch=batch, **kwargs: batch)
                each.train(gradient_steps=1, batch_size=BATCH_SIZE)
    for network in ("actor_state", "qf_state"):
        mine, theirs = getattr(model.policy, network), getattr(stock.policy, network)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=RTOL, atol=ATOL), mine.params, theirs.params)


# ---- what stops a run, and what a subclass changes


def test_a_nan_stops_before_the_priorities(monkeypatch):
    model = shared("dqn")
    before = model.replay_buffer.masses
    (state,) = critics_of(model)
    broken = state.replace(params=jax.tree.map(lambda leaf: leaf * np.nan, state.params))
    model._set_networks((broken,))
    with pytest.raises(ValueError, match="td_errors must be finite, not nan"):
        model.train(1, BATCH_SIZE)
    np.testing.assert_array_equal(model.replay_buffer.masses, before)


def test_a_subclass_that_overrides_a_function_of_sbx_is_called():
    """The update is traced, and not compiled."""
    rates = []

    class Own(ALGORITHMS["td3"][0]):
        @staticmethod
        def soft_update(tau: Any, qf_state: Any, actor_state: Any) -> Any:
            rates.append(tau)
            return qf_state, actor_state

    model = Own("MlpPolicy", "Pendulum-v1", policy_kwargs=dict(net_arch=[4, 4]), seed=0, buffer_size=80, tau=0.25)
    fill([model.replay_buffer], 30)
    _, (batch,) = model._draw_ahead(BATCH_SIZE, 0, 1)
    inputs = UpdateInputs(model._networks(), model.key, batch, model._hyperparameters(), model._options())
    jax.eval_shape(lambda: Own._update(inputs))
    assert set(rates) == {0.25}


@pytest.mark.slow
def test_a_subclass_that_overrides_a_function_of_sbx_is_honoured():
    class Frozen(ALGORITHMS["td3"][0]):
        @staticmethod
        def soft_update(tau: Any, qf_state: Any, actor_state: Any) -> Any:
            return qf_state, actor_state

    model = Frozen("MlpPolicy", "Pendulum-v1", policy_kwargs=dict(net_arch=[4, 4]), seed=0, buffer_size=80)
    fill([model.replay_buffer], 30)
    model.set_logger(Logger(None, []))
    before = model.policy.qf_state
    model.train(1, BATCH_SIZE)
    after = model.policy.qf_state
    jax.tree.map(np.testing.assert_array_equal, before.target_params, after.target_params)
    assert any(jax.tree.leaves(jax.tree.map(lambda one, other: bool((one != other).any()), before.params, after.params)))


def test_a_subclass_whose_critic_update_would_be_ignored_is_refused():
    for name, env, function in (("td3", "Pendulum-v1", "update_critic"), ("dqn", "CartPole-v1", "update_qnetwork")):
        cls = type("Own", (ALGORITHMS[name][0],), {function: staticmethod(lambda *args: args)})
        with pytest.raises(NotImplementedError, match=rf"Own.{function}\(\) is not .* no effect.*_update"):
            cls("MlpPolicy", env, policy_kwargs=dict(net_arch=[4, 4]), buffer_size=80)


def test_a_subclass_may_change_the_target_alone():
    """The targets are 3 everywhere, and so the TD errors are 3 minus the estimates."""
    model = shared("td3")
    batch = weighted(model.replay_buffer.sample(BATCH_SIZE))

    class Own(ALGORITHMS["td3"][0]):
        @classmethod
        def _target(cls, inputs: UpdateInputs, noise_key: Any, dropout_key: Any) -> Any:
            return jnp.full((BATCH_SIZE, 1), 3.0)

    jax_batch = model._jax_batch_of(batch, updates_actor=False)
    inputs = UpdateInputs(model._networks(), model.key, jax_batch, model._hyperparameters(), model._options())
    td_errors = Own._update(inputs).td_errors
    np.testing.assert_allclose(td_errors, 3.0 - estimates("td3", model, batch), rtol=1e-4, atol=1e-5)
