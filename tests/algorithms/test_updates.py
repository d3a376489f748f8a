"""Updates equal those of the stock parent for equal weights, follow the weights, and set the priorities."""

import contextlib
import copy
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.sb2_compat.rmsprop_tf_like import RMSpropTFLike
from stable_baselines3.common.type_aliases import ReplayBufferSamples

from sb3_per import (
    PERDQN,
    PERSAC,
    PERCrossQ,
)
from sb3_per.algorithms.torch_loop import foreach_enabled
from tests.helpers.algorithms import CONFIGURATIONS, SMALL, UNBATCHED, filled_model, parameters, recorded
from tests.helpers.models import ALGORITHMS

# The quick ones are a diagonal: every algorithm once, and every kind of policy.
QUICK = (
    "sac-initial-entropy",
    "sac-sde",
    "sac-shared-images",
    "dqn-normalized",
    "td3-delay",
    "ddpg",
    "tqc-dict",
    "crossq",
    "qrdqn",
)


def with_slow(names: Any, quick: Any) -> list[Any]:
    return [pytest.param(name, marks=[] if name in quick else pytest.mark.slow) for name in names]


@pytest.mark.parametrize("batch_size", [32, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", with_slow(CONFIGURATIONS, QUICK))
def test_equal_weights_give_the_update_of_the_stock_parent(name, batch_size):
    """With the same batches and seed, parameters and logs are equal after several calls of train."""
    cls, policy, make_env, kwargs = CONFIGURATIONS[name]
    per = filled_model(cls, policy, make_env(), replay_buffer_kwargs=dict(alpha=0.0), **kwargs)
    stock = filled_model(ALGORITHMS[cls].stock, policy, make_env(), **kwargs)
    before = {key: value.clone() for key, value in parameters(per).items()}
    for key, value in parameters(stock).items():
        assert th.equal(before[key], value), key

    batches = recorded(per.replay_buffer)
    n_calls, gradient_steps = 3, 2
    th.manual_seed(1)
    for call in range(n_calls):
        per._update_current_progress_remaining(call, n_calls)
        per.train(gradient_steps, batch_size)
    assert all((batch.weights == 1).all() for batch in batches)

    replay = iter([ReplayBufferSamples(*batch[:6]) for batch in batches])
    stock.replay_buffer.sample = lambda batch_size, env: next(replay)
    th.manual_seed(1)
    for call in range(n_calls):
        stock._update_current_progress_remaining(call, n_calls)
        stock.train(gradient_steps, batch_size)

    changed = 0
    for key, value in parameters(stock).items():
        actual = parameters(per)[key]
        # A mean over a power of two: the order of the same operations does not even change the rounding.
        if batch_size == 32 and ALGORITHMS[cls].is_bit_equal:
            assert th.equal(actual, value), key
        th.testing.assert_close(actual, value, rtol=1e-4, atol=1e-6, msg=key)
        changed += not th.equal(before[key], value)
    assert changed > 0
    assert per._n_updates == stock._n_updates == n_calls * gradient_steps

    logged, expected = per.logger.name_to_value, stock.logger.name_to_value
    assert {key for key in logged if not key.startswith("per/")} == set(expected)
    assert {key for key in logged if key.startswith("per/")} == {
        "per/beta",
        "per/max_priority",
        "per/mean_weight",
        "per/effective_sample_size",
    }
    for key, value in expected.items():
        if key.startswith("train/"):
            assert logged[key] == pytest.approx(value, rel=1e-4, abs=1e-6), key


@pytest.mark.parametrize("cls, arguments", [(PERSAC, {}), (PERCrossQ, dict(policy_delay=1))])
def test_actor_loss_has_no_gradient_for_the_critics(cls, arguments, monkeypatch):
    """Parameters that the user has frozen stay frozen."""
    model = filled_model(cls, "MlpPolicy", "Pendulum-v1", **arguments)
    critic_parameters = list(model.critic.parameters())
    trainable = [parameter.requires_grad for parameter in critic_parameters]
    trained_by_user = critic_parameters[-1]
    trained_by_user.requires_grad_(False)
    trainable[-1] = False

    gradients = []
    step_critic = model.critic.optimizer.step
    step_actor = model.actor.optimizer.step

    def step_critic_and_clear() -> None:
        step_critic()
        model.critic.optimizer.zero_grad()

    def look_and_step() -> None:
        gradients.append([parameter.grad for parameter in critic_parameters])
        step_actor()

    monkeypatch.setattr(model.critic.optimizer, "step", step_critic_and_clear)
    monkeypatch.setattr(model.actor.optimizer, "step", look_and_step)
    model.train(gradient_steps=2, batch_size=8)
    assert gradients == [[None] * len(critic_parameters)] * 2
    assert [parameter.requires_grad for parameter in critic_parameters] == trainable


def test_optimizers_step_all_parameters_together():
    """The user's `foreach` wins, and optimizers without this option do not change."""
    for foreach, expected in ((None, True), (False, False)):
        policy_kwargs = dict(SMALL, optimizer_kwargs=dict(foreach=foreach))
        model = filled_model(PERSAC, "MlpPolicy", "Pendulum-v1", policy_kwargs=policy_kwargs)
        (group,) = model.critic.optimizer.param_groups
        seen = []
        model.critic.optimizer.register_step_pre_hook(lambda *_, group=group, seen=seen: seen.append(group["foreach"]))
        model.train(gradient_steps=2, batch_size=8)
        assert seen == [expected] * 2
        assert group["foreach"] is foreach  # a zip holds what the stock algorithm has

    policy_kwargs = dict(SMALL, optimizer_class=RMSpropTFLike)
    model = filled_model(PERDQN, "MlpPolicy", "CartPole-v1", policy_kwargs=policy_kwargs)
    model.train(gradient_steps=1, batch_size=8)
    assert "foreach" not in model.policy.optimizer.param_groups[0]


NAMES = "Adam AdamW Adamax NAdam RAdam RMSprop SGD Adagrad Adadelta ASGD Rprop Adafactor".split()
OPTIMIZERS = [name for name in NAMES if hasattr(th.optim, name)]


def trained(name: str, context: Any) -> list[th.Tensor]:
    """Train a network for 20 steps, each in a context, and return its parameters."""
    th.manual_seed(0)
    network = th.nn.Sequential(th.nn.Linear(7, 16), th.nn.Tanh(), th.nn.Linear(16, 3))
    optimizer = getattr(th.optim, name)(network.parameters())
    for _ in range(20):
        optimizer.zero_grad()
        network(th.randn(5, 7)).square().mean().backward()
        with context([optimizer]):
            optimizer.step()
    return list(network.parameters())


def test_steps_of_all_parameters_together_give_the_same_bits():
    for name in OPTIMIZERS:
        for one, other in zip(trained(name, contextlib.nullcontext), trained(name, foreach_enabled), strict=True):
            assert th.equal(one, other), name


def one_update(model: Any, batch: Any) -> Any:
    """Copy the model, and update it once on this batch."""
    env, model.env = model.env, None  # not every environment can be copied, and an update needs none
    twin = copy.deepcopy(model)
    model.env = env
    twin.replay_buffer.sample = lambda batch_size, env: batch
    th.manual_seed(5)
    twin.train(gradient_steps=1, batch_size=len(batch.weights))
    return twin


@pytest.mark.parametrize(
    "name", with_slow(["sac", "td3", "dqn", "qrdqn", "tqc", "crossq", "sac-fixed-entropy"], ("sac", "qrdqn", "tqc", "crossq"))
)
def test_a_transition_of_weight_zero_has_no_effect(name):
    cls, policy, make_env, kwargs = CONFIGURATIONS[name]
    model = filled_model(cls, policy, make_env(), **kwargs)
    batch = model.replay_buffer.sample(16)
    weights = batch.weights.clone()
    weights[3] = 0.0
    rewards = batch.rewards.clone()
    rewards[3] += 100.0
    same = one_update(model, batch._replace(weights=weights))
    other = one_update(model, batch._replace(weights=weights, rewards=rewards))
    weighted = one_update(model, batch._replace(rewards=rewards))
    network = ALGORITHMS[cls].value_network
    for key, value in getattr(same, network).state_dict().items():
        assert th.equal(value, getattr(other, network).state_dict()[key]), key
    # ... and with its weight it does have influence, so the test can fail.
    assert any(
        not th.equal(value, getattr(weighted, network).state_dict()[key])
        for key, value in getattr(same, network).state_dict().items()
    )


@pytest.mark.parametrize("name", ["sac", "td3", "tqc", "dqn", "qrdqn"])
def test_a_variant_overrides_the_target_alone(name):
    """It needs no care that the target has no gradient."""
    cls, policy, make_env, kwargs = CONFIGURATIONS[name]

    class Shifted(cls):
        shift = 0.0

        def _target(self, batch: Any) -> Any:
            assert not th.is_grad_enabled()
            return super()._target(batch) + self.shift

    model = filled_model(Shifted, policy, make_env(), **kwargs)
    batch = model.replay_buffer.sample(8)
    found = []
    for shift in (0.0, 2.0):
        model.shift = shift
        th.manual_seed(5)
        found.append(model.td_errors(batch))
    th.testing.assert_close(found[1] - found[0], th.full_like(found[0], 2.0))
    model.train(gradient_steps=1, batch_size=8)


@pytest.mark.parametrize("name", with_slow(UNBATCHED, ("td3", "dqn", "crossq-plain")))
def test_a_weight_of_2_counts_as_two_transitions(name):
    """The gradients are equal except for the size of the batch."""
    cls, policy, make_env, kwargs = CONFIGURATIONS[name]
    model = filled_model(cls, policy, make_env(), **kwargs)
    # Terminal transitions: targets are the rewards, without random actions that differ with the size of the batch.
    batch = model.replay_buffer.sample(6)
    batch = batch._replace(dones=th.ones(6, 1), weights=th.tensor([[2.0], [1.0], [1.0], [0.0], [0.0], [0.0]]))
    picked = [0, 0, 1, 2, 3, 4]  # transitions 3 and 4 with weight 0
    twice = [None if part is None else part[picked] for part in batch]
    repeated = type(batch)(*twice)._replace(weights=th.tensor([[1.0], [1.0], [1.0], [1.0], [0.0], [0.0]]))
    # Compare gradients, because the first step of Adam depends only on their signs.
    found = []
    for each in (batch, repeated):
        network = getattr(one_update(model, each), ALGORITHMS[cls].value_network)
        found.append([parameter.grad for parameter in network.parameters()])
    for actual, expected in zip(*found, strict=True):
        th.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)
    assert max(gradient.norm() for gradient in found[0]) > 1e-3


@pytest.mark.parametrize("name, scheme", [("sac", "lap"), ("td3", "pal"), ("dqn", "pal"), ("crossq-plain", "lap")])
def test_lap_and_pal_updates_follow_the_formulas(name, scheme):
    """The gradients of the critics equal those of the paper's loss, for errors below and above kappa."""
    cls, policy, make_env, kwargs = CONFIGURATIONS[name]
    model = filled_model(cls, policy, make_env(), **{**kwargs, "replay_buffer_kwargs": dict(scheme=scheme)})
    model.max_grad_norm = np.inf  # DQN clips its gradients
    batch = model.replay_buffer.sample(16)
    batch = batch._replace(dones=th.ones(16, 1), rewards=th.linspace(-3, 3, 16).reshape(-1, 1))
    network = ALGORITHMS[cls].value_network
    updated = getattr(one_update(model, batch), network).parameters()
    size = (batch.rewards - ALGORITHMS[type(model)].values_of(model, batch)).abs()
    assert (size < 1).any() and (size > 1).any()
    if scheme == "lap":
        loss = th.where(size < 1, size**2 / 2, size - 0.5)
    else:
        loss = th.where(size < 1, size**2 / 2, size**1.4 / 1.4) / size.detach().amax(dim=1).clamp(min=1).pow(0.4).mean()
    gradients = th.autograd.grad(loss.sum(dim=1).mean(), list(getattr(model, network).parameters()))
    assert max(gradient.norm() for gradient in gradients) > 1e-3
    for parameter, gradient in zip(updated, gradients, strict=True):
        th.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)


