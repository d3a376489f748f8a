"""
Every figure of the pages on learning is computed from the runs.

A page says a figure in a sentence; the same sentence stands here with the computation in place of the figure. Figures with an
interval have to be in a table of docs/evidence, which `test_evidence.py` makes again from the runs.
"""

# ruff: noqa: E501  (a sentence stands in one line)
import re
from functools import cache

import numpy as np
import pytest

from sb3_per.compare.campaign import read
from sb3_per.compare.statistics import holm, paired_p
from tests.utils import ROOT, benchmark

report, tables = benchmark("report"), benchmark("tables")
CAMPAIGNS = benchmark("evidence").CAMPAIGNS
DOSE, CHAIN_SIZES = CAMPAIGNS["dose-response"], CAMPAIGNS["chain-sizes"]
EVIDENCE, BENCHMARKS = ROOT / "docs" / "evidence", ROOT / "docs" / "benchmarks"
PAGES = ("README.md", "docs/choosing.md", "docs/evidence.md", "docs/demonstrations.md", "docs/troubleshooting.md")


def text_of(page: str) -> str:
    """Read a page as one line, without commas in thousands, bold type and targets of links."""
    text = re.sub(r"(?<=\d),(?=\d{3})", "", " ".join((ROOT / page).read_text().split()))
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text.replace("**", ""))


class Rates:
    """Scores of a suite at three learning rates, as means over the rates; more is better."""

    def __init__(self, name: str):
        campaign = CAMPAIGNS[name]
        scores = report.scores_of(campaign, read(EVIDENCE / f"{name}.csv"))
        self.scores = {arm: each.mean(axis=1) for arm, each in scores.items()}
        self.references = {each.arm: each.reference for each in campaign.primary}
        self.at_best = {arm: each[:, 0] for arm, each in tables.at_best_rates(scores)[1].items()}

    def gain(self, arm: str, other: str = "uniform") -> float:
        return float((self.scores[arm] - self.scores[other]).mean())

    def share(self, arm: str) -> float:
        return 100 * self.gain(arm) / abs(self.scores["uniform"].mean())

    def p(self, arm: str, other: str = "uniform") -> float:
        return paired_p(self.scores[arm] - self.scores[other])

    def unpaired_p(self, arm: str) -> float:
        return tables.permutation_p(self.scores[arm][:, None], self.scores["uniform"][:, None])

    def corrected_p(self, arm: str) -> float:
        """Correct for the tests of all arms at both endpoints."""
        tests = {}
        for which, scores in (("mean", self.scores), ("best", self.at_best)):
            tests |= {(which, a): tables.p_of(scores[a][:, None], scores[b][:, None]) for a, b in self.references.items()}
        return holm(tests)["mean", arm]


def iqm(values: np.ndarray) -> float:
    return float(tables.metrics.aggregate_iqm(values.reshape(-1, 1)))


def cells_of(folder, table: str, *columns: str) -> list[str]:
    """Read the row of a published table whose first columns are these."""
    lines = (folder / f"{table}.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| ")]
    (row,) = [row for row in rows if all(column in row for column in columns)]
    return row


def p_of_all(table: str, suite: str, kind: str, other: str) -> str:
    """Read p of the mean over three rates in a table of all tasks, without the one of the unpaired test."""
    (row,) = [
        row
        for row in (line.split("|") for line in (EVIDENCE / f"{table}.md").read_text().splitlines())
        if [cell.strip() for cell in row[2:6]] == [f"`{suite}`", "mean over three rates", kind, other]
    ]
    return row[-2].strip().partition(" (")[0]


def rates_of_chains(arm: str) -> str:
    """Name the smallest and the largest of the rates chosen for the six sizes."""
    rows = read(EVIDENCE / "chain-sizes.csv")
    rates = sorted({float(row["rate"]) for row in rows if row["arm"] == arm and int(row["seed"]) in CHAIN_SIZES.reporting})
    return " and ".join(f"{rate:g}" for rate in rates[:: max(len(rates) - 1, 1)])


def gains_and_p(name: str) -> dict[tuple[str, str, str], tuple[float, float]]:
    """Compute the mean gain and p, with Holm's correction, of the tests of a campaign by arm, reference, and what is tested."""
    campaign = CAMPAIGNS[name]
    scores = report.scores_of(campaign, read(EVIDENCE / f"{name}.csv"))
    found = {}
    for tests in (campaign.primary, campaign.secondary):
        gains = {each: report.differences(campaign, each, scores) for each in tests}
        for each, p in holm({each: paired_p(gain) for each, gain in gains.items()}).items():
            found[each.arm, each.reference, each.over] = float(gains[each].mean()), p
    return found


