"""The JAX form of each scheme's loss is the PyTorch one, with the same gradient."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch as th
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sb3_per import LAP, PAL, PERDQN, PriorityScheme, Proportional, RankBased, Uniform
from sb3_per.sampling.schemes import Shuffled
from tests.helpers.sbx_models import make

SHAPE = (6, 2)
ERRORS = arrays(np.float32, SHAPE, elements=st.floats(-30, 30, width=32))
WEIGHTS = arrays(np.float32, (SHAPE[0], 1), elements=st.floats(0.015625, 1, width=32))


@st.composite
def schemes(draw: Any) -> PriorityScheme:
    cls = draw(st.sampled_from([Proportional, RankBased, Uniform, LAP, PAL]))
    kwargs: dict[str, Any] = dict(td_error_reduction=draw(st.sampled_from(["mean", "max", "min"])))
    if cls is not Uniform:
        kwargs["alpha"] = draw(st.floats(0, 1.5))
    if issubclass(cls, LAP):
        kwargs["kappa"] = draw(st.sampled_from([0.25, 1.0, 10.0]))
    return cls(**kwargs)


@settings(max_examples=40)
@given(schemes(), ERRORS, WEIGHTS)
def test_losses_and_gradients_equal_those_of_pytorch(scheme, errors, weights):
    td_errors = th.from_numpy(errors.copy()).requires_grad_()
    expected = scheme.loss(0.5 * td_errors.square(), td_errors, th.from_numpy(weights))
    expected.backward()
    loss, gradient = jax.value_and_grad(lambda each: scheme.jax_loss(0.5 * each**2, each, jnp.asarray(weights)))(errors)
    np.testing.assert_allclose(loss, expected.item(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(gradient, td_errors.grad.numpy(), rtol=1e-4, atol=1e-6)


class Halved(Proportional):
    """A user's scheme with a loss of its own."""

    def loss(self, losses: th.Tensor, td_errors: th.Tensor, weights: th.Tensor) -> th.Tensor:
        return super().loss(losses, td_errors, weights) / 2


class HalvedTwice(Halved):
    def jax_loss(self, losses: Any, td_errors: Any, weights: Any) -> Any:
        return Proportional.jax_loss(self, losses, td_errors, weights) / 2


class Cubic(Proportional):
    """A user's scheme that keeps the algorithm's loss."""

    def priority(self, abs_td_errors: np.ndarray) -> np.ndarray:
        return abs_td_errors**3 + 0.1


def test_a_scheme_with_a_loss_of_its_own_needs_a_jax_form():
    for scheme in (Halved(), Shuffled(Halved())):
        message = rf"PERDQN with {re.escape(repr(scheme))} is not supported: Halved has a loss\(\) .* Write jax_loss\(\)"
        with pytest.raises(NotImplementedError, match=message):
            make("dqn", replay_buffer_kwargs=dict(scheme=scheme))
    for scheme in (HalvedTwice(), Cubic()):
        assert make("dqn", replay_buffer_kwargs=dict(scheme=scheme)).replay_buffer.scheme is scheme
    PERDQN("MlpPolicy", "CartPole-v1", buffer_size=80, replay_buffer_kwargs=dict(scheme=Halved()))
