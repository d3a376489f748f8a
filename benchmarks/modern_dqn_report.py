"""
Report the runs of `modern_dqn.py`: write ``modern-dqn.md`` and ``modern-dqn.png``.

    python benchmarks/modern_dqn_report.py    # from docs/evidence/modern-dqn.csv

Only reporting seeds with all games and all arms count. Endpoints and tests are in `modern_dqn.py`.
"""

from pathlib import Path

import numpy as np
from figures import INK, figure_of, save
from modern_dqn import ARMS, GAMES, RANDOM, REPORTING, chosen_rates, random_jobs, reporting_jobs, score
from report import Estimates, Scores, better_towards, cell, errorbars, improvement, iqm, p_cell, p_of, publish, table

from sb3_per.compare.statistics import holm

TWIN = "uniform"
OTHERS = [arm for arm in ARMS if arm != TWIN]


def load(rows: list[dict[str, str]]) -> tuple[list[int], Scores, dict[str, float]]:
    """
    Load the complete seeds.

    :param rows: rows of the file
    :return: the complete seeds; by arm the scores, shape (seeds, games); by game the mean return of a random policy
    """
    found = {(row["environment"], row["variant"], row["seed"], row["settings"]): row for row in rows}

    def score_of(name: dict[str, object]) -> float | None:
        row = found.get(tuple(str(name[key]) for key in ("environment", "variant", "seed", "settings")))  # type: ignore[arg-type]
        return None if row is None else score(row)

    scores: dict[tuple[object, str, object], float] = {}
    for name, (_, game, variant, seed) in reporting_jobs(chosen_rates(rows)):
        value = score_of(name)
        if value is not None:
            scores[seed, variant.partition(" @ ")[0], game] = value
    seeds = [seed for seed in REPORTING if all((seed, arm, game) in scores for arm in ARMS for game in GAMES)]
    by_arm = {arm: np.array([[scores[seed, arm, game] for game in GAMES] for seed in seeds]) for arm in ARMS}
    of_random = {str(name["environment"]): score_of(name) for name, _ in random_jobs()}
    return seeds, by_arm, {game: value for game, value in of_random.items() if value is not None}


def learned_games(scores: Scores, of_random: dict[str, float]) -> list[int]:
    """Find the games in which the mean score of the twin is at least twice the return of a random policy."""
    return [i for i, game in enumerate(GAMES) if scores[TWIN][:, i].mean() >= 2.0 * of_random[game]]


def relative(scores: Scores) -> Scores:
    """Divide scores by the mean score of the twin in the same game."""
    unit = scores[TWIN].mean(axis=0)
    return {arm: values / unit for arm, values in scores.items()}


def compared(rows: list[dict[str, str]]) -> tuple[Scores, Estimates, dict[str, float]]:
    """
    Compare the arms with the twin over the learned games.

    :param rows: rows of the file
    :return: by arm: scores in units of the twin's mean in the same game, shape (seeds, games), the probability of improvement,
        and p with Holm's correction
    """
    _, scores, of_random = load(rows)
    games = learned_games(scores, of_random)
    counted = {arm: values[:, games] for arm, values in relative(scores).items()}
    p_values = holm({arm: p_of(counted[arm], counted[TWIN]) for arm in OTHERS})
    return counted, improvement(counted, dict.fromkeys(OTHERS, TWIN)), p_values


def report(rows: list[dict[str, str]]) -> list[str]:
    """
    Write the tables.

    :param rows: rows of the file
    :return: the lines of the tables
    """
    seeds, scores, of_random = load(rows)
    rates, games = chosen_rates(rows), learned_games(scores, of_random)
    counted, better, p_values = compared(rows)
    middle = iqm(counted)
    lines = [
        f"{len(seeds)} seeds, {seeds[0]} to {seeds[-1]}, on which nothing was chosen, in {len(games)} games. The score is in",
        "units of the twin's mean in the same game. p against the twin, exact, with Holm's correction for the two arms.",
        "",
    ]
    cells = [[arm, f"{rates[arm]:g}", cell(middle, arm, 2), cell(better, arm, 2), p_cell(p_values, arm)] for arm in ARMS]
    lines += table(["arm", "learning rate, of the task's", "IQM [95% interval]", "probability of improvement", "p"], cells)
    lines += ["Mean score in each game:", ""]
    cells = []
    for i, game in enumerate(GAMES):
        means = [f"{scores[arm][:, i].mean():.2f}" for arm in ARMS]
        cells.append([f"MinAtar {game[8:-3]}", f"{of_random[game]:.2f}", *means, "yes" if i in games else "no"])
    return lines + table(["game", RANDOM, *ARMS, "learned by the twin"], cells)


def draw(rows: list[dict[str, str]], path: Path) -> None:
    """Draw a dot for each arm over all games, relative to the twin, and grey ones for single games, which are not compared."""
    seeds, scores, of_random = load(rows)
    games, values = learned_games(scores, of_random), relative(scores)
    panels = {"all games" if len(games) == len(GAMES) else "learned games": games}
    panels |= {GAMES[i][8:-3]: [i] for i in range(len(GAMES))}
    figure = figure_of(4.4)
    axes = figure.subplots()
    axes.axvline(1.0, color=INK, linewidth=1)
    handles = []
    for k, arm in enumerate(ARMS):
        estimates = [iqm({arm: values[arm][:, columns]})[arm] for columns in panels.values()]
        places = [-place + 0.22 - 0.22 * k for place in range(len(panels))]
        over_all, of_games = dict(enumerate(estimates[:1])), dict(enumerate(estimates[1:]))
        handles.append(errorbars(axes, over_all, places[:1], arm))  # type: ignore[arg-type]
        errorbars(axes, of_games, places[1:], arm, is_control=True, is_grey=True)  # type: ignore[arg-type]
    axes.set_yticks([-place for place in range(len(panels))], list(panels))
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"score, in units of the uniform twin's mean; {len(seeds)} seeds")
    better_towards(axes, "right")
    figure.legend(handles, list(ARMS), loc="outside upper center", ncols=len(ARMS))
    save(figure, path)


def main(arguments: list[str] | None = None) -> None:
    """Write the tables and the figures."""
    publish(str(__doc__), {"modern-dqn": (load, report, draw)}, arguments)


if __name__ == "__main__":
    main()
