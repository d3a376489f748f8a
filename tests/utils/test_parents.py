"""A class whose parent has lost a hook is refused when it is made."""

import importlib
import os
import re
import subprocess
import sys
from importlib.metadata import version

import pytest
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

import sb3_per
from sb3_per.utils.parents import DECLARED, WORKS_WITH, overrides
from tests.helpers.project import ROOT


def owners_and_hooks() -> list[tuple[str, str]]:
    """List the hooks that are declared, each with the class of another package that defines it first."""
    for module in ("sb3_per.public", "sb3_per.zoo.runs", "sb3_per.compare.runs"):
        importlib.import_module(module)
    found = set()
    for cls, hooks in DECLARED.items():
        parents = [base for base in cls.__mro__ if base.__module__.partition(".")[0] in WORKS_WITH]
        found |= {([base.__name__ for base in parents if hook in vars(base)][-1], hook) for hook in hooks}
    return sorted(found)


# Removes a hook from a class and from those that override it, and then imports the package: each in a process of its own.
REMOVE_AND_IMPORT = """
import importlib, os, sys

import rl_zoo3.exp_manager, sb3_contrib, stable_baselines3.common.callbacks


def below(cls):
    return [cls, *(each for sub in cls.__subclasses__() for each in below(sub))]


def classes():
    for module in list(sys.modules.values()):
        if module.__name__.partition(".")[0] in ("stable_baselines3", "sb3_contrib", "rl_zoo3"):
            yield from (each for each in vars(module).values() if isinstance(each, type))


for owner, hook in HOOKS:
    child = os.fork()
    if child == 0:
        removed = {sub for cls in classes() if cls.__name__ == owner for sub in below(cls) if hook in vars(sub)}
        for cls in removed:
            delattr(cls, hook)
        try:
            for module in ("sb3_per.public", "sb3_per.zoo.runs", "sb3_per.compare.runs"):
                importlib.import_module(module)
            print(f"{owner}.{hook}|nothing", flush=True)
        except BaseException as error:
            print(f"{owner}.{hook}|{type(error).__name__}|{error}", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


def without(monkeypatch, cls: type, hook: str) -> None:
    """Remove a hook from all classes of other packages that a class extends."""
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] != "sb3_per" and hook in vars(base):
            monkeypatch.delattr(base, hook)


@pytest.mark.parametrize(
    ("cls", "hook"),
    [
        (sb3_per.PERSAC, "_setup_learn"),
        (sb3_per.PERRecurrentSAC, "_sample_action"),
        (sb3_per.PrioritizedHerReplayBuffer, "_get_samples"),
    ],
    ids=lambda each: getattr(each, "__name__", each),
)
def test_a_class_whose_parents_lack_a_hook_is_refused_in_one_sentence(monkeypatch, cls, hook):
    assert hook in {name for base in cls.__mro__ for name in DECLARED.get(base, ())}
    assert overrides(hook)(type("Before", (cls,), {}))
    without(monkeypatch, cls, hook)
    named = rf"After overrides \w+\.{hook}, which is not there in stable_baselines3 {re.escape(version('stable-baselines3'))}"
    with pytest.raises(ImportError, match=rf"^{named}: sb3_per works with {re.escape(WORKS_WITH['stable_baselines3'])}$"):
        overrides(hook)(type("After", (cls,), {}))


def test_a_hook_that_moved_to_another_parent_is_there(monkeypatch):
    hook = BaseAlgorithm._setup_learn
    without(monkeypatch, sb3_per.PERSAC, "_setup_learn")
    monkeypatch.setattr(OffPolicyAlgorithm, "_setup_learn", hook, raising=False)
    moved = type("Moved", (sb3_per.PERSAC,), {})
    assert overrides("_setup_learn")(moved) is moved


def test_versions_are_those_of_pyproject():
    dependencies = (ROOT / "pyproject.toml").read_text().replace("rl_zoo3[plots]", "rl_zoo3")
    assert all(f'"{versions}"' in dependencies for versions in WORKS_WITH.values())


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_the_import_names_each_hook_that_is_missing():
    pytest.importorskip("rl_zoo3", reason="needs the extra zoo")
    hooks = owners_and_hooks()
    program = f"HOOKS = {hooks!r}\n{REMOVE_AND_IMPORT}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    outcomes = dict(line.split("|", 1) for line in done.stdout.splitlines() if "|" in line)
    assert set(outcomes) == {f"{owner}.{hook}" for owner, hook in hooks}
    for name, outcome in outcomes.items():
        hook = name.partition(".")[2]
        sentence = rf"ImportError\|\w+ overrides \w+\.{hook}, which is not there in .*: sb3_per works with .*"
        assert re.fullmatch(sentence, outcome), outcome
