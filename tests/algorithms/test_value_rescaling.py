"""Rescaled values and their inverse equal the formulas, computed with 50 digits."""

from decimal import Decimal, getcontext

import numpy as np
import pytest
import torch as th

from sb3_per.algorithms.recurrent.value_rescaling import rescale, unscale

getcontext().prec = 50
VALUES = np.concatenate([-np.logspace(-12, 7, 400)[::-1], [0.0], np.logspace(-12, 7, 400)])


def exact(x: float, epsilon: float) -> float:
    """Compute ``h(x)`` with 50 digits."""
    value = abs(Decimal(x))
    h = (value + 1).sqrt() - 1 + Decimal(epsilon) * value
    return float(h.copy_sign(Decimal(x)))


@pytest.mark.parametrize("epsilon, dtype, bound", [(1e-3, th.float32, 5e-7), (1e-2, th.float64, 1e-15)])
def test_rescale_equals_the_formula_and_unscale_inverts_it(epsilon, dtype, bound):
    """The relative error is small, also for small values."""
    values = th.tensor(VALUES, dtype=dtype)
    formula = np.array([exact(x, epsilon) for x in values.tolist()])
    assert rescale(values, epsilon).dtype is dtype
    np.testing.assert_allclose(rescale(values, epsilon), formula, rtol=bound, atol=0)

    rescaled = th.tensor([exact(x, epsilon) for x in VALUES], dtype=dtype)
    # Invert the rounded number exactly, by one step of Newton's method from an almost exact value.
    x = th.tensor(VALUES)
    slope = 0.5 / (x.abs() + 1).sqrt() + epsilon
    expected = x + (rescaled.double() - th.tensor([exact(v, epsilon) for v in VALUES], dtype=th.float64)) / slope
    np.testing.assert_allclose(unscale(rescaled, epsilon), expected, rtol=bound * 2 if dtype is th.float64 else bound, atol=0)


def test_the_inverse_of_the_paper_is_less_exact():
    """Compute the form of the paper in float32."""
    z = rescale(th.tensor(VALUES)).float()
    usual = z.sign() * ((((1 + 4e-3 * (z.abs() + 1 + 1e-3)).sqrt() - 1) / 2e-3) ** 2 - 1)
    error = (usual.double() - th.tensor(VALUES)).abs() / (1 + th.tensor(VALUES).abs())
    assert error.max() > 1e-5


def test_gradients_are_finite_and_positive():
    for function in (rescale, unscale):
        values = th.tensor(VALUES, requires_grad=True)
        function(values).sum().backward()
        assert th.isfinite(values.grad).all() and (values.grad > 0).all()
    values = th.linspace(-5, 5, 11, dtype=th.float64, requires_grad=True)
    assert th.autograd.gradcheck(rescale, (values,)) and th.autograd.gradcheck(unscale, (values,))
