"""
Blind Cliffwalk (Schaul et al. 2016, section 3.1, figure 1, and appendix B.1), through the real buffer.

    python benchmarks/cliffwalk.py                                   # run what is missing, write table and figure
    python benchmarks/cliffwalk.py --largest 9 --seeds 5 --out runs  # smaller

There are n states in a row. The right action advances, and has a reward of 1 in the last state. The wrong one ends the
episode. The buffer holds the transitions of all 2^n sequences of actions, and tabular Q-learning replays them one at a time,
until the mean squared error to the true values is below 1e-3.
"""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one core for each run

import numpy as np
from gymnasium import spaces

from sb3_per import PrioritizedReplayBuffer
from sb3_per.compare.campaign import Job, read, run_missing

OUT = Path(__file__).resolve().parents[1] / "docs" / "evidence"
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
    """
    Tabular Q-learning, and its distance from the true values.

    :param n_states: number of states in a row
    """

    def __init__(self, n_states: int):
        self.n_states = n_states
        self.gamma = 1 - 1 / n_states
        self.q = np.random.normal(0, 0.1, (n_states + 1, 2))
        self.q[-1] = 0.0  # the state after the last one has no actions, no value and no part in the error
        self.true_q = np.zeros((n_states + 1, 2))
        self.true_q[:-1, 1] = self.gamma ** np.arange(n_states - 1, -1, -1.0)

    @property
    def error(self) -> float:
        """Mean squared error over states and actions."""
        return float(np.sum((self.q - self.true_q) ** 2)) / (2 * self.n_states)

    def td_error(self, state: int, action: int) -> float:
        """Compute the TD error of the only transition with this state and action."""
        if action == 0:
            return -float(self.q[state, 0])
        if state == self.n_states - 1:
            return 1.0 - float(self.q[state, 1])
        return float(self.gamma * self.q[state + 1].max() - self.q[state, 1])

    def update(self, state: int, action: int) -> float:
        """
        Update the value of an action.

        :return: TD error before the update
        """
        td_error = self.td_error(state, action)
        self.q[state, action] += STEP_SIZE * td_error
        return td_error


def fill(buffer: PrioritizedReplayBuffer, n_states: int, learner: Learner | None = None) -> None:
    """
    Fill a buffer with all transitions, in random order.

    :param buffer: empty buffer
    :param n_states: number of states in a row
    :param learner: learner whose TD errors the transitions enter with; ``None``: they enter with the maximum
    """
    transitions = all_transitions(n_states)
    for i in np.random.permutation(len(transitions)):
        state, action, reward, next_state, done = transitions[i]
        errors = None if learner is None else np.array([learner.td_error(state, action)])
        parts = (np.array([part]) for part in (state, next_state, action, reward, done))
        buffer.add(*parts, [{}], td_errors=errors)


def replay(learner: Learner, scheme: str) -> Iterator[None]:
    """
    Update with one drawn transition at a time.

    :param scheme: scheme of the buffer, with or without the suffix ``OWN_ERROR``; there are no importance-sampling weights
    """
    n_states, knows_errors = learner.n_states, scheme.endswith(OWN_ERROR)
    name = scheme.removesuffix(OWN_ERROR)
    buffer = PrioritizedReplayBuffer(
        len(all_transitions(n_states)),
        spaces.Discrete(n_states + 1),
        spaces.Discrete(2),
        device="cpu",
        scheme=name,
        **({} if name == "uniform" else dict(beta_start=0.0, beta_end=0.0)),
        initial_priority="td_error" if knows_errors else "max",
    )
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
    """
    Count updates until the values are learned.

    :param n_states: number of states in a row
    :param replayed: ``"oracle"``, or a scheme
    :param seed: seed of the order in the buffer, the first values and the draws
    :return: the number of ``updates``
    """
    np.random.seed(seed)
    learner = Learner(n_states)
    steps = oracle(learner) if replayed == "oracle" else replay(learner, replayed)
    n_updates = 0
    while learner.error >= THRESHOLD and n_updates < max_updates:
        next(steps)
        n_updates += 1
    return {"updates": n_updates}


