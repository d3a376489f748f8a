"""`td_errors` equals the TD errors of a gradient step, and metrics are means over gradient steps."""

import contextlib
import copy
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.torch_layers import FlattenExtractor

from sb3_per import PERDQN, PERSAC, PERCrossQ, PrioritizedOffPolicyMixin
from tests.helpers.algorithms import CONFIGURATIONS, filled_model, optimizers_of, recorded
from tests.helpers.models import EVERY, RECURRENT, trained
from tests.helpers.targets import assert_targets_have


@pytest.mark.parametrize("name", ["sac", "td3", "dqn", "qrdqn", "tqc", "crossq"])
def test_td_errors_equal_those_of_a_gradient_step(name):
    """
    They differ by rounding at most, because a gradient step records gradients. `td_errors` changes nothing but the random
    generator.
    """
    cls, policy, make_env, kwargs = CONFIGURATIONS[name]
    model = filled_model(cls, policy, make_env(), **kwargs)
    # All transitions are terminal, because a gradient step draws other next actions.
    batch = model.replay_buffer.sample(16)
    batch = batch._replace(dones=th.ones(16, 1))
    state = {key: value.clone() for key, value in model.policy.state_dict().items()}
    optimizers = copy.deepcopy([optimizer.state_dict() for optimizer in optimizers_of(model)])
    th.manual_seed(5)
    td_errors = model.td_errors(batch)
    assert not td_errors.requires_grad
    assert td_errors.ndim == 2 and len(td_errors) == 16
    for key, value in model.policy.state_dict().items():
        assert th.equal(value, state[key]), key
    assert str([optimizer.state_dict() for optimizer in optimizers_of(model)]) == str(optimizers)
    assert all(parameter.grad is None for parameter in model.policy.parameters())

    handed_back: list[th.Tensor] = []
    model.replay_buffer.update_priorities = lambda ids, errors: handed_back.append(errors.detach()) or 0
    model.replay_buffer.sample = lambda batch_size, env: batch
    th.manual_seed(5)
    model.train(gradient_steps=1, batch_size=16)
    if name != "crossq":  # batch normalization mixes in the next actions
        th.testing.assert_close(handed_back[0], td_errors, rtol=1e-4, atol=1e-5)
    assert handed_back[0].shape == td_errors.shape


@pytest.mark.parametrize("cls", EVERY)
def test_n_steps_and_gamma_of_the_model_are_those_of_its_targets(cls):
    for n_steps, gamma in ((1, 0.5), (3, 0.9)):
        model = trained(cls, learning_starts=100, buffer_size=100, n_steps=n_steps, gamma=gamma)
        buffer = model.replay_buffer
        assert (model.n_steps, model.gamma, buffer.n_steps) == (n_steps, gamma, n_steps)
        if n_steps > 1 or cls in RECURRENT:  # a buffer of single transitions has no use for it
            assert buffer.gamma == gamma
        assert_targets_have(model, n_steps, gamma)


def test_what_an_algorithm_must_implement_is_named():
    for method in ("_critic_losses", "_update", "_optimizers"):
        cls = type("Own", (PERDQN,), {method: getattr(PrioritizedOffPolicyMixin, method)})
        model = PERDQN("MlpPolicy", "CartPole-v1", learning_starts=0, buffer_size=50).learn(4)
        model.__class__ = cls
        with pytest.raises(NotImplementedError, match=rf"Own must implement {method}\(\)"):
            model.td_errors(model.replay_buffer.sample(4)) if method == "_critic_losses" else model.train(1, 4)


