"""Statistics of scores: larger is better everywhere. Arms share their seeds, so runs with the same seed are a pair."""

import itertools
import math
from typing import Any

import numpy as np
from scipy import stats

# Most seeds for which all choices of their signs are listed, and the number of random choices for more.
_MOST_LISTED, _N_DRAWN = 20, 200_000

# Sums of floats that are equal may differ in their last digits.
_SLACK = 1e-9


def paired_p(differences: np.ndarray) -> float:
    """
    Test two-sided whether runs that come in pairs differ: how often is the mean difference at least as far from 0, if each
    difference may have either sign? The count is exact for up to 40 pairs. For more, see :func:`tuned_p`.

    :param differences: score of one arm minus the score of the other with the same seed, shape (pairs,)
    :return: p-value
    """
    n_pairs = len(differences)
    if n_pairs > 2 * _MOST_LISTED:
        return tuned_p(differences[None], np.zeros((1, n_pairs)))
    # A sum of all pairs is a sum of the first half and one of the second. As many sums are below 0 as above.
    first, second = (_signed_sums(half[:, None])[:, 0] for half in np.split(differences, [n_pairs // 2]))
    least = abs(differences.sum()) - _SLACK * np.abs(differences).sum()
    n_below = np.searchsorted(np.sort(second), least - first).sum()
    return float(min(2 * (1 - n_below / 2**n_pairs), 1.0))


def tuned_p(x: np.ndarray, y: np.ndarray) -> float:
    """
    Test two-sided whether two arms differ, each at its own best learning rate. The best rate of each arm is chosen anew each
    time that the two arms swap some of their seeds. So both may be lucky in their choice, and every seed counts.

    With one learning rate it is the test of :func:`paired_p`. The count is exact for up to 20 seeds. For more seeds, it is of
    200,000 random choices of the swaps, always the same ones.

    :param x: scores, shape (rates, seeds)
    :param y: scores of the other arm with the same seeds, shape (rates, seeds)
    :return: p-value
    """
    both, apart = (x + y).mean(axis=1), _signed_sums((x - y).T) / x.shape[1]
    gains = np.abs((both + apart).max(axis=1) - (both - apart).max(axis=1))
    return float(np.mean(gains >= gains[0] - _SLACK * np.abs([x, y]).mean()))


def _signed_sums(values: np.ndarray) -> np.ndarray:
    """
    Add values with all choices of their signs, or with random ones.

    :param values: shape (n, k); a sign belongs to a row
    :return: sums of the rows, shape (choices, k); the first is that without a change of sign
    """
    if len(values) > _MOST_LISTED:
        signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(_N_DRAWN, len(values)))
        signs[0] = 1.0  # the observed signs count as one of the choices
        return np.asarray(signs @ values)
    sums = np.zeros((1, values.shape[1]))
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    return sums


def least_seeds(n_tests: int, level: float = 0.05) -> int:
    """
    Count the seeds that paired tests need before any of them can show a difference. The smallest p-value of a test is
    2 ** (1 - n), if one arm is better with each of n seeds.

    :param n_tests: number of tests in the table, for which Holm's method corrects
    :param level: level of significance
    :return: smallest number of seeds with a corrected p-value below the level
    """
    return next(n for n in itertools.count(1) if n_tests * 2.0 ** (1 - n) < level)


def mean_interval(values: np.ndarray) -> np.ndarray:
    """
    Estimate the mean over the runs, with Student's 95% interval.

    :param values: values of at least two runs, the first dimension
    :return: mean, and the ends of its interval, shape (3, ...)
    """
    middle = values.mean(axis=0)
    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values, axis=0)
    return np.stack([middle, middle - half, middle + half])


def paired_interval(x: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    """
    Estimate the difference of two arms, each at its own best learning rate.

    The interval is Student's, with the standard error of a paired bootstrap. Quantiles of a bootstrap of few runs make
    intervals that are too short: in 2,000 trials with three normal differences, 73% of them had the true mean, with ten 90%.

    :param x: scores, shape (rates, seeds), or (seeds,) for one rate
    :param y: scores of the other arm with the same seeds, same shape
    :return: difference of the means, and the ends of its 95% interval, which are infinite for one seed
    """
    x, y = np.atleast_2d(x), np.atleast_2d(y)

    def gain(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.asarray(x.mean(axis=-1).max(axis=0) - y.mean(axis=-1).max(axis=0))

    middle, n_seeds = float(gain(x, y)), x.shape[1]
    if n_seeds == 1:
        return middle, -math.inf, math.inf
    if len(x) == 1:
        error = float(stats.sem(x[0] - y[0]))
    else:
        rows = np.random.default_rng(0).integers(n_seeds, size=(10_000, n_seeds))
        # Student's interval wants the standard error of a sample, which is larger than that of the bootstrap.
        error = float(gain(x[:, rows], y[:, rows]).std()) * math.sqrt(n_seeds / (n_seeds - 1))
    half = float(stats.t.ppf(0.975, n_seeds - 1)) * error
    return middle, middle - half, middle + half


def holm(p_values: dict[Any, float]) -> dict[Any, float]:
    """
    Correct for the number of tests by Holm's method.

    :param p_values: p-values of all tests of a table
    :return: p-values for which "all that are below 0.05 are real" holds with a probability of 95%
    """
    ordered = sorted(p_values, key=lambda key: p_values[key])
    times = [min(1.0, (len(ordered) - i) * p_values[key]) for i, key in enumerate(ordered)]
    return dict(zip(ordered, itertools.accumulate(times, max), strict=True))