def jobs_of(n_states: list[int], seeds: int) -> list[Job]:
    """List all runs, the short ones first."""
    names = [dict(n_states=n, replay=replayed, seed=seed) for n in n_states for replayed in REPLAYS for seed in range(seeds)]
    return [(name, tuple(name.values())) for name in names]


def quartiles(rows: list[dict[str, str]], seeds: int) -> dict[str, dict[int, np.ndarray]]:
    """
    Summarise the runs.

    :param rows: rows of the file
    :param seeds: number of seeds to use
    :return: by replay and n: lower quartile, median and upper quartile of the updates
    """
    updates: dict[str, dict[int, list[float]]] = {replayed: {} for replayed in REPLAYS}
    for row in rows:
        if int(row["seed"]) < seeds:
            updates[row["replay"]].setdefault(int(row["n_states"]), []).append(float(row["updates"]))
    return {r: {n: np.percentile(u, [25, 50, 75]) for n, u in sorted(by_n.items())} for r, by_n in updates.items()}


def growth(medians: dict[int, float]) -> float:
    """
    Fit the growth of the updates.

    :param medians: updates by n
    :return: factor for each further state: exponential of the slope of log(updates) over n, least squares, from n = 8 on
    """
    chosen = {n: median for n, median in medians.items() if n >= 8}
    return float(np.exp(np.polyfit(list(chosen), np.log(list(chosen.values())), 1)[0]))


def report(found: dict[str, dict[int, np.ndarray]], seeds: int) -> str:
    """Write the table of medians and quartiles, and the growth rates."""
    lines = [f"Updates until learned: median (quartiles) of {seeds} seeds.", ""]
    lines += [f"| n | transitions | {' | '.join(REPLAYS)} | uniform / proportional | uniform / rank |"]
    lines += ["|---" * (4 + len(REPLAYS)) + "|"]
    for n in found["uniform"]:
        cells = [f"{found[r][n][1]:.0f} ({found[r][n][0]:.0f} to {found[r][n][2]:.0f})" for r in REPLAYS]
        ratios = [f"{found['uniform'][n][1] / found[r][n][1]:.1f}" for r in ("proportional", "rank")]
        lines.append(f"| {n} | {2 ** (n + 1) - 2} | {' | '.join(cells + ratios)} |")
    if max(found["uniform"]) > 8:
        rates = [f"{growth({n: values[1] for n, values in found[r].items()}):.2f}" for r in REPLAYS]
        lines += ["", "Factor for each further state, from n = 8 on:", ""]
        lines += [f"| {' | '.join(REPLAYS)} |", "|---" * len(REPLAYS) + "|", f"| {' | '.join(rates)} |"]
    return "\n".join(lines) + "\n"


def draw(found: dict[str, dict[int, np.ndarray]], path: Path) -> None:
    """Draw the paper's figure: updates over n, on a logarithmic axis."""
    from figures import INK, figure_of, looks, save

    figure = figure_of(5.0)
    axes = figure.subplots()
    look = looks({replayed: replayed.replace("proportional", "defaults") for replayed in found})
    for replayed, by_n in found.items():
        low, median, high = np.array(list(by_n.values())).T
        axes.plot(list(by_n), median, markersize=4, label=replayed, **look[replayed])
        axes.fill_between(list(by_n), low, high, alpha=0.18, color=look[replayed]["color"], linewidth=0)
    n_states = np.array(list(found["uniform"]))
    axes.plot(n_states, 2.0 ** (n_states + 1) - 2, color=INK, linestyle="-.", linewidth=1, label="number of transitions")
    axes.set(yscale="log", xlabel="number of states n", ylabel="updates until learned")
    axes.set_xticks(n_states)
    axes.legend()
    save(figure, path)


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing, write the table and the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=14, help="n from 2 to this")
    parser.add_argument("--seeds", type=int, default=11)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=OUT, help="folder of cliffwalk.csv, .md and .png")
    args = parser.parse_args(arguments)
    path = args.out / "cliffwalk.csv"
    run_missing(path, jobs_of(list(range(2, args.largest + 1)), args.seeds), updates_until_learned, args.workers)
    found = quartiles(read(path), args.seeds)
    (args.out / "cliffwalk.md").write_text(report(found, args.seeds))
    draw(found, args.out / "cliffwalk.png")


if __name__ == "__main__":
    main()
