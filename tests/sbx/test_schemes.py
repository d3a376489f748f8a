"""The JAX form of each scheme's loss is the PyTorch one, with the same gradient."""

import re
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch as th

from sb3_per import LAP, PAL, PERDQN, Proportional, RankBased, Uniform
from sb3_per.sampling.shuffled import Shuffled
from tests.helpers.sbx_models import make

# Errors below, at and above each threshold, of both signs, and rows whose largest error is that of the other critic.
ERRORS = np.array([[0, 0], [0.1, -0.2], [-0.25, 0.25], [1, 2], [-1, 0.5], [3, -4], [-30, 0], [0.3, 20]], np.float32)
WEIGHTS = np.linspace(0.02, 1, len(ERRORS), dtype=np.float32).reshape(-1, 1)

SCHEMES = (
    Proportional(),
    Proportional(alpha=0.0, td_error_reduction="max"),
    RankBased(td_error_reduction="min"),
    Uniform(),
    LAP(),
    LAP(alpha=1.5, kappa=0.25, td_error_reduction="mean"),
    LAP(alpha=0.0, kappa=10.0),
    PAL(),
    PAL(alpha=1.5, kappa=0.25, td_error_reduction="mean"),
    PAL(alpha=0.7, kappa=10.0, td_error_reduction="min"),
)


def test_losses_and_gradients_equal_those_of_pytorch():
    for scheme in SCHEMES:
        td_errors = th.from_numpy(ERRORS.copy()).requires_grad_()
        expected = scheme.loss(0.5 * td_errors.square(), td_errors, th.from_numpy(WEIGHTS))
        expected.backward()

        def jax_loss(errors: Any, scheme: Any = scheme) -> Any:
            return scheme.jax_loss(0.5 * errors**2, errors, jnp.asarray(WEIGHTS))

        loss, gradient = jax.value_and_grad(jax_loss)(ERRORS)
        np.testing.assert_allclose(loss, expected.item(), rtol=1e-4, atol=1e-6, err_msg=repr(scheme))
        np.testing.assert_allclose(gradient, td_errors.grad.numpy(), rtol=1e-4, atol=1e-6, err_msg=repr(scheme))


class Halved(Proportional):
    """A user's scheme with a loss of its own."""

    def loss(self, losses: th.Tensor, td_errors: th.Tensor, weights: th.Tensor) -> th.Tensor:
        return super().loss(losses, td_errors, weights) / 2


class HalfLoss:
    """A loss in a class that is no scheme."""

    def loss(self, losses: th.Tensor, td_errors: th.Tensor, weights: th.Tensor) -> th.Tensor:
        return (weights * losses).mean() / 2


class HalvedByMixin(HalfLoss, Proportional):
    pass


class HalvedTwice(Halved):
    def jax_loss(self, losses: Any, td_errors: Any, weights: Any) -> Any:
        return Proportional.jax_loss(self, losses, td_errors, weights) / 2


class Cubic(Proportional):
    """A user's scheme that keeps the algorithm's loss."""

    def priority(self, abs_td_errors: np.ndarray) -> np.ndarray:
        return abs_td_errors**3 + 0.1


@dataclass
class Unhashable(Proportional):
    """A dataclass with the usual comparison has no hash."""

    def __post_init__(self) -> None:
        super().__init__()


def test_a_scheme_with_a_setting_that_cannot_be_pickled_is_refused():
    scheme = Proportional()
    scheme.own = lambda: None  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"Proportional\.own must be picklable"):
        make("dqn", replay_buffer_kwargs=dict(scheme=scheme))


def test_a_scheme_that_the_compiler_cannot_hash_is_refused():
    with pytest.raises(TypeError, match=r"Unhashable must be hashable .*@dataclass\(eq=False\)"):
        make("dqn", replay_buffer_kwargs=dict(scheme=Unhashable()))


def test_a_scheme_with_a_loss_of_its_own_needs_a_jax_form():
    for scheme in (Halved(), Shuffled(Halved()), HalvedByMixin()):
        message = (
            rf"PERDQN with {re.escape(repr(scheme))} is not supported: Halved(ByMixin)? has a loss\(\) .* Write jax_loss\(\)"
        )
        with pytest.raises(NotImplementedError, match=message):
            make("dqn", replay_buffer_kwargs=dict(scheme=scheme))
    for scheme in (HalvedTwice(), Cubic()):
        assert make("dqn", replay_buffer_kwargs=dict(scheme=scheme)).replay_buffer.scheme is scheme
    PERDQN("MlpPolicy", "CartPole-v1", buffer_size=80, replay_buffer_kwargs=dict(scheme=Halved()))
