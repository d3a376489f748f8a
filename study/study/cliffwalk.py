"""
Blind Cliffwalk (Schaul et al. 2016, section 3.1, figure 1, and appendix B.1), through the real buffer.

    python -m study.cliffwalk    # run what is missing, write table and figure

There are n states in a row. The right action advances, and has a reward of 1 in the last state. The wrong one ends the
episode. The buffer holds the transitions of all 2^n sequences of actions, and tabular Q-learning replays them one at a time,
until the mean squared error to the true values is below 1e-3.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from sb3_per import PrioritizedReplayBuffer
from sb3_per.compare.campaign import Job, read, run_missing

from .campaign import options
from .figures import INK, figure_of, looks, save
from .tables import table, with_interval

SIZES, SEEDS = range(2, 15), 11
# In the last two, new transitions enter with their own TD error in place of the maximum.
REPLAYS = ("uniform", "oracle", "proportional", "rank", "proportional, own error", "rank, own error")
OWN_ERROR = ", own error"
STEP_SIZE = 0.25
THRESHOLD = 1e-3
MAX_UPDATES = 20_000_000


def all_transitions(n_states: int) -> list[tuple[int, int, float, int, bool]]:
    """List (state, action, reward, next state, done) of all 2^n action sequences. Action 1 advances, 0 ends the episode."""
    transitions = []
    for length in range(n_states + 1):  # number of right actions before the wrong one
        sequences = 2 ** (n_states - 1 - length) if length < n_states else 1
        episode = [(state, 1, float(state == n_states - 1), state + 1, state == n_states - 1) for state in range(length)]
        if length < n_states:
            episode.append((length, 0, 0.0, 0, True))
        transitions += episode * sequences
    return transitions


class Learner:
    """Tabular Q-learning, and its distance from the true values."""

    def __init__(self, n_states: int):
        self.n_states = n_states
        self.gamma = 1 - 1 / n_states
        self.q = np.random.normal(0, 0.1, (n_states + 1, 2))
        self.q[-1] = 0.0  # the state after the last one has no actions, no value and no part in the error
        self.true_q = np.zeros((n_states + 1, 2))
        self.true_q[:-1, 1] = self.gamma ** np.arange(n_states - 1, -1, -1.0)

    @property
    def error(self) -> float:
        return float(np.sum((self.q - self.true_q) ** 2)) / (2 * self.n_states)

    def td_error(self, state: int, action: int) -> float:
        """Compute the TD error of the only transition with this state and action."""
        if action == 0:
            return -float(self.q[state, 0])
        if state == self.n_states - 1:
            return 1.0 - float(self.q[state, 1])
        return float(self.gamma * self.q[state + 1].max() - self.q[state, 1])

    def update(self, state: int, action: int) -> float:
        """Update the value of an action. Return the TD error before the update."""
        td_error = self.td_error(state, action)
        self.q[state, action] += STEP_SIZE * td_error
        return td_error


def fill(buffer: PrioritizedReplayBuffer, n_states: int, learner: Learner | None = None) -> None:
    """Add all transitions in random order, with the learner's TD errors, or without one with the maximum."""
    transitions = all_transitions(n_states)
    for i in np.random.permutation(len(transitions)):
        state, action, reward, next_state, done = transitions[i]
        errors = None if learner is None else np.array([learner.td_error(state, action)])
        parts = (np.array([part]) for part in (state, next_state, action, reward, done))
        buffer.add(*parts, [{}], td_errors=errors)


def replay(learner: Learner, scheme: str) -> Iterator[None]:
    """Update with one drawn transition at a time, without importance-sampling weights."""
    n_states, knows_errors = learner.n_states, scheme.endswith(OWN_ERROR)
    states, actions, size = spaces.Discrete(n_states + 1), spaces.Discrete(2), len(all_transitions(n_states))
    settings: dict[str, Any] = {} if scheme == "uniform" else dict(beta_start=0.0, beta_end=0.0)
    settings |= dict(scheme=scheme.removesuffix(OWN_ERROR), initial_priority="td_error" if knows_errors else "max")
    buffer = PrioritizedReplayBuffer(size, states, actions, "cpu", **settings)
    fill(buffer, n_states, learner if knows_errors else None)
    while True:
        batch = buffer.sample(1)
        td_error = learner.update(batch.observations.item(), batch.actions.item())
        buffer.update_priorities(batch.indices, np.array([td_error]))
        yield