def td_errors_of(model: Any, batch: Any) -> np.ndarray:
    """Compute the absolute TD errors of terminal transitions, averaged over the critics."""
    with th.no_grad():
        return (batch.rewards - ALGORITHMS[type(model)].values_of(model, batch)).abs().mean(dim=1).numpy()


@pytest.mark.parametrize("name", with_slow([*UNBATCHED, "sac-fixed-entropy"], ("sac", "dqn", "qrdqn", "tqc")))
def test_priorities_are_unweighted_absolute_td_errors(name):
    """The buffer receives the signed errors of every critic before the update, not losses."""
    cls, policy, make_env, kwargs = CONFIGURATIONS[name]
    model = filled_model(cls, policy, make_env(), **kwargs)
    buffer = model.replay_buffer
    buffer.update_priorities(np.arange(60), np.random.default_rng(0).exponential(size=60))
    batch = buffer.sample(20)
    batch = batch._replace(dones=th.ones(20, 1))
    assert len(set(batch.weights.flatten().tolist())) > 5
    expected = td_errors_of(model, batch)
    updated = one_update(model, batch)
    actual = updated.replay_buffer.masses.ravel()[batch.indices]
    np.testing.assert_allclose(actual, (expected + 1e-6) ** 0.6, rtol=1e-4)


