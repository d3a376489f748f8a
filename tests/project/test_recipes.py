"""Recipes of the documentation and the examples reach the scores that they promise, and the table shows their runs."""

import re

import pytest
import torch as th

from sb3_per import PERDQN, PERSAC, PrioritizedReplayBuffer
from tests.utils import ROOT, STOCK, alone_with_ray, benchmark

recipes = benchmark("recipes")
pages = benchmark("pages")
RECIPES = recipes.RECIPES

# A block that trains for more steps than this must be a recipe.
N_STEPS_TO_SHOW = 1_000


ROWS = recipes.read(recipes.OUT / "recipes.csv")
STOCK_ROWS = recipes.read(recipes.OUT / "recipes-stock.csv")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in RECIPES if recipes.rows_of(name, ROWS)])
def test_each_recipe_reaches_its_promised_score(name, monkeypatch):
    monkeypatch.delenv("SB3_PER_SHORT", raising=False)
    if name == "actors, script":
        pytest.importorskip("ray", reason="Ray is not installed: pip install 'sb3_per[distributed]'")
        with alone_with_ray():
            score = recipes.train(name, seed=0)["score"]
    else:
        score = recipes.train(name, seed=0)["score"]
    assert score >= RECIPES[name].at_least


def test_the_published_table_follows_from_the_runs():
    for row in ROWS:
        assert row["source"] == recipes.fingerprint(row["recipe"]), f"{row['recipe']} has changed: run it again"
        assert float(row["score"]) >= RECIPES[row["recipe"]].at_least
    for row in STOCK_ROWS:
        assert row["source"] == recipes.fingerprint(row["recipe"]), f"{row['recipe']} has changed: run its stock run again"
    assert (recipes.OUT / "recipes.md").read_text().splitlines() == recipes.report(ROWS, STOCK_ROWS)


def test_blocks_that_train_are_recipes():
    known = {recipes.source_of(recipe)[1].code for recipe in RECIPES.values() if "#" in recipe.place}
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for block in pages.blocks_of(page):
            steps = re.findall(r"\.learn\((?:total_timesteps=)?([\d_]+)", block.code) if block.language == "python" else []
            if max(map(int, steps), default=0) > N_STEPS_TO_SHOW:
                assert block.code in known, f"{page.name}, line {block.line}: a recipe, or at most {N_STEPS_TO_SHOW} steps"


def test_updating_the_table_does_not_run_missing_stock_runs():
    lines = recipes.report(ROWS, [row for row in STOCK_ROWS if row["recipe"] != "PERDQN"])
    cells = {line.split(" | ")[0].strip("| "): line.split(" | ")[5] for line in lines[2:]}
    assert cells["[PERDQN](algorithms/per_dqn.md#example)"] == "not run" and cells["actors, script"] == "none"


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        (PERSAC, dict(replay_buffer_kwargs=dict(alpha=0.5), gamma=0.9)),
        (PERDQN, dict(double_q=True, n_steps=3, gamma=0.9)),
    ],
)
def test_a_stock_run_begins_with_the_settings_and_parameters_of_its_recipe(algorithm, settings):
    """Neither run learns, so that only the class differs."""
    env = recipes.PENDULUM if algorithm is PERSAC else recipes.CARTPOLE
    with recipes.watched(seed=3, stock=True) as runs:
        model = algorithm("MlpPolicy", env, policy_kwargs=dict(net_arch=[8]), device="cpu", **settings)
        with pytest.raises(recipes.StockHasLearned):
            model.learn(60, callback=lambda *_: False)
    ((stock, _),) = runs
    assert type(stock) is STOCK[algorithm] and not isinstance(stock.replay_buffer, PrioritizedReplayBuffer)
    assert (stock.num_timesteps, stock.gamma, stock.n_steps) == (60, 0.9, model.n_steps) and model.num_timesteps == 0
    for name, value in model.policy.state_dict().items():
        assert th.equal(value, stock.policy.state_dict()[name])  # 60 steps are fewer than learning_starts


def test_editing_a_recipe_discards_its_cached_result(monkeypatch):
    name = "one import"
    before = recipes.fingerprint(name)
    blocks_of = recipes.blocks_of
    changed = lambda page: [block._replace(code=block.code.replace("5_000", "6_000")) for block in blocks_of(page)]  # noqa: E731
    monkeypatch.setattr(recipes, "blocks_of", changed)
    assert recipes.fingerprint(name) != before


def test_a_heading_without_a_recipe_is_refused():
    with pytest.raises(ValueError, match="no recipe under 'Install'"):
        recipes.source_of(recipes.Recipe("docs/start.md#Install", None, 0.0))