@cache
def facts() -> dict:
    """Compute what the sentences need."""
    chain, bits, pairs = Rates("chain-rates"), Rates("bits-confirmation"), Rates("pairs-rates")
    rows = read(EVIDENCE / "dose-response.csv")
    scores, solved = report.scores_of(DOSE, rows), report.solved_of(DOSE, rows)
    gains = {arm: each - scores["uniform"] for arm, each in scores.items() if arm != "uniform"}
    slopes = {c.arm: report.differences(DOSE, c, scores) for c in DOSE.primary if c.reference == "uniform"}
    floor = np.log([DOSE.floor(n) for n in DOSE.tasks])
    curves = report.scores_of(CAMPAIGNS["sparse"], read(EVIDENCE / "sparse.csv"))
    discrete, rows_of_games = CAMPAIGNS["discrete"], read(EVIDENCE / "discrete.csv")
    of_games = report.values_of(discrete, rows_of_games, discrete.score)
    double = report.scores_of(discrete, rows_of_games)
    asterix = discrete.tasks.index("MinAtar/Asterix-v1")
    tasks = {name: (CAMPAIGNS[name], read(EVIDENCE / f"{name}.csv")) for name in ("demonstrations", "demonstrations-doorkey")}
    of_chains, of_doors = gains_and_p("chain-sizes"), gains_and_p("doorkey-sizes")
    doors = CAMPAIGNS["doorkey-sizes"], read(EVIDENCE / "doorkey-sizes.csv")
    door_scores, door_ends = report.scores_of(*doors), report.scores_of(*doors, lambda row: float(row["20"]))
    of_random = {row["environment"]: row for row in read(EVIDENCE / "modern-dqn.csv") if row["variant"] == "random"}
    return {
        "chain": chain,
        "bits": bits,
        "pairs": pairs,
        "gain": {arm: np.exp(each.mean(axis=0)) for arm, each in gains.items()},
        "updates": {arm: np.exp(-each.mean(axis=0)) for arm, each in scores.items()},
        "growth": {arm: np.exp(each.mean()) for arm, each in slopes.items()},
        "on_floor": {arm: np.isclose(-each, floor).sum(axis=0) for arm, each in scores.items()},
        "stopped": {arm: (~each).sum(axis=0) for arm, each in solved.items()},
        "car": {arm: -iqm(each) for arm, each in curves.items()},
        "double_q": iqm(double["uniform, Double Q, 3 steps"]),
        "asterix": [iqm(each[:, asterix]) for each in of_games.values() if not np.isnan(each[:, asterix]).any()],
        "random": {game: CAMPAIGNS["modern-dqn"].score(row) for game, row in of_random.items()},
        "solved": {t: {arm: each.sum() for arm, each in report.solved_of(*of).items()} for t, of in tasks.items()},
        "steps": {t: {arm: -each.mean() for arm, each in report.scores_of(*of).items()} for t, of in tasks.items()},
        "speed": lambda *columns: float(cells_of(BENCHMARKS, "speed", *columns)[4]),
        "compiled": lambda *columns: float(cells_of(BENCHMARKS, "sbx", *columns)[4]),
        "ms_of": lambda place, *columns: float(cells_of(BENCHMARKS, "speed", *columns)[place].removesuffix(" µs")) / 1000,
        "seconds_to_save": [
            float(cells_of(BENCHMARKS, "files", f"save, 1,000,000 states, {how}")[2].removesuffix(" µs").replace(",", ""))
            / 1e6
            for how in ("no fsync", "fsync on both sides")
        ],
        "checkpoint": float(cells_of(BENCHMARKS, "files", "checkpoint of model and 1,000,000 transitions, seconds")[4]),
        "actors": float(
            cells_of(BENCHMARKS, "distributed", "wall time, t_env / N = g t_update, equal step times", "SubprocVecEnv(8)")[4]
        ),
        "slopes": [each.strip() for each in (EVIDENCE / "cliffwalk.md").read_text().splitlines()[-1].split("|")[1:-1]],
        "cliffwalk_14": [cell.partition(" ")[0] for cell in cells_of(EVIDENCE, "cliffwalk", "14", "32766")],
        "all_tasks": lambda suite, kind: p_of_all("summary", suite, kind, "uniform"),
        "over_defaults": lambda suite, kind: p_of_all("defaults", suite, kind, "defaults"),
        "growth_p": paired_p(slopes["defaults"]),
        "chains": {(arm, other): np.exp(gain) for (arm, other, over), (gain, _) in of_chains.items() if over == "mean"},
        "chains_growth": {(arm, other): p for (arm, other, over), (_, p) in of_chains.items() if over == "slope"},
        "doors": {arm: each.mean() for arm, each in door_scores.items()},
        "doors_end": {arm: each[:, 1].mean() for arm, each in door_ends.items()},
        "doors_p": {(arm, other): p for (arm, other, _), (_, p) in of_doors.items()},
        "ages_p": {
            (task, arm): p
            for task in ("Pendulum", "pairs")
            for (arm, other, _), (_, p) in gains_and_p(f"ages-{task.lower()}").items()
            if other == "uniform"
        },
        "games_p": {(arm, other): p for (arm, other, _), (_, p) in gains_and_p("ages").items()},
        "in_games": {
            (arm, game): 100 * (each.mean(axis=0)[i] - 1)
            for arm, each in report.scores_of(CAMPAIGNS["ages"], read(EVIDENCE / "ages.csv")).items()
            for i, game in enumerate(CAMPAIGNS["ages"].tasks)
        },
        "cartpole_ends": np.array([float(row["100000"]) for row in read(EVIDENCE / "memory-cartpole-again.csv")]),
        "chains_rates": {arm: rates_of_chains(arm) for arm in ("defaults", "uniform")},
        "chains_p": max(p for (_, *which), (_, p) in of_chains.items() if which == ["uniform", "mean"]),
    }


