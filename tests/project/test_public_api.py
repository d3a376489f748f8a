"""Public names have one tier each, and change only together with a file that lists their signatures."""

import difflib
import re

import pytest

pytest.importorskip("ray", reason="needs the extras of all parts of the package")
pytest.importorskip("rl_zoo3")
pytest.importorskip("sbx")

from tests.helpers import public_api
from tests.helpers.project import ROOT

PYPROJECT = (ROOT / "pyproject.toml").read_text()


def test_public_names_are_those_of_the_file():
    listed = public_api.FILE.read_text(encoding="utf-8").splitlines()
    differing = [line for line in difflib.ndiff(listed, public_api.lines()) if line[0] in "+-"]
    assert not differing, (
        "The public names differ from tests/data/public_api.txt. If you mean it, run python -m tests.helpers.public_api, and "
        "say in CHANGELOG.md what has changed:\n" + "\n".join(differing)
    )


def test_every_name_that_the_package_offers_has_one_tier():
    names = public_api.names()
    twice = sorted({name for name in names if names.count(name) > 1})
    assert not twice, f"docs/compatibility.md has {twice} in two places"
    # `sb3_per.integrations.from_vector_env` is a name of that module; those of `sb3_per` need no module.
    missing = sorted(public_api.exported() - set(names))
    assert not missing, f"docs/compatibility.md says nothing of {missing}"


def test_a_changed_signature_is_seen():
    def before(n_steps, gamma=0.99):
        pass

    def after(n_steps, gamma=0.9, *, alpha: float | None = None):
        pass

    assert public_api.signature_of(before) == "(n_steps, gamma=0.99)"
    assert public_api.signature_of(after) == "(n_steps, gamma=0.9, alpha=None)"


# Names on the page, and those of pyproject.toml.
PACKAGES = {
    "Python": "requires-python = ",
    "Stable-Baselines3, sb3-contrib": "stable-baselines3",
    "Gymnasium": "gymnasium",
    "PyTorch": "torch",
    "NumPy": "numpy",
    "numba": "numba",
    "RL Zoo": "rl_zoo3[plots]",
    "sbx-rl": "sbx-rl",
}


def test_lowest_versions_are_those_of_pyproject():
    page = public_api.PAGE.read_text(encoding="utf-8").partition("\n## Versions\n")[2]
    rows = dict(re.findall(r"^\| ([\w -]+(?:, [\w-]+)?) \| ([\d.]+) \|", page, re.MULTILINE))
    assert rows.keys() == PACKAGES.keys()
    for name, lowest in rows.items():
        assert re.search(rf'"?{re.escape(PACKAGES[name])}"?>={re.escape(lowest)}[",]', PYPROJECT), f"{name} {lowest}"
    newest = (ROOT / "constraints.txt").read_text().strip().removeprefix("torch==")
    assert f"| PyTorch | {rows['PyTorch']} | {newest} |" in page
