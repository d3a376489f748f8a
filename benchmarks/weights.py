"""
Measure how even the importance-sampling weights are, by epsilon and normalization. Batches come from a full buffer with mostly
tiny errors, with the buffer and the metrics of the package.

    python benchmarks/weights.py                   # print the table, draw docs/weights.png
    python benchmarks/weights.py --out runs/try    # draw into another folder
"""

import itertools
from pathlib import Path

import numpy as np
from campaign import options
from figures import figure_of, looks, save
from gymnasium import spaces
from tables import table

from sb3_per import PrioritizedReplayBuffer
from sb3_per.algorithms.metrics import weight_metrics

OUT = Path(__file__).resolve().parents[1] / "docs"

N_TRANSITIONS, N_ENVS = 100_000, 1_000
BATCH_SIZE = 256
# By normalization: its line. They coincide in the first panel.
LINES = {"max": "-", "mean": "--", "none": ":"}
N_BATCHES = 200
EPSILONS = (1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.03, 0.1, 0.3, 1.0)
METRICS = ("per/effective_sample_size", "per/mean_weight")


def td_errors() -> np.ndarray:
    """Make errors of which 95 in 100 are about 1e-4 and the others about 1. Shape (N_TRANSITIONS,)."""
    rng = np.random.default_rng(0)
    return np.abs(rng.normal(size=N_TRANSITIONS)) * np.where(rng.random(N_TRANSITIONS) < 0.95, 1e-4, 1.0)


def metrics_of(epsilon: float, normalization: str, n_batches: int = N_BATCHES) -> np.ndarray:
    """Draw the same batches for every normalization at beta 1. Return ``METRICS`` of each, shape (2, n_batches)."""
    np.random.seed(0)  # the buffer draws from the global generator
    space, errors = spaces.Box(-1, 1, (1,), np.float32), td_errors()
    settings = dict(beta_start=1.0, epsilon=epsilon, weight_normalization=normalization)
    buffer = PrioritizedReplayBuffer(N_TRANSITIONS, space, spaces.Discrete(2), "cpu", N_ENVS, **settings)
    column = np.zeros((N_ENVS, 1))
    for _ in range(N_TRANSITIONS // N_ENVS):
        buffer.add(column, column, column, column[:, 0], column[:, 0], [{}] * N_ENVS)
    buffer.update_priorities(np.arange(N_TRANSITIONS), errors)
    found = []
    for _ in range(n_batches):
        batch = buffer.sample(BATCH_SIZE)
        buffer.update_priorities(batch.indices, errors[batch.indices])  # keep the errors: learning would lower them
        metrics = weight_metrics(batch.weights.numpy())
        found.append([metrics[metric] for metric in METRICS])
    return np.array(found).T


def draw(found: dict[tuple[str, float], np.ndarray], path: Path) -> None:
    """Draw a panel for each metric and a line for each normalization: mean and middle 80% of the batches."""
    figure = figure_of(3.8)
    look = looks({"max": "defaults", "mean": "", "none": ""})
    all_axes = figure.subplots(1, 2)
    for (i, axes), (normalization, line) in itertools.product(enumerate(all_axes), LINES.items()):
        color, values = look[normalization]["color"], np.stack([found[normalization, epsilon][i] for epsilon in EPSILONS])
        axes.plot(EPSILONS, values.mean(axis=1), line, color=color, label=f'"{normalization}"')
        axes.fill_between(EPSILONS, *np.percentile(values, [10, 90], axis=1), color=color, alpha=0.18, linewidth=0)
        axes.set(xscale="log", xlabel="epsilon", title=METRICS[i])
    all_axes[0].set_ylim(0, 1)
    all_axes[1].set(yscale="log")
    all_axes[0].legend(title="weight_normalization")
    save(figure, path)


def main(arguments: list[str] | None = None) -> None:
    out = options(__doc__, out=OUT).parse_args(arguments).out
    found = {(n, epsilon): metrics_of(epsilon, n) for n in LINES for epsilon in EPSILONS}
    rows = []
    for (normalization, epsilon), (sizes, weights) in found.items():
        variation = weights.std() / weights.mean()
        rows.append([normalization, f"{epsilon:g}", f"{sizes.mean():.2f}", f"{weights.mean():.3f} ({variation:.2f})"])
    heading = ["weight_normalization", "epsilon", "effective sample size", "mean weight (its variation from batch to batch)"]
    print("\n".join(table(heading, rows)))
    out.mkdir(parents=True, exist_ok=True)
    draw(found, out / "weights.png")


if __name__ == "__main__":
    main()
