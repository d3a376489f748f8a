"""What is used of other packages without being public stands in one table, and hooks that are overridden in another."""

import ast

import pytest

pytest.importorskip("minari", reason="needs the extras of all parts of the package")
pytest.importorskip("ray")
pytest.importorskip("rl_zoo3")
pytest.importorskip("sbx")

from sb3_per.utils.parents import DECLARED
from tests.helpers import private_uses


@pytest.fixture(scope="module")
def uses():
    return private_uses.uses_in(private_uses.modules())


def test_the_table_lists_all_uses(uses):
    table = private_uses.rows()
    renewed = private_uses.renewed(table, uses)
    differing = [row for row in renewed if row not in table] + [row for row in table if row not in renewed]
    assert not differing, (
        "The table of docs/developer_guide.md differs from the code: run python -m tests.helpers.private_uses, and say why a "
        f"new name is used. Rows that differ:\n{private_uses.text_of(differing)}"
    )


def test_each_row_says_why_and_what_to_do():
    for row in private_uses.rows():
        assert len(row) == 4 and all(row), f"docs/developer_guide.md, row of {row[0]}: fill in all columns"


def test_rl_zoo_is_used_in_one_module(uses):
    """Other modules import the names of ``rl_zoo3.__all__`` alone."""
    of_zoo = {name: files for name, files in uses.items() if "rl_zoo3." in name}
    assert of_zoo and set().union(*of_zoo.values()) == {"zoo/upstream.py"}


def test_hooks_are_the_methods_that_are_overridden():
    """Those with a private name, and all of RL Zoo's manager, none of whose methods is documented."""
    for file, tree in private_uses.modules().items():
        for cls in private_uses.classes_of(file, tree).values():
            parents = [base for base in cls.__mro__ if private_uses.is_of_others(base.__module__.partition(".")[0])]
            overridden = set()
            for name in vars(cls):
                owners = [base.__name__ for base in parents if callable(vars(base).get(name))]
                if owners and (private_uses.is_private(name) or "ExperimentManager" in owners) and not name.startswith("__"):
                    overridden.add(name)
            declared = {name for base in cls.__mro__ for name in DECLARED.get(base, ())}
            assert overridden <= declared, f"{file}: write @overrides{tuple(overridden - declared)} above {cls.__name__}"
            assert set(DECLARED.get(cls, ())) <= overridden, f"{file}: @overrides of {cls.__name__} names too much"


FOUND = {
    "import os\nx = thing._unknown_name": {"_unknown_name"},
    "model._setup_learn()": {"_setup_learn"},
    "getattr(model, '_n_updates')": {"_n_updates"},
    "from torch._C import thing": {"torch._C.thing"},
    "import torch._dynamo": {"torch._dynamo"},
    "from rl_zoo3.exp_manager import ExperimentManager": {"rl_zoo3.exp_manager.ExperimentManager"},
    "from rl_zoo3 import ALGOS\nALGOS['per_sac'] = 1": {"ALGOS[...] ="},
    "import gymnasium as gym\ngym.make = None": {"gym.make ="},
    "env.stacked_obs": {"stacked_obs"},
}
NOT_FOUND = (
    "import sb3_per.utils._x",
    "batch._replace(rewards=1)",
    "x.__dict__",
    "from rl_zoo3 import ALGOS",
)


def test_uses_are_found_in_code_that_has_them():
    for code, names in FOUND.items():
        assert set(private_uses.uses_in({"x.py": ast.parse(code)})) == names, code
    for code in NOT_FOUND:
        assert not private_uses.uses_in({"x.py": ast.parse(code)}), code
