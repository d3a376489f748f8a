"""The campaigns of one description: declared seeds, the choice of rates, the growth of the grid, and the order of the runs."""

import dataclasses
import math

import pytest

from tests.utils import benchmark

campaign = benchmark("campaign")
campaign_report = benchmark("campaign_report")
cartpole_again = benchmark("cartpole_again")
chain_sizes = benchmark("chain_sizes")
learning = benchmark("learning")
CAMPAIGNS = [chain_sizes.CAMPAIGN]


def rows_of(jobs, steps) -> list[dict[str, str]]:
    return [{key: str(value) for key, value in {**name, "steps": steps(name), "solved": 1}.items()} for name, _ in jobs]


def best_at(rate: float):
    """Make a function of steps that are fewest at this rate."""
    return lambda name: 100 + 1_000 * abs(float(name["rate"]) - rate)


@pytest.mark.parametrize("each", CAMPAIGNS, ids=lambda each: each.name)
def test_declared_seeds_and_contrasts(each):
    assert set(each.choosing).isdisjoint(each.reporting) and len(each.reporting) >= 10
    for contrast in (*each.primary, *each.secondary):
        assert {contrast.arm, contrast.reference} <= set(each.arms) and contrast.over in ("mean", "slope", "pairs")
    names = [tuple(name.values()) for name, _ in campaign.all_choosing_jobs(each, [])]
    assert len(set(names)) == len(names)
    assert campaign.reporting_jobs(each, []) == []


@pytest.mark.parametrize("each", CAMPAIGNS, ids=lambda each: each.name)
def test_the_grid_grows_where_a_choice_is_at_its_edge_and_reporting_waits_for_it(each):
    task, rows = each.tasks[0], []
    for n_grown in range(campaign.GROWTH + 1):
        assert len(campaign.grid(each, task, rows)) == len(each.rates) + n_grown
        assert campaign.reporting_jobs(each, rows) == []
        done = {tuple(row[key] for key in ("task", "arm", "option", "rate", "seed")) for row in rows}
        jobs = campaign.all_choosing_jobs(each, rows)
        jobs = [job for job in jobs if tuple(str(value) for value in list(job[0].values())[:5]) not in done]
        rows += rows_of(jobs, lambda name: round(1_000 / float(name["rate"])))
    rates = campaign.grid(each, task, rows)
    assert len(rates) == len(each.rates) + campaign.GROWTH and list(rates) == sorted(rates)
    jobs = campaign.reporting_jobs(each, rows)
    assert len(jobs) == len(each.reporting) * len(each.tasks) * len(each.arms)
    assert {name["seed"] for name, _ in jobs[: len(each.tasks) * len(each.arms)]} == {each.reporting[0]}  # seed by seed


def test_rates_inside_the_grid_are_chosen_by_size_and_reported():
    each = chain_sizes.CAMPAIGN
    rows = rows_of(campaign.all_choosing_jobs(each, []), lambda name: best_at(3e-3 if name["task"] < 10 else 1e-2)(name))
    jobs = campaign.reporting_jobs(each, rows)
    assert {(name["task"], name["rate"]) for name, _ in jobs} == {
        (n, "0.003" if n < 10 else "0.01") for n in chain_sizes.SIZES
    }
    assert {arguments[3] for _, arguments in jobs} == {3e-3, 1e-2}


def test_rows_of_other_settings_do_not_count():
    each = chain_sizes.CAMPAIGN
    rows = rows_of(campaign.all_choosing_jobs(each, []), best_at(3e-3))
    other = dataclasses.replace(each, settings={**each.settings, "period": 6})
    assert campaign.reporting_jobs(each, rows) and not campaign.reporting_jobs(other, rows)


@pytest.mark.parametrize("arm", ["stock", "shuffled, defaults"])
def test_a_run_on_the_chain_is_reproducible_and_ends_when_the_way_is_known(arm):
    first = chain_sizes.train(5, arm, "", 3e-3, 901)
    assert first["solved"] == 1 and first["successes"] > 0
    assert 260 <= first["steps"] < chain_sizes.cap_of(5) and first["steps"] % (chain_sizes.PERIOD * chain_sizes.N_ENVS) == 0
    assert chain_sizes.train(5, arm, "", 3e-3, 901) == first


def test_random_successes_on_the_chain_become_rarer_with_its_size(monkeypatch):
    monkeypatch.setattr(chain_sizes, "RANDOM_EPISODES", 400)
    shares = [chain_sizes.random_successes(n)[1] / 400 for n in (5, 7, 9)]
    assert 0.4 < shares[0] < 0.7 and shares[0] > shares[1] > shares[2]


