"""`td_errors` equals the TD errors of a gradient step, and metrics are means over gradient steps."""

import copy
from typing import Any

import numpy as np
import pytest
import torch as th

from sb3_per import (
    PERDQN,
    PERSAC,
    PrioritizedOffPolicyMixin,
)
from tests.helpers.updates import CONFIGURATIONS, UNBATCHED, filled_model


@pytest.mark.parametrize("name", [*UNBATCHED, "crossq"])
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
    optimizers = copy.deepcopy([optimizer.state_dict() for optimizer in model._optimizers()])
    th.manual_seed(5)
    td_errors = model.td_errors(batch)
    assert not td_errors.requires_grad
    assert td_errors.ndim == 2 and len(td_errors) == 16
    for key, value in model.policy.state_dict().items():
        assert th.equal(value, state[key]), key
    assert str([optimizer.state_dict() for optimizer in model._optimizers()]) == str(optimizers)
    assert all(parameter.grad is None for parameter in model.policy.parameters())

    handed_back: list[th.Tensor] = []
    model.replay_buffer.update_priorities = lambda ids, errors: handed_back.append(errors.detach()) or 0
    model.replay_buffer.sample = lambda batch_size, env: batch
    th.manual_seed(5)
    model.train(gradient_steps=1, batch_size=16)
    if name != "crossq":  # batch normalization mixes in the next actions
        th.testing.assert_close(handed_back[0], td_errors, rtol=1e-4, atol=1e-5)
    assert handed_back[0].shape == td_errors.shape


def test_an_algorithm_without_value_losses_is_refused():
    class Own(PERDQN):
        _value_losses = PrioritizedOffPolicyMixin._value_losses

    model = filled_model(Own, "MlpPolicy", "CartPole-v1")
    with pytest.raises(NotImplementedError, match=r"Own must implement _value_losses\(\)"):
        model.td_errors(model.replay_buffer.sample(4))


@pytest.mark.parametrize("gradient_steps", [1, 40])
def test_metrics_are_means_over_gradient_steps(gradient_steps, monkeypatch):
    """This includes metrics that only some of the steps have."""
    model = filled_model(PERSAC, "MlpPolicy", "Pendulum-v1")
    model.replay_buffer.update_priorities(np.arange(60), np.random.default_rng(0).exponential(size=60) * 30)
    values, means, sizes = [], [], []

    def step(batch: Any, gradient_step: int) -> Any:
        weights = batch.weights.numpy().astype(np.float64)
        means.append(weights.mean())
        sizes.append(weights.sum() ** 2 / (weights**2).sum() / 8)
        metrics = {"every": th.tensor(float(gradient_step))}
        if gradient_step % 3 == 0:
            values.append(gradient_step)
            metrics["per/third"] = th.tensor(float(gradient_step))
        return th.rand(8, 1), metrics

    monkeypatch.setattr(model, "_gradient_step", step)
    model.train(gradient_steps, batch_size=8)
    logged = model.logger.name_to_value
    assert logged["train/every"] == pytest.approx(np.mean(range(gradient_steps)))
    assert logged["per/third"] == pytest.approx(np.mean(values))
    assert logged["per/mean_weight"] == pytest.approx(np.mean(means), rel=1e-5)
    assert logged["per/effective_sample_size"] == pytest.approx(np.mean(sizes), rel=1e-5)
