"""Files for contributors name targets, extras and files that exist, and agree with pyproject.toml."""

import re

import yaml

import sb3_per
from tests.helpers.pages import check_make
from tests.helpers.project import ROOT

PYPROJECT = (ROOT / "pyproject.toml").read_text()
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())


def extras() -> set[str]:
    return set(re.findall(r"^(\w+) = \[", PYPROJECT, re.MULTILINE))


def commands() -> list[str]:
    return [step["run"] for job in WORKFLOW["jobs"].values() for step in job["steps"] if "run" in step]


def test_the_workflow_calls_targets_extras_and_tests_that_exist():
    for command in commands():
        program, *words = command.split()
        if program == "make":
            check_make([word for word in words if not word.startswith(".venv/")])
        for word in words:
            if word.startswith(".venv/"):
                assert word.removeprefix(".venv/") in extras()
            if word.startswith("tests/"):
                assert (ROOT / word).exists()


def test_the_workflow_tests_the_declared_versions():
    matrix = WORKFLOW["jobs"]["tests"]["strategy"]["matrix"]
    assert matrix["python"] == re.findall(r'Python :: (3\.\d+)"', PYPROJECT)
    assert f'requires-python = ">={matrix["python"][0]}"' in PYPROJECT
    for package in ("stable-baselines3", "sb3-contrib"):
        (declared,) = re.findall(rf'^    "{package}>=([\d.]+),<3"', PYPROJECT, re.MULTILINE)
        (tested,) = re.findall(rf'"{package}==([\d.]+)"', " ".join(commands()))
        assert tested.split(".")[: len(declared.split("."))] == declared.split(".")


def test_pre_commit_runs_the_checks_of_make():
    makefile = (ROOT / "Makefile").read_text()
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert [hook["id"] for hook in hooks] == ["ruff-check", "ruff-format", "mypy"]
    for hook in hooks:
        assert hook["entry"].replace(".venv/bin", "$(BIN)") in makefile


def test_read_the_docs_installs_extras_that_exist():
    settings = yaml.safe_load((ROOT / ".readthedocs.yaml").read_text())
    assert (ROOT / settings["sphinx"]["configuration"]).exists()
    (install,) = settings["python"]["install"]
    assert set(install["extra_requirements"]) <= extras()


def test_the_citation_agrees_with_the_package():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == sb3_per.__version__
    assert f'license = "{citation["license"]}"' in PYPROJECT
    assert {reference["type"] for reference in citation["references"]} == {"conference-paper"}


def test_issue_forms_have_labelled_fields():
    for name in ("defect", "learning", "feature"):
        form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text())
        assert {"name", "description", "body"} <= set(form)
        fields = [field for field in form["body"] if field["type"] != "markdown"]
        assert len({field["id"] for field in fields}) == len(fields) > 0
        assert all("label" in field["attributes"] for field in fields)