def below(level: float, *p_values: float) -> float:
    """Return the level, if all p are below it."""
    assert max(p_values) < level
    return level


README, CHOOSING, PAGE, DEMONSTRATIONS, TROUBLESHOOTING = PAGES
# Sentences by page. Braces hold a computation and its format, of the names of `facts`.
SENTENCES = {
    README: [
        "uniform draws need {gain['defaults'][-1]:.1f} times the updates",
        "one random episode in {2 ** 16} succeeds",
        "takes {100 * (1 - speed('sample(256) + update, obs 17, act 6')):.0f}% less time than SB3's uniform draw alone",
        "takes {100 * (1 - compiled('gradient step, sbx.PERSAC', 'SB3\\'s SAC on cpu')):.0f}% less time than SB3's (`python benchmarks/sbx.py`)",
        "takes {checkpoint:.2f} s if 10000 of them are new; the first save takes {seconds_to_save[0]:.2f} to {seconds_to_save[1]:.2f} s",
        "Eight actors take {100 * (1 - actors):.0f}% less time",
        "uniform draws need {chains['defaults', 'uniform']:.2f} times the steps, shuffled priorities {chains['defaults', 'shuffled, defaults']:.2f} times",
        "DoorKey: success {doors['defaults']:.2f} instead of {doors['uniform']:.2f}, over all evaluations and two sizes",
        "success {iqm(bits.scores['defaults']):.2f} instead of {iqm(bits.scores['uniform']):.2f}, as the mean over three",
        "best rate, {iqm(bits.at_best['defaults']):.2f} and {iqm(bits.at_best['uniform']):.2f}",
        "{in_games[both, 'Breakout']:.0f}% more return in Breakout and SpaceInvaders, {-in_games[both, 'Freeway']:.0f}% less in Freeway",
        "after {car['PERDQN']:.0f} steps instead of {car['PERDQN, uniform']:.0f} (stock: {car['DQN']:.0f}) in six runs",
    ],
    CHOOSING: [
        "change of the draw: {double_q:.2f} times DQN's score with uniform draws",
        "Uniform draws need {gain['defaults'][-1]:.1f} times the updates of the defaults",
        "Uniform draws needed {chains['defaults', 'uniform']:.2f} times their steps, shuffled priorities {chains['defaults', 'shuffled, defaults']:.2f} times",
        "in DoorKey their success was {doors['defaults']:.2f} instead of {doors['uniform']:.2f}",
        "It takes {speed('sample(256) + update, rank-based'):.1f} times as long",
        "{in_games[both, 'SpaceInvaders']:.0f}% more return in Breakout and SpaceInvaders, and {-in_games[both, 'Freeway']:.0f}% less in Freeway",
        "of six sizes {chains_rates['defaults']} was the best rate of the defaults at every size, and that of uniform draws moved between "
        "{chains_rates['uniform']}",
    ],
    PAGE: [
        "{(cartpole_ends >= 475).sum()} of the {len(cartpole_ends)} last policies solve the task, which takes a mean return of 475. The worst has {cartpole_ends.min():.0f}.",
        "This factor grows by {growth['defaults']:.2f} with each doubling of the rarity (p < {below(0.001, 8 * growth_p)})",
        "Rare rewards in the data: uniform draws need {gain['defaults'][-1]:.1f} times the updates of the defaults",
        "save {chain.gain('defaults'):.0f} of {-chain.scores['uniform'].mean():.0f} steps (p = {chain.p('defaults'):.4f} "
        "alone; {all_tasks('chain-rates', 'defaults')} over all tasks)",
        "uniform draws need {chains['defaults', 'uniform']:.2f} times the steps of the defaults (p < {below(0.001, chains_p)})",
        "uniform draws need {gain['no weights'][-1]:.1f} times their updates, {chains['no weights', 'uniform']:.2f} times their steps at six "
        "sizes, and on the chain of nine states they save {chain.share('no weights'):.0f}% of the steps",
        "above that of uniform draws (p = {doors_p['defaults', 'uniform']:.3f}), and that of draws without weights 0.079 "
        "[0.051, 0.106] above it (p < {below(0.001, doors_p['no weights', 'uniform'])})",
        "above their shuffled control (p = {doors_p['defaults', 'shuffled, defaults']:.3f}), and draws without weights 0.090 "
        "[0.054, 0.125] above theirs (p = {doors_p['no weights', 'shuffled, no weights']:.3f})",
        "success in DoorKey is 0.093 [0.045, 0.149] higher (p = {doors_p['defaults', 'uniform']:.3f})",
        "priorities times age gain 0.073 [-0.006, 0.155] (p = {games_p[both, 'uniform']:.3f}), and age alone gains 0.048 "
        "[-0.003, 0.101] (p = {games_p['age', 'uniform']:.3f})",
        "age gains 0.048 [-0.003, 0.101] (p = {games_p['age', 'uniform']:.3f}), and priorities times age gain 0.073 [-0.006, 0.155] "
        "(p = {games_p[both, 'uniform']:.3f})",
        "{in_games[both, 'Breakout']:.0f}% more return than the twin in Breakout and {in_games[both, 'SpaceInvaders']:.0f}% more in "
        "SpaceInvaders, but {-in_games[both, 'Freeway']:.0f}% less in Freeway and {-in_games[both, 'Seaquest']:.0f}% less in Seaquest",
        "{in_games['defaults', 'SpaceInvaders']:.0f}% more return in SpaceInvaders and {-in_games['defaults', 'Freeway']:.0f}% less in Freeway",
        "gain 0.106 [0.056, 0.158] over the defaults (p < {below(0.001, games_p[both, 'defaults'])})",
        "0.025 [-0.025, 0.072] (p = {games_p[both, 'age']:.3f})",
        "a difference of -25.3 [-53.2, -0.1] on Pendulum (p = {ages_p['Pendulum', 'age']:.3f}) and of -0.22 [-0.55, 0.15] on pairs "
        "trading (p = {ages_p['pairs', 'age']:.3f})",
        "-1.59 [-2.33, -0.87] against the twin (p = {ages_p['pairs', 'defaults']:.3f}), and the defaults times age -1.83 [-2.38, -1.16] "
        "(p = {ages_p['pairs', 'defaults times age']:.3f})",
        "at one rate agree: a difference of -1.59 [-2.33, -0.87] (p = {ages_p['pairs', 'defaults']:.3f})",
        "as the mean over all evaluations (p = {ages_p['pairs', 'defaults']:.3f})",
        "the defaults have a mean success of {doors_end['defaults']:.2f}, and uniform draws of {doors_end['uniform']:.2f}",
        "grows by 1.029 [1.008, 1.048] with each state (p = {chains_growth['defaults', 'uniform']:.3f}). Over the shuffled control, p is "
        "{chains_growth['defaults', 'shuffled, defaults']:.3f}",
        "{solved['demonstrations']['PERSAC, demonstrations 0.25']} of 10 runs solve MountainCarContinuous, against "
        "{solved['demonstrations']['SAC']} of 10 without",
        "a success of {iqm(bits.scores['defaults']):.2f} against {iqm(bits.scores['uniform']):.2f}, as the mean",
        "it is {iqm(bits.at_best['defaults']):.2f} against {iqm(bits.at_best['uniform']):.2f}, and no harm",
        "{-pairs.gain('defaults'):.2f} less return of {pairs.scores['uniform'].mean():.2f} as the mean over three rates "
        "(p = {pairs.corrected_p('defaults'):.3f}; {all_tasks('pairs-rates', 'defaults')} over all tasks)",
        "{car['PERDQN']:.0f} steps instead of {car['PERDQN, uniform']:.0f} in six runs",
        "needs {gain['defaults'][-1]:.1f} times the updates of the defaults, and {gain['no weights'][-1]:.1f} times those of draws",
        "end there in {on_floor['defaults'][0]} of 15 runs, and at n = 8 in {on_floor['defaults'][1]} of 15",
        "{stopped['LAP'][-1]} of 15 runs of LAP and {stopped['shuffled, defaults'][-1]} of 15",
        "the defaults with p = {all_tasks('chain-rates', 'defaults')}, which is close to the limit, and draws without weights with "
        "p = {all_tasks('chain-rates', 'no weights')}",
        "over three learning rates, p = {all_tasks('bits-confirmation', 'defaults')}",
        "Over all tasks p is {all_tasks('pairs-rates', 'defaults')}",
        "on BitFlipping over three learning rates (p < {below(0.001, 22 * bits.p(no_weights, 'defaults'))})",
        "LAP beats them on two tasks: BitFlipping (p < {below(0.001, 22 * bits.p('LAP', 'defaults'))}) and, since we test in pairs, "
        "pairs trading (p = {over_defaults('pairs-rates', 'LAP')})",
        "beats them on BitFlipping alone (p < {below(0.001, 22 * bits.p(candidate, 'defaults'))})",
        "with the twin (p < {below(0.001, bits.corrected_p('defaults'))})",
        "oracle's: {slopes[2]} and {slopes[3]} against {slopes[1]}.",
        "the proportional scheme needs {int(cliffwalk_14[4]) / int(cliffwalk_14[1]):.2f} times as many updates",
        "The slopes stay, {slopes[4]} and {slopes[5]}.",
        "solve the task in {min(solved['demonstrations-doorkey'][arm] for arm in at_the_door)} of 10 runs",
        "needs {updates['LAP'][-1]:.0f} updates at n = 16 of dose and response, and the defaults {updates['defaults'][-1]:.0f}",
        "every arm scores between {min(asterix):.0f} and {max(asterix):.1f}, and a random policy {random['MinAtar/Asterix-v1']:.2f}",
        "of {-chain.scores['uniform'].mean():.0f} steps ({chain.share('defaults'):.0f}%), as the mean over the three rates. p is "
        "{chain.p('defaults'):.4f} alone, {chain.corrected_p('defaults'):.3f} within this table and "
        "{all_tasks('chain-rates', 'defaults')} over all tasks. The unpaired p was {chain.unpaired_p('defaults'):.2f} alone",
        "save {chain.gain('shuffled, defaults'):.0f} steps (p = {chain.p('shuffled, defaults'):.2f})",
        "(p = {chain.p('defaults', 'shuffled, defaults'):.3f} alone; {2 * chain.p('defaults', 'shuffled, defaults'):.3f} within",
        "steps ({chain.share('no weights'):.0f}%, p = {chain.p('no weights'):.4f} alone; {chain.corrected_p('no weights'):.3f} within",
        "steps ({chain.corrected_p('candidate'):.3f} within the table)",
        "(p = {chain.corrected_p('LAP'):.2f} within the table)",
        "steps saved (p = {chain.corrected_p('LAP'):.2f})",
        "lose {-pairs.gain('defaults'):.2f} of {pairs.scores['uniform'].mean():.2f} as the mean over the three rates (p = "
        "{pairs.p('defaults'):.3f} alone; {pairs.corrected_p('defaults'):.3f} within this table; "
        "{all_tasks('pairs-rates', 'defaults')} over all tasks). The unpaired p was {pairs.unpaired_p('defaults'):.3f} alone",
        "The candidate loses {-pairs.gain('candidate'):.2f} ({pairs.corrected_p('candidate'):.3f} within the table)",
        "of the {steps['demonstrations']['SAC, preloaded']:.0f} steps that the stock",
        "standing still: {solved['demonstrations']['PERSAC, demonstrations 0.25']} of 10 runs against "
        "{solved['demonstrations']['SAC']} of 10",
        "DQN does in {solved['demonstrations-doorkey']['DQN']} of 10 runs, and PERDQN in "
        "{solved['demonstrations-doorkey']['PERDQN']} of 10",
        "of {steps['demonstrations-doorkey']['DQN, preloaded']:.0f} steps",
    ],
    DEMONSTRATIONS: [
        "after {min(steps['demonstrations'][arm] for arm in with_demonstrations):.0f} to "
        "{max(steps['demonstrations'][arm] for arm in with_demonstrations):.0f} steps on average",
        "DQN solved it in {solved['demonstrations-doorkey']['DQN']} of 10 runs, and PERDQN in "
        "{solved['demonstrations-doorkey']['PERDQN']} of 10",
        "about {speed('sample(256) + update, a quarter demonstrations'):.1f} times as long",
        "That is {ms_of(2, quarter) - ms_of(3, quarter):.2f} ms more",
    ],
    TROUBLESHOOTING: ["takes {speed('sample(256) + update, rank-based'):.1f} times as long"],
}


