"""Files for contributors name targets, extras and tests that exist, and agree with pyproject.toml."""

import itertools
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.helpers.pages import check_make
from tests.helpers.project import ROOT

PYPROJECT = (ROOT / "pyproject.toml").read_text()
CI, WEEKLY, RELEASE = (
    yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text()) for name in ("ci", "weekly", "release")
)
JOBS = [job for workflow in (CI, WEEKLY, RELEASE) for job in workflow["jobs"].values()]

# Extras without tests of their own: other jobs install them.
TOOLS = {"dev", "doc", "release", "test"}


def extras() -> set[str]:
    """List the extras of pyproject.toml."""
    table = PYPROJECT.split("[project.optional-dependencies]\n")[1].split("\n[")[0]
    return set(re.findall(r"^(\w+) = \[", table, re.MULTILINE))


def settings_of(job: dict[str, Any]) -> list[dict[str, str]]:
    """List the settings with which a job runs; ``include`` adds to them."""
    matrix = dict(job.get("strategy", {}).get("matrix", {}))
    included = matrix.pop("include", [])
    product = [dict(zip(matrix, values, strict=True)) for values in itertools.product(*matrix.values())]
    return [*(product if matrix or not included else []), *included]


def commands_of(job: dict[str, Any]) -> Iterator[list[str]]:
    """Yield the words of each command that a job runs, with each of its settings."""
    for settings in settings_of(job):
        for step in job["steps"]:
            if "run" in step:
                command = step["run"]
                for name, value in settings.items():
                    command = command.replace("${{ matrix." + name + " }}", value)
                yield shlex.split(command)


def check(words: list[str]) -> None:
    """Check that a command of a job names targets, extras and files that exist."""
    program, *arguments = words
    if program == "make":
        patterns = (re.fullmatch(r"\.venv/([\w,]+)|lowest-(\w+)\.txt", word) for word in arguments)
        of_extras = {found[0]: found[1] or found[2] for found in patterns if found}
        check_make([word for word in arguments if word not in of_extras])
        for names in of_extras.values():
            unknown = set(names.split(",")) - extras()
            assert not unknown, f"pyproject.toml has no extra {unknown}"
    else:
        assert program in ("python", ".venv/bin/pytest"), f"A command that nothing checks: {shlex.join(words)}"
        missing = [word for word in arguments if "/" in word and not (ROOT / word).exists()]
        assert not missing, f"{missing} do not exist"


def test_jobs_name_targets_extras_and_tests_that_exist():
    for job in JOBS:
        commands = list(commands_of(job))
        assert commands or job is RELEASE["jobs"]["publish"]
        for words in commands:
            check(words)
    for mistake in (
        "make nothing",
        "make .venv/zoo,nothing",
        "make lowest-nothing.txt",
        ".venv/bin/pytest tests/nothing",
        "python .ci/nothing.py",
        "nothing",
    ):
        with pytest.raises(AssertionError):
            check(mistake.split())


def test_each_extra_has_a_job():
    tested = {settings["extra"] for settings in settings_of(CI["jobs"]["extras"])}
    assert tested == extras() - TOOLS


def test_the_workflow_tests_the_declared_versions():
    matrix = CI["jobs"]["core"]["strategy"]["matrix"]
    assert matrix["python"] == re.findall(r'Python :: (3\.\d+)"', PYPROJECT)
    assert f'requires-python = ">={matrix["python"][0]}"' in PYPROJECT
    systems = {settings["os"].partition("-")[0] for settings in settings_of(CI["jobs"]["core"])}
    names = {"Operating System :: POSIX :: Linux": "ubuntu", "Operating System :: MacOS": "macos"}
    assert systems == {names[classifier] for classifier in re.findall(r'"(Operating System :: .*)"', PYPROJECT)}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the script needs tomllib")
def test_the_lowest_versions_are_those_of_pyproject():
    done = subprocess.run([sys.executable, str(ROOT / ".ci" / "lowest.py")], capture_output=True, text=True, check=True)
    table = re.search(r"^dependencies = \[(.*?)^\]", PYPROJECT, re.DOTALL | re.MULTILINE)
    assert table is not None
    for name in re.findall(r'^ +"([\w-]+)', table[1], re.MULTILINE):
        (version,) = re.findall(rf"^{name}==([\d.]+)$", done.stdout, re.MULTILINE)
        assert f'"{name}>={version}' in table[1]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the script needs tomllib")
