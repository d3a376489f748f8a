"""Formulas of the schemes, each against its equation."""

import numpy as np
import pytest
import torch as th

from sb3_per import PriorityScheme, Proportional
from tests.utils import fill, make_buffer


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("epsilon", [1e-6, 0.5])
def test_proportional(alpha, epsilon):
    scheme = Proportional(alpha, epsilon)
    abs_td_errors = np.array([0.0, 1e-9, 0.3, 4.0])
    mass = scheme.mass(scheme.priority(abs_td_errors))
    np.testing.assert_allclose(mass, (abs_td_errors + epsilon) ** alpha)
    if alpha == 0.0:
        assert (mass == 1).all()


def test_weighted_loss():
    """Mean over the batch, sum over the critics; the gradient of each sample is scaled by its weight."""
    td_errors = th.tensor([[0.5, -1.0], [2.0, 0.1], [-3.0, 1.0]], requires_grad=True)
    weights = th.tensor([[1.0], [0.25], [0.0]])
    loss = Proportional().loss(0.5 * td_errors.square(), td_errors, weights)
    assert loss.item() == pytest.approx((1.0 * 0.5 * (0.25 + 1.0) + 0.25 * 0.5 * (4.0 + 0.01)) / 3)
    loss.backward()
    th.testing.assert_close(td_errors.grad, weights * td_errors.detach() / 3)


class Shifted(PriorityScheme):
    """A user's own scheme: what a transition is worth, in three lines."""

    def priority(self, abs_td_errors):
        return abs_td_errors + 2.0


class Unweighted(Shifted):
    importance_sampling = False


def test_own_scheme():
    buffer = make_buffer(4, scheme=Shifted(alpha=1.0, td_error_reduction="max"))
    fill([buffer], 4)
    buffer.update_priorities(np.arange(4), [[0.0, 0.0], [1.0, -2.0], [3.0, 0.0], [-4.0, 0.0]])
    np.testing.assert_array_equal(buffer.priorities[:, 0], [2.0, 4.0, 5.0, 6.0])
    assert buffer.max_priority == 6.0
    assert buffer.sample(32).weights.min() < 1
    buffer = make_buffer(4, scheme=Unweighted(alpha=1.0))
    fill([buffer], 4)
    buffer.update_priorities(np.arange(4), np.arange(4.0))
    assert (buffer.sample(32).weights == 1).all()


def test_repr_names_the_settings():
    assert repr(Proportional(0.5, 1e-3)) == "Proportional(alpha=0.5, td_error_reduction='mean', epsilon=0.001)"


@pytest.mark.parametrize(
    "kwargs, value", [(dict(alpha=-1.0), "-1.0"), (dict(epsilon=0.0), "0.0"), (dict(alpha=np.inf), "inf")]
)
def test_bad_settings(kwargs, value):
    with pytest.raises(ValueError, match=value):
        Proportional(**kwargs)
