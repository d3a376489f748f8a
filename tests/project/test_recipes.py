"""Recipes of the documentation and the examples reach the scores that they promise, and the table shows their runs."""

import re

import pytest

from tests.helpers.project import ROOT, alone_with_ray, benchmark

recipes = benchmark("recipes")
pages = benchmark("pages")
targets = benchmark("targets")
RECIPES = recipes.RECIPES

# A block that trains for more steps than this must be a recipe.
N_STEPS_TO_SHOW = 1_000


ROWS = recipes.read(recipes.OUT / "recipes.csv")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in RECIPES if recipes.rows_of(name, ROWS)])
def test_each_recipe_reaches_its_promised_score(name, monkeypatch):
    monkeypatch.delenv("SB3_PER_SHORT", raising=False)
    if name == "actors, script":
        pytest.importorskip("ray", reason="Ray is not installed: pip install 'sb3_per[distributed]'")
        with alone_with_ray():
            score = recipes.train(name)["score"]
    else:
        if name.startswith("EnvPool"):
            pytest.importorskip("envpool", reason="EnvPool is not installed: pip install 'sb3_per[envpool]'")
        score = recipes.train(name)["score"]
    assert score >= targets.target_of("recipes", name)


def test_the_published_table_follows_from_the_runs():
    for row in ROWS:
        assert row["source"] == recipes.fingerprint(row["recipe"]), f"{row['recipe']} has changed: run it again"
    for name in RECIPES:
        if rows := recipes.rows_of(name, ROWS):
            assert recipes.scores_of(rows).mean() >= targets.target_of("recipes", name)
    assert (recipes.OUT / "recipes.md").read_text().splitlines() == recipes.report(ROWS)


def test_blocks_that_train_are_recipes():
    known = {recipes.source_of(recipe)[1].code for recipe in RECIPES.values() if "#" in recipe.place}
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for block in pages.blocks_of(page):
            steps = re.findall(r"\.learn\((?:total_timesteps=)?([\d_]+)", block.code) if block.language == "python" else []
            if max(map(int, steps), default=0) > N_STEPS_TO_SHOW:
                assert block.code in known, f"{page.name}, line {block.line}: a recipe, or at most {N_STEPS_TO_SHOW} steps"


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
