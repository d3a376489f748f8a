"""Statistics of a comparison equal brute-force computations."""

import itertools

import numpy as np
import pytest
from scipy import stats

from sb3_per.compare.statistics import holm, least_difference, least_seeds, mean_interval, paired_p


def test_paired_p_equals_a_list_of_all_signs():
    """Include ties, and differences of 0."""
    for n in (1, 2, 9, 12):
        rng = np.random.default_rng(n)
        for values in (rng.normal(0.5, 1.0, n), rng.integers(-2, 4, n) * 0.1, np.zeros(n)):
            signs = np.array(list(itertools.product((-1, 1), repeat=n)))
            assert paired_p(values) == np.mean(np.abs(signs @ values) >= abs(values.sum()) - 1e-9)


def test_paired_p_of_many_pairs_is_near_that_of_all_signs():
    differences = np.random.default_rng(0).normal(0.45, 1.0, 20)
    repeated = np.concatenate([differences, np.zeros(30)])  # zeros change no sum
    assert paired_p(repeated) == pytest.approx(paired_p(differences), abs=0.002)
    assert paired_p(np.ones(50)) == pytest.approx(1 / 200_000)


def test_least_seeds_is_the_first_number_that_can_decide():
    for n_tests in (1, 4, 22):
        least = least_seeds(n_tests)
        p_values = [holm({i: paired_p(np.ones(n)) for i in range(n_tests)})[0] for n in (least - 1, least)]
        assert p_values[0] >= 0.05 > p_values[1]


def test_the_least_difference_is_found_in_most_cases():
    """Of differences that are half as large, few are found."""
    rng = np.random.default_rng(0)
    difference = least_difference(15, 8)
    for mean, low, high in ((difference, 0.7, 0.9), (difference / 2, 0.0, 0.3)):
        assert low < np.mean([8 * paired_p(rng.normal(mean, 1.0, 15)) < 0.05 for _ in range(200)]) < high


def test_the_interval_is_that_of_students_test():
    differences = np.array([3.0, 8.0, 4.0])
    of_test = stats.ttest_1samp(differences, 0).confidence_interval()
    assert mean_interval(differences) == pytest.approx((5.0, of_test.low, of_test.high))
    assert mean_interval(np.ones(1)).tolist() == [1.0, -np.inf, np.inf]


def test_holm_correction_equals_its_definition():
    assert holm({"a": 0.03, "b": 0.01, "c": 0.02}) == pytest.approx({"a": 0.04, "b": 0.03, "c": 0.04})
    assert holm({"a": 0.4, "b": 0.6}) == pytest.approx({"a": 0.8, "b": 0.8})
