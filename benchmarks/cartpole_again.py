"""
CartPole without velocities once more: is the recurrent agent that solves it still good when training ends?

    python benchmarks/cartpole_again.py    # what is missing, and the table

The five seeds of memory-cartpole ended at 500 [492, 500], as the mean of the last fifth of the evaluations. Other runs with
the same settings had a last policy of 216 to 500. Written down before the first run:

- PERRecurrentDQN as in memory-cartpole, which is what `zoo_configs` ships, on 15 new seeds. No settings are tried.
- Two scores, beside each other: the last policy, which is what you keep, and the mean of the last fifth of the evaluations,
  two of ten. Each for every seed; their medians, their lowest values, and how many seeds have at least 475, which is "solved".
- Nothing is tested. If not all 15 last policies solve the task, the page says that training is not stable at its end.
"""

from dataclasses import replace

import numpy as np
from campaign import options
from learning import jobs_of, seeds_of, train
from report import load
from suites import MEMORY_SUITES
from tables import table

from sb3_per.compare.campaign import Job, read, run_missing

NAME, ARM, SOLVED = "memory-cartpole-again", "PERRecurrentDQN", 475.0
_SUITE = MEMORY_SUITES["memory-cartpole"]
SUITE = replace(_SUITE, variants={ARM: _SUITE.variants[ARM]}, seeds=15, first_seed=1_000)


def jobs() -> list[Job]:
    """List the runs."""
    return jobs_of(SUITE)


def report(rows: list[dict[str, str]]) -> list[str]:
    """Write the table; only the number of runs while some are missing."""
    returns = load(SUITE, rows)[ARM].reshape(-1, SUITE.n_evaluations)
    if len(returns) < SUITE.seeds:
        return [f"{len(returns)} of {SUITE.seeds} runs are there; the table follows when all are."]
    scores = {"last policy": returns[:, -1], "mean of the last fifth": returns[:, -SUITE.n_evaluations // 5 :].mean(axis=1)}
    cells = [
        [
            name,
            f"{np.median(s):.0f}",
            f"{s.min():.0f}",
            f"{(s >= SOLVED).sum()} of {len(s)}",
            ", ".join(f"{x:.0f}" for x in np.sort(s)),
        ]
        for name, s in scores.items()
    ]
    heading = ["score", "median", "lowest", "seeds with at least 475", "all seeds, sorted"]
    seeds = seeds_of(SUITE)
    words = f"{len(seeds)} runs of {SUITE.steps:,} steps, seeds {seeds[0]} to {seeds[-1]}."
    return [words, "", *table(heading, cells)[:-1]]


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing, and write the table."""
    args = options(__doc__, [NAME]).parse_args(arguments)
    run_missing(args.out / f"{NAME}.csv", jobs(), train, args.workers, args.deadline)
    (args.out / f"{NAME}.md").write_text("\n".join(report(read(args.out / f"{NAME}.csv"))) + "\n")


if __name__ == "__main__":
    main()