def test_each_extra_with_bounds_is_tested_with_its_lowest_versions():
    with_bounds = set()
    for extra in extras() - TOOLS:
        done = subprocess.run([sys.executable, str(ROOT / ".ci" / "lowest.py"), extra], capture_output=True, text=True)
        if done.returncode == 0:
            with_bounds.add(extra)
            for name, version in re.findall(r"^([\w-]+)==([\d.]+)$", done.stdout, re.MULTILINE):
                assert re.search(rf'"{name}(\[[\w,-]+\])?>={re.escape(version)}[",;]', PYPROJECT)
    assert {settings["extra"] for settings in settings_of(WEEKLY["jobs"]["lowest"])} == with_bounds


def test_a_tag_must_fit_version_and_changelog(tmp_path):
    script = tmp_path / ".ci" / "tag.py"
    for path in (script, tmp_path / "sb3_per" / "__init__.py"):
        path.parent.mkdir()
    script.write_text((ROOT / ".ci" / "tag.py").read_text())
    (tmp_path / "sb3_per" / "__init__.py").write_text('__version__ = "0.3.1"\n')
    for tag, heading, said in (
        ("v0.3.1", "## 0.3.1 (2027-01-31)", ""),
        ("v0.3.2", "## 0.3.2 (2027-01-31)", "The tag v0.3.2 is not v and the version"),
        ("0.3.1", "## 0.3.1 (2027-01-31)", "The tag 0.3.1 is not v and the version"),
        ("v0.3.1", "## 0.3.1 (unreleased)", "CHANGELOG.md has no heading with a date"),
    ):
        (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n{heading}\n")
        done = subprocess.run([sys.executable, str(script), tag], capture_output=True, text=True)
        assert (done.returncode == 0) == (said == "") and done.stderr.startswith(said)


def test_publishing_needs_no_secret():
    """Trusted publishing: only the last job may ask for an identity, and no step has a password."""
    publish = RELEASE["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"} and publish["needs"] == "build"
    assert "permissions" not in RELEASE["jobs"]["build"] and RELEASE["permissions"] == {"contents": "read"}
    assert "secrets." not in str(RELEASE) and RELEASE[True]["push"] == {"tags": ["v*"]}  # YAML 1.1 reads `on` as True


def test_the_version_stands_in_one_place():
    assert re.findall(r'^version = (?!\{ attr = "sb3_per.__version__" \}).*', PYPROJECT, re.MULTILINE) == []
    assert "version" not in yaml.safe_load((ROOT / "CITATION.cff").read_text())


def test_pre_commit_runs_the_checks_of_make():
    makefile = (ROOT / "Makefile").read_text()
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert [hook["id"] for hook in hooks] == ["ruff-check", "ruff-format", "mypy"]
    for hook in hooks[:2]:
        assert hook["entry"].replace(".venv/bin", "$(BIN)") in makefile
    # `make type` runs mypy in a test, together with the blocks of the pages.
    assert hooks[2]["entry"] == ".venv/bin/mypy" and "tests/project/test_types.py" in makefile


def test_read_the_docs_installs_extras_that_exist():
    settings = yaml.safe_load((ROOT / ".readthedocs.yaml").read_text())
    assert (ROOT / settings["sphinx"]["configuration"]).exists()
    (install,) = settings["python"]["install"]
    assert set(install["extra_requirements"]) <= extras()


def test_the_citation_agrees_with_the_package():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert f'license = "{citation["license"]}"' in PYPROJECT
    assert {reference["type"] for reference in citation["references"]} == {"conference-paper"}


def test_issue_forms_have_labelled_fields():
    for name in ("defect", "learning", "feature"):
        form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text())
        assert {"name", "description", "body"} <= set(form)
        fields = [field for field in form["body"] if field["type"] != "markdown"]
        assert len({field["id"] for field in fields}) == len(fields) > 0
        assert all("label" in field["attributes"] for field in fields)


def test_a_report_about_learning_needs_no_table_of_compare():
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "learning.yml").read_text())
    (runs,) = (field for field in form["body"] if field.get("id") == "runs")
    assert "validations" not in runs