def oracle(learner: Learner) -> Iterator[None]:
    """Update with the transition that reduces the error to the true values most."""
    states, actions = np.divmod(np.arange(2 * learner.n_states), 2)
    while True:
        td_errors = np.array([learner.td_error(state, action) for state, action in zip(states, actions, strict=True)])
        before = learner.q[states, actions] - learner.true_q[states, actions]
        best = np.argmin((before + STEP_SIZE * td_errors) ** 2 - before**2)
        learner.update(states[best], actions[best])
        yield


def updates_until_learned(n_states: int, replayed: str, seed: int, max_updates: int = MAX_UPDATES) -> dict[str, Any]:
    """Count updates until the values are learned. The seed is of the order in the buffer, the first values and the draws."""
    np.random.seed(seed)
    learner = Learner(n_states)
    steps = oracle(learner) if replayed == "oracle" else replay(learner, replayed)
    n_updates = 0
    while learner.error >= THRESHOLD and n_updates < max_updates:
        next(steps)
        n_updates += 1
    return {"updates": n_updates}


def jobs() -> list[Job]:
    names = [dict(n_states=n, replay=r, seed=seed) for n, r, seed in itertools.product(SIZES, REPLAYS, range(SEEDS))]
    return [(name, tuple(name.values())) for name in names]


def medians(rows: list[dict[str, str]]) -> dict[str, np.ndarray]:
    """Summarise the runs by replay: median of the updates, and the ends of its 95% interval, shape (3, sizes)."""
    updates = {(row["n_states"], row["replay"], int(row["seed"])): float(row["updates"]) for row in rows}
    runs = {r: np.array([[updates[str(n), r, seed] for n in SIZES] for seed in range(SEEDS)]) for r in REPLAYS}
    return {replayed: with_interval(of, lambda values: np.median(values, axis=0)) for replayed, of in runs.items()}


def growth(medians: np.ndarray) -> float:
    """Fit the factor for each further state: exponential of the slope of log(updates) over n, least squares, from n = 8 on."""
    first = SIZES.index(8)
    return float(np.exp(np.polyfit(SIZES[first:], np.log(medians[first:]), 1)[0]))


def report(found: dict[str, np.ndarray]) -> str:
    cells = []
    for i, n in enumerate(SIZES):
        figures = [f"{of[0, i]:.0f} [{of[1, i]:.0f}, {of[2, i]:.0f}]" for of in found.values()]
        ratios = [f"{found['uniform'][0, i] / found[r][0, i]:.1f}" for r in ("proportional", "rank")]
        cells.append([str(n), str(2 ** (n + 1) - 2), *figures, *ratios])
    heading = ["n", "transitions", *REPLAYS, "uniform / proportional", "uniform / rank"]
    lines = [f"Updates until learned: median [95% bootstrap interval] of {SEEDS} seeds.", "", *table(heading, cells)]
    lines += ["Factor for each further state, from n = 8 on:", ""]
    lines += table(list(REPLAYS), [[f"{growth(of[0]):.2f}" for of in found.values()]])
    return "\n".join(lines)


def draw(found: dict[str, np.ndarray], path: Path) -> None:
    """Draw the paper's figure: updates over n, on a logarithmic axis."""
    figure = figure_of(5.0)
    axes = figure.subplots()
    look = looks({replayed: replayed.replace("proportional", "defaults") for replayed in found})
    for replayed, of in found.items():
        axes.plot(SIZES, of[0], markersize=4, label=replayed, **look[replayed])
        axes.fill_between(SIZES, of[1], of[2], alpha=0.18, color=look[replayed]["color"], linewidth=0)
    n_transitions = [2 ** (n + 1) - 2 for n in SIZES]
    axes.plot(SIZES, n_transitions, color=INK, linestyle="-.", linewidth=1, label="number of transitions")
    axes.set(yscale="log", xlabel="number of states n", ylabel="updates until learned")
    axes.set_xticks(SIZES)
    axes.legend()
    save(figure, path)


def main(arguments: list[str] | None = None) -> None:
    args = options(__doc__, ["cliffwalk"]).parse_args(arguments)
    path, results = args.out / "data" / "cliffwalk.csv", args.out / "results"
    run_missing(path, jobs(), updates_until_learned, args.workers, args.deadline)
    found = medians(read(path))
    (results / "cliffwalk.md").write_text(report(found))
    draw(found, results / "cliffwalk.png")


if __name__ == "__main__":
    main()
