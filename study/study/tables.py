"""
Figures with intervals, tests, and the cells and tables of the reports, by rliable (Agarwal et al. 2021, arXiv 2108.13264).

- IQM: mean of the middle half of the runs; the interval holds 95% of 2,000 stratified bootstrap samples of the runs
- probability of improvement: how often a run of this arm scores higher than one of its reference in the same environment; an
  estimate that all samples agree on has no interval
- p: exact and two-sided, with Holm's correction over the table. Arms share their seeds, so from ten seeds on the test is
  paired: of the mean difference by seed. With fewer it exchanges the runs of the two arms, which was the test of all tables at
  first; its p stands in brackets beside a paired one
- gain: mean difference by seed, with a bootstrap interval over the seeds
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from scipy.stats import rankdata, trim_mean

from sb3_per.compare.report import p_text
from sb3_per.compare.statistics import holm, paired_p

SAMPLES = 2_000
PAIRED_FROM = 10  # seeds from which on arms are tested and estimated in pairs

# Scores by arm, more is better, shape (runs, environments), or for curves (runs, environments, evaluations).
Scores = dict[str, np.ndarray]
# Figures by arm, shape (3, n): value, and both ends of its interval.
Estimates = dict[str, np.ndarray]
Pair = tuple[np.ndarray, np.ndarray]  # scores of an arm and of its reference


def estimate(scores: dict[Any, Any], metric: Callable[..., np.ndarray]) -> Estimates:
    """Compute a metric, shape (n,), with intervals, of the scores of each arm or of the pairs to compare."""
    from rliable import library  # needed for reports alone: runs are also made where it is not installed

    np.random.seed(0)  # rliable draws from the global generator, whatever it is given
    figures, intervals = library.get_interval_estimates(scores, metric, reps=SAMPLES)
    return {name: np.vstack([figures[name], intervals[name]]) for name in scores}


def aggregate_iqm(values: np.ndarray) -> float:
    """Compute the interquartile mean of all values."""
    from rliable import metrics

    return float(metrics.aggregate_iqm(values))


def iqm(scores: Scores) -> Estimates:
    return estimate(scores, lambda values: np.array([aggregate_iqm(values)]))


def iqm_curves(curves: Scores) -> Estimates:
    # Take all columns at once, 2,000 times: rliable's aggregate_iqm takes one.
    return estimate(curves, lambda values: trim_mean(values.reshape(-1, values.shape[-1]), 0.25, axis=0))


def improvement(pairs: dict[Any, Pair]) -> Estimates:
    def probability(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        # The same as rliable's, which takes 30 times as long for its 2,000 samples.
        return np.array([np.mean(0.5 + 0.5 * np.sign(x[:, None] - y[None]))])

    return estimate(pairs, probability) if pairs else {}


def with_interval(values: np.ndarray, metric: Callable[[np.ndarray], Any] = lambda values: values.mean(axis=0)) -> np.ndarray:
    """Estimate a figure of the seeds, the first dimension: value and ends of its 95% bootstrap interval, shape (3, ...)."""
    picked = np.random.default_rng(0).integers(len(values), size=(SAMPLES, len(values)))
    return np.stack([metric(values), *np.percentile([metric(values[rows]) for rows in picked], [2.5, 97.5], axis=0)])


def is_paired(scores: Iterable[np.ndarray]) -> bool:
    return all(len(values) >= PAIRED_FROM for values in scores)


def at_best_rates(scores: Scores) -> tuple[dict[str, int], Scores]:
    """
    Take each arm, of shape (runs, rates), at the rate with the best IQM on one half of the seeds, and measure it on the other.
    Otherwise the best of several would be reported for its luck. Return the numbers of the rates, and the scores there.
    """
    best = {arm: int(np.argmax([aggregate_iqm(of_rate) for of_rate in each[::2].T])) for arm, each in scores.items()}
    return best, {arm: each[1::2, [best[arm]]] for arm, each in scores.items()}


def permutation_p(x: np.ndarray, y: np.ndarray) -> float:
    """
    Test exactly, two-sided, whether runs of x score higher than runs of y: how often is the probability of improvement at
    least as far from 0.5, if all ways to share the runs of each environment out between the two are alike? Both have the shape
    (runs, environments).
    """
    chances, observed = np.ones(1), 0
    for column in range(x.shape[1]):
        # Twice the ranks, which are integers where several values share the mean of their ranks.
        ranks = (2 * rankdata(np.concatenate([x[:, column], y[:, column]]))).astype(int)
        observed += int(ranks[: len(x)].sum())
        # In how many ways so many of the ranks have this sum.
        ways = np.zeros((len(x) + 1, ranks.sum() + 1))
        ways[0, 0] = 1.0
        for rank in ranks:
            ways[1:, rank:] += ways[:-1, :-rank].copy()
        chances = np.convolve(chances, ways[-1] / ways[-1].sum())
    distances = np.abs(np.arange(len(chances)) - np.arange(len(chances)) @ chances)
    return float(chances[distances >= distances[observed] - 1e-6].sum())


def p_of(x: np.ndarray, y: np.ndarray) -> float:
    """Test whether two arms with the same seeds differ, paired by seed from ten seeds on."""
    return paired_p((x - y).mean(axis=1)) if is_paired([x]) else permutation_p(x, y)


def p_cells(pairs: dict[Any, Pair]) -> dict[Any, str]:
    """Test all pairs of a table, with Holm's correction; p of the unpaired test stands behind a paired one."""
    p_values = holm({key: p_of(*pair) for key, pair in pairs.items()})
    unpaired = holm({key: permutation_p(*pair) for key, pair in pairs.items()})
    return {key: p_text(p_values[key]) + f" ({p_text(unpaired[key])})" * is_paired(pair) for key, pair in pairs.items()}


def shown(figure: np.ndarray, digits: int) -> str:
    """Format a figure, and its interval if it has one. The figure has shape (3,)."""
    value, low, high = (f"{each + 0.0:,.{digits}f}" for each in np.round(figure, digits))
    return value if low == high else f"{value} [{low}, {high}]"


def cell(estimates: Estimates, arm: str, digits: int, column: int = 0) -> str:
    return shown(estimates[arm][:, column], digits) if arm in estimates else ""


def table(heading: list[str], rows: list[list[str]]) -> list[str]:
    """Write a table in Markdown, with an empty line after it."""
    return [f"| {' | '.join(heading)} |", "|---" * len(heading) + "|", *(f"| {' | '.join(row)} |" for row in rows), ""]