def filled(sentence: str) -> str:
    """Put the computed figures into a sentence."""
    names = {**facts(), "iqm": iqm}
    names["with_demonstrations"] = [arm for arm in names["steps"]["demonstrations"] if ", " in arm]
    names["at_the_door"] = [arm for arm in names["steps"]["demonstrations-doorkey"] if ", " in arm]
    names |= {
        "both": "defaults times age",
        "no_weights": "epsilon 1e-06, no weights",
        "candidate": "epsilon 0.01, mean, eta 0.25",
        "below": below,
    }
    names["quarter"] = "sample(256) + update, a quarter demonstrations"
    return re.sub(r"\{([^{}]*?)(?::(\.\d+f))?\}", lambda hole: format(eval(hole[1], names), hole[2] or ""), sentence)


@pytest.mark.parametrize("page", PAGES)
def test_sentences_have_the_figures_of_the_runs(page):
    text = text_of(page)
    assert [said for said in map(filled, SENTENCES[page]) if said not in text] == []


def test_the_page_on_recurrent_agents_says_how_training_ends():
    said = "{(cartpole_ends >= 475).sum()} of {len(cartpole_ends)} last policies solve the task, and the worst has a return of {cartpole_ends.min():.0f}"
    assert filled(said) in text_of("docs/recurrent.md")


