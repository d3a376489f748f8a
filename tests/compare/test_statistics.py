"""Statistics of a comparison equal brute-force computations."""

import itertools

import numpy as np
import pytest
from scipy import stats

from sb3_per import LAP
from sb3_per.compare import controls
from sb3_per.compare.statistics import (
    holm,
    least_seeds,
    paired_interval,
    paired_p,
    tuned_p,
)


@pytest.mark.parametrize("n", [1, 2, 9, 12])
def test_paired_p_equals_a_list_of_all_signs(n):
    """Include ties, and differences of 0."""
    rng = np.random.default_rng(n)
    for values in (rng.normal(0.5, 1.0, n), rng.integers(-2, 4, n) * 0.1, np.zeros(n)):
        signs = np.array(list(itertools.product((-1, 1), repeat=n)))
        assert paired_p(values) == np.mean(np.abs(signs @ values) >= abs(values.sum()) - 1e-9)
    assert paired_p(np.array([1.0, 2.0, 3.0])) == 2 / 8


def test_paired_p_of_many_pairs_is_near_that_of_all_signs():
    differences = np.random.default_rng(0).normal(0.45, 1.0, 20)
    repeated = np.concatenate([differences, np.zeros(30)])  # zeros change no sum
    assert paired_p(repeated) == pytest.approx(paired_p(differences), abs=0.002)
    assert paired_p(np.ones(50)) == pytest.approx(1 / 200_000)


@pytest.mark.parametrize("n", [1, 5, 9])
def test_tuned_p_equals_a_list_of_all_swaps(n):
    """The best rate is chosen anew after each swap. Include ties."""
    rng = np.random.default_rng(n)
    for x, y in ((rng.normal(0.7, 1.0, (3, n)), rng.normal(0, 1.0, (3, n))), rng.integers(0, 3, (2, 3, n)) * 0.1):
        gains = []
        for swapped in itertools.product((False, True), repeat=n):
            ours, theirs = np.where(swapped, y, x), np.where(swapped, x, y)
            gains.append(abs(max(row.mean() for row in ours) - max(row.mean() for row in theirs)))
        assert tuned_p(x, y) == np.mean(np.array(gains) >= gains[0] - 1e-9)


def test_tuned_p_of_one_rate_is_the_paired_test():
    x, y = np.random.default_rng(0).normal(size=(2, 1, 9))
    assert tuned_p(x, y) == paired_p(x[0] - y[0])


def test_tuned_p_of_many_seeds_is_drawn():
    x, y = np.random.default_rng(0).normal([[[0.4]], [[0.0]]], 1.0, size=(2, 3, 30))
    assert tuned_p(x, y) == tuned_p(x, y)
    assert tuned_p(x + 9, y) == pytest.approx(1 / 200_000, abs=2e-5)


def test_least_seeds_is_the_first_number_that_can_decide():
    for n_tests in (1, 4, 10, 22):
        least = least_seeds(n_tests)
        p_values = [holm({i: paired_p(np.ones(n)) for i in range(n_tests)})[0] for n in (least - 1, least)]
        assert p_values[0] >= 0.05 > p_values[1]


@pytest.mark.parametrize("n_seeds", [3, 10])
@pytest.mark.parametrize("n_rates", [1, 3])
def test_the_interval_has_the_true_difference_in_95_percent(n_seeds, n_rates):
    """The quantiles of a bootstrap have it in 73% with three seeds."""
    rng = np.random.default_rng(1)
    best = np.linspace(0.0, 1.0, n_rates)[:, None]
    n_covered = 0
    for _ in range(200):
        x, y = best + rng.normal(size=(1, n_seeds)) + rng.normal(0, 0.3, size=(2, n_rates, n_seeds))
        middle, low, high = paired_interval(x + 2, y)
        assert middle == pytest.approx((x + 2).mean(axis=1).max() - y.mean(axis=1).max())
        n_covered += low <= 2 <= high
    assert 0.9 <= n_covered / 200 <= 0.995


def test_the_interval_is_that_of_students_test():
    differences = np.array([3.0, 8.0, 4.0])
    of_test = stats.ttest_1samp(differences, 0).confidence_interval()
    assert paired_interval(differences, np.zeros(3)) == pytest.approx((5.0, of_test.low, of_test.high))
    assert paired_interval(np.ones(1), np.zeros(1)) == (1.0, -np.inf, np.inf)


def test_holm_correction_equals_its_definition():
    assert holm({"a": 0.03, "b": 0.01, "c": 0.02}) == pytest.approx({"a": 0.04, "b": 0.03, "c": 0.04})
    assert holm({"a": 0.4, "b": 0.6}) == pytest.approx({"a": 0.8, "b": 0.8})


def test_a_control_has_the_same_priorities_in_another_order():
    control = controls.control_of(dict(scheme="lap", kappa=0.3, uniform_fraction=0.1))
    assert control["uniform_fraction"] == 0.1
    assert (control["scheme"].kappa, control["scheme"].replaces_loss) == (0.3, True)
    errors = np.arange(100.0).reshape(50, 2)
    np.random.seed(0)
    reduced = control["scheme"].reduce(errors)
    assert sorted(reduced) == sorted(errors.max(axis=1)) and list(reduced) != list(errors.max(axis=1))


def test_the_control_of_a_scheme_object_shuffles_a_copy():
    scheme = LAP(kappa=0.3)
    control = controls.control_of(dict(scheme=scheme))["scheme"]
    errors = np.arange(100.0)[:, None]
    assert (scheme.reduce(errors) == errors[:, 0]).all()
    assert (control.reduce(errors) != errors[:, 0]).any() and control.kappa == 0.3