def test_td_errors_change_nothing_even_if_they_fail():
    """CrossQ has statistics of batch normalization, which a forward pass moves, and a mode, which it switches."""
    model = filled_model(PERCrossQ, "MlpPolicy", "Pendulum-v1")
    batch = model.replay_buffer.sample(8)
    model.policy.set_training_mode(True)
    state = {key: value.clone() for key, value in model.policy.state_dict().items()}
    modes = [module.training for module in model.policy.modules()]
    for bad in (batch, batch._replace(rewards=th.zeros(3, 3, 3))):
        with pytest.raises(RuntimeError) if bad is not batch else contextlib.nullcontext():
            model.td_errors(bad)
        assert [module.training for module in model.policy.modules()] == modes
        for key, value in model.policy.state_dict().items():
            assert th.equal(value, state[key]), key


class Normalizing(FlattenExtractor):
    """Batch normalization, which depends on the mode of the policy."""

    def __init__(self, observation_space: Any):
        super().__init__(observation_space)
        self.norm = th.nn.BatchNorm1d(self.features_dim)

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return self.norm(super().forward(observations))


def test_td_errors_are_those_of_training_whatever_the_mode():
    """Acting leaves the policy in the mode of an evaluation."""
    policy_kwargs = dict(net_arch=[8], features_extractor_class=Normalizing)
    model = filled_model(PERDQN, "MlpPolicy", "CartPole-v1", policy_kwargs=policy_kwargs)
    batch = model.replay_buffer.sample(8)
    model.policy.set_training_mode(True)
    expected = model.td_errors(batch)
    model.policy.set_training_mode(False)
    assert th.equal(model.td_errors(batch), expected)
    assert not any(module.training for module in model.policy.modules())


class Counted(PERSAC):
    """Log the number of each step, every third one also under another name."""

    def _update(self, batch: Any, gradient_step: int) -> Any:
        metrics = {"every": th.tensor(float(gradient_step))}
        if gradient_step % 3 == 0:
            metrics["per/third"] = th.tensor(float(gradient_step))
        return th.rand(8, 1), metrics


def test_metrics_are_means_over_gradient_steps():
    """This includes metrics that only some of the steps have."""
    gradient_steps = 100
    model = filled_model(Counted, "MlpPolicy", "Pendulum-v1")
    model.replay_buffer.update_priorities(np.arange(60), np.random.default_rng(0).exponential(size=60) * 30)
    batches = recorded(model.replay_buffer)
    model.train(gradient_steps, batch_size=8)
    weights = [batch.weights.numpy().astype(np.float64) for batch in batches]
    sizes = [each.sum() ** 2 / (each**2).sum() / 8 for each in weights]
    logged = model.logger.name_to_value
    assert logged["train/every"] == pytest.approx(np.mean(range(gradient_steps)))
    assert logged["per/third"] == pytest.approx(np.mean(range(0, gradient_steps, 3)))
    assert logged["per/mean_weight"] == pytest.approx(np.mean(weights), rel=1e-5)
    assert logged["per/effective_sample_size"] == pytest.approx(np.mean(sizes), rel=1e-5)
    assert logged["per/beta"] == model.replay_buffer.beta
    assert logged["per/max_priority"] == model.replay_buffer.max_priority


def test_actions_of_td3s_target_stay_within_the_bounds(monkeypatch):
    """Target policy smoothing (arXiv 1802.09477, equation 14), written out."""
    cls, policy, make_env, kwargs = CONFIGURATIONS["td3"]
    model = filled_model(cls, policy, make_env(), **{**kwargs, "target_policy_noise": 2.0, "target_noise_clip": 1.5})
    batch = model.replay_buffer.sample(16)
    th.manual_seed(3)
    noise = th.empty_like(batch.actions).normal_(0, 2.0).clamp(-1.5, 1.5)
    expected = (model.actor_target(batch.next_observations) + noise).clamp(-1.0, 1.0)
    seen: list[th.Tensor] = []
    forward = model.critic_target.forward
    monkeypatch.setattr(model.critic_target, "forward", lambda obs, actions: seen.append(actions) or forward(obs, actions))
    th.manual_seed(3)
    model.td_errors(batch)
    th.testing.assert_close(seen[0], expected)
    assert (expected.abs() == 1.0).any()