# Figures that are no results of runs: settings, levels of tests, and what others have published.
OTHERS = {
    README: ["7.5 GB instead of 56 GB"],
    DEMONSTRATIONS: ["| | 0.0 |", "|  | 0.0 |", "or 0.25 if the file has none"],
    PAGE: [
        "0.4 and 1 elsewhere",
        "PER 38% and LAP 148% above",
        "on about 1% of the bars",
        "0.203 ± 0.003 against 0.191 ± 0.004",
        "(2 + 5 / 4) / 7 = 0.46",
        "alpha 0.6 and 0.7",
        "alpha is 0.6 and 0.7",
        "alpha 0.6 and kappa 0.01",
        "alpha 0.6.",
        "alpha 0.4 and kappa 0.01",
        "0.4 and 0.01 on the chain",
        "LAP with kappa 0.01",
        "if p is below 0.05",
        "0.5 is no difference",
        "holds 95% of 2000 bootstrap samples",
    ],
}


@pytest.mark.parametrize("page", PAGES)
def test_no_other_figure_is_on_the_pages(page):
    """A decimal or a percentage is in a sentence of this file, has an interval, or is listed as no result."""
    text = text_of(page)
    text = re.sub(r"```.*?```|`[^`]*`", "", text)
    for said in [*map(filled, SENTENCES[page]), *OTHERS.get(page, [])]:
        text = text.replace(re.sub(r"`[^`]*`", "", said), "")
    text = re.sub(r"-?\d[\d.]* \[-?[\d.]+, -?[\d.]+\]|95% (bootstrap )?interval", "", text)
    text = re.sub(r"## What does it cost\?.*?## ", "", text)  # tests/project/test_site.py
    left = [text[max(m.start() - 50, 0) : m.end() + 20] for m in re.finditer(r"\d+\.\d+(?!\.)|\d+(\.\d+)?%|\d+ of 10\b", text)]
    assert left == []