def test_double_q_chooses_with_the_online_network():
    """The target network gives the value. Without double_q, it also chooses the action."""
    targets = {}
    for double_q in (False, True):
        model = filled_model(PERDQN, "MlpPolicy", "CartPole-v1", double_q=double_q, replay_buffer_kwargs=dict(alpha=1.0))
        with th.no_grad():
            for parameter in model.q_net_target.parameters():
                parameter.add_(th.randn_like(parameter))
        batch = model.replay_buffer.sample(32)
        with th.no_grad():
            q_next, q_next_online = model.q_net_target(batch.next_observations), model.q_net(batch.next_observations)
            chosen = q_next_online.argmax(1) if double_q else q_next.argmax(1)
            target = batch.rewards[:, 0] + 0.99 * (1 - batch.dones[:, 0]) * q_next[th.arange(32), chosen]
            q = model.q_net(batch.observations)[th.arange(32), batch.actions[:, 0]]
        updated = one_update(model, batch)
        actual = updated.replay_buffer.masses.ravel()[batch.indices]
        np.testing.assert_allclose(actual, (target - q).abs().numpy() + 1e-6, rtol=1e-4)
        targets[double_q] = target
    assert not th.equal(targets[False], targets[True])


def test_beta_follows_the_training_progress():
    """Beta is linear in the steps of `learn`, for any number of gradient steps, and reaches its end at the last step."""
    for train_freq, gradient_steps in [(1, 1), (4, 8), ((1, "episode"), -1)]:
        kwargs: dict[str, Any] = dict(train_freq=train_freq, gradient_steps=gradient_steps, policy_kwargs=SMALL, seed=0)
        model = PERDQN("MlpPolicy", "CartPole-v1", learning_starts=10, batch_size=8, **kwargs)
        seen: list[tuple[float, float]] = []
        train = model.train

        def spying(gradient_steps: int, batch_size: int, model=model, seen=seen, train=train) -> None:
            train(gradient_steps, batch_size)
            seen.append((model.num_timesteps, model.replay_buffer.beta))

        model.train = spying  # type: ignore[method-assign]
        model.learn(80)
        assert len(seen) > 1
        for num_timesteps, beta in seen:
            assert beta == pytest.approx(0.4 + 0.6 * min(num_timesteps / 80, 1.0))
        assert model.replay_buffer.beta == 1.0


def test_resuming_never_lowers_beta():
    model = PERDQN("MlpPolicy", "CartPole-v1", learning_starts=10, buffer_size=500, policy_kwargs=SMALL, seed=0)
    model.learn(30)
    assert model.replay_buffer.beta == 1.0
    model.learn(30, reset_num_timesteps=False)
    assert model.replay_buffer.beta == 1.0