def test_cartpole_shows_the_last_policy_beside_the_mean_of_the_last_fifth():
    """A run that is good at its next to last evaluation and bad at its last one counts as such."""
    jobs = cartpole_again.jobs()
    assert learning.fingerprint(cartpole_again.SUITE, cartpole_again.ARM) == "296d5d96"  # of the five seeds before
    rows = [{key: str(value) for key, value in name.items()} for name, _ in jobs]
    for row in rows:
        row |= {str(step): "500" for step in learning.evaluation_steps(cartpole_again.SUITE)}
    rows[3]["100000"] = "200"
    assert cartpole_again.report(rows[1:]) == ["14 of 15 runs are there; the table follows when all are."]
    text = cartpole_again.report(rows)
    assert text[4].startswith("| last policy | 500 | 200 | 14 of 15 | 200, 500,")
    assert text[5].startswith("| mean of the last fifth | 500 | 350 | 14 of 15 | 350, 500,")


GAIN = 0.1


def chain_rows() -> list[dict[str, str]]:
    """
    Make all rows of the chain. The gain of the defaults grows by exp(0.1) a state from 5 on, that of draws without weights has
    another sign for each second seed, and the controls gain nothing. One run of the defaults was stopped.
    """
    each = chain_sizes.CAMPAIGN
    rows = rows_of(campaign.all_choosing_jobs(each, []), best_at(3e-3))

    def steps(name) -> float:
        gain = {"defaults": GAIN * (name["task"] - 5), "no weights": (-1) ** name["seed"] * GAIN}.get(name["arm"], 0.0)
        return 2 ** name["task"] * (1 + 0.01 * (name["seed"] - 200)) / math.exp(gain)

    rows += rows_of(campaign.reporting_jobs(each, rows), steps)
    stopped = next(row for row in rows if (row["seed"], row["task"], row["arm"]) == ("203", "15", "defaults"))
    stopped["solved"] = "0"
    return rows


def test_the_report_finds_the_gain_and_its_slope(tmp_path):
    each, rows = chain_sizes.CAMPAIGN, chain_rows()
    rarity = [dict(campaign=each.name, task=str(n), episodes="1000", successes=str(512 // n)) for n in chain_sizes.SIZES]
    text = "\n".join(campaign_report.report(each, rows, rarity))
    assert text.startswith("1,440 of 1,440 choosing runs and 1,440 of 1,440 reporting runs are there.")
    assert "| share | 10% | 7.3% |" in text
    mean, slope = math.exp(5 * GAIN), math.exp(GAIN)
    for reference in ("uniform", "shuffled, defaults"):
        assert f"| defaults | {reference} | mean over the tasks | {mean:.3f} [{mean:.3f}, {mean:.3f}] | < 0.001 |" in text
        assert f"| defaults | {reference} | slope over the size | {slope:.3f} [{slope:.3f}, {slope:.3f}] | < 0.001 |" in text
    assert text.count("| no weights | uniform | mean over the tasks | 1.000 [") == 1
    row = next(line for line in text.splitlines() if line.startswith("| no weights | uniform | mean"))
    assert row.endswith("| 1.000 |")
    assert next(line for line in text.splitlines() if line.startswith("| defaults | ")).endswith("] (1) |")
    campaign_report.draw(each, rows, tmp_path / "chain-sizes.png")
    assert (tmp_path / "chain-sizes.png").read_bytes().startswith(b"\x89PNG")


def test_an_incomplete_campaign_shows_counts_and_no_result(tmp_path):
    each, rows = chain_sizes.CAMPAIGN, chain_rows()
    for kept, words in (
        (rows[:-1], "1,440 of 1,440 choosing runs and 1,439 of 1,440"),
        ([], "0 of 1,440 choosing runs"),
    ):
        lines = campaign_report.report(each, kept, [])
        assert lines[0].startswith(words)
        assert lines[1:] == ["", "The campaign is not complete, so no result is shown."]


def test_the_published_pages_follow_from_the_runs():
    for each in CAMPAIGNS:
        rows, rarity = (campaign.read(campaign.OUT / f"{name}.csv") for name in (each.name, "rarity"))
        page = "\n".join(campaign_report.report(each, rows, rarity)).rstrip() + "\n"
        assert (campaign.OUT / f"{each.name}.md").read_text() == page
