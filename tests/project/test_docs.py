"""README and documentation: every block of Python runs, and every command runs or names things that exist."""

import contextlib
import re
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import matplotlib
import matplotlib.pyplot as plt
import pytest
import yaml
from stable_baselines3.common import evaluation
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from sb3_per import PERSAC
from sb3_per.algorithms.base import PrioritizedAlgorithm
from sb3_per.buffers.settings import SETTING_NAMES
from sb3_per.cli.convert import main as convert
from tests.helpers import newcomer
from tests.helpers.pages import PAGES, check_make, name_of, pages
from tests.helpers.project import ROOT, alone_with_ray

# With the defaults of most algorithms: ten gradient steps. A model that has learned before makes as many steps more.
MAX_STEPS = 110
N_LEARNING = 10

# Appended to a command of the Zoo, whose last option counts. Plots need two evaluations.
ZOO_LIMITS = {
    "plot": "-w 2",
    "train": "-n 200 --eval-freq 100 --eval-episodes 2",
    "enjoy": "-n 50 --no-render",
    "record-video": "-n 10",
    "tune": "--n-trials 2 --n-jobs 1 --n-evaluations 1 --no-optim-plots",
}

# Languages of the blocks that are checked. Blocks of `text` are not: they show output, or code of other libraries.
LANGUAGES = {"python", "bash", "yaml", "text"}

# Requirements other than this package: torch without CUDA, and any Git address.
ELSEWHERE = {
    ("torch", "--index-url", "https://download.pytorch.org/whl/cpu"),
    ("git+ADDRESS",),
    ("sbx-rl>=0.27,<0.30",),
    ("jax[cuda12]",),
}

_SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")


def spans_of(page: Path) -> list[str]:
    """Find code within sentences, with spaces for line breaks."""
    return [" ".join(span.split()) for span in _SPAN.findall(pages.BLOCK.sub("", page.read_text()))]


@pytest.fixture
def short_runs(tmp_path, monkeypatch):
    """Use an empty working directory, stop runs and evaluations early, and close in the end what a page has opened."""
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    models = []
    learn, pretrain, evaluate = OffPolicyAlgorithm.learn, PrioritizedAlgorithm.pretrain, evaluation.evaluate_policy

    def learn_shortly(self, total_timesteps, *args, **kwargs):
        models.append(self)
        n_done = 0 if kwargs.get("reset_num_timesteps", True) else self.num_timesteps
        n_steps = max(self.learning_starts - n_done, 0) + N_LEARNING
        return learn(self, min(total_timesteps, MAX_STEPS, n_steps), *args, **kwargs)

    monkeypatch.setattr(OffPolicyAlgorithm, "learn", learn_shortly)
    monkeypatch.setattr(PrioritizedAlgorithm, "pretrain", lambda self, gradient_steps: pretrain(self, N_LEARNING))
    monkeypatch.setattr(evaluation, "evaluate_policy", lambda model, env, n_eval_episodes: evaluate(model, env, 1))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    yield
    for model in models:
        if getattr(model, "env", None) is not None:  # the Zoo's tuner deletes it
            model.env.close()
        model.logger.close()
    plt.close("all")


# This page starts Ray, which only one quick test may do: the one in tests/distributed/test_ray.py.
STARTS_RAY = "docs/parallel.md"

# These take long: JAX compiles, and RL Zoo searches and records.
SLOW = (STARTS_RAY, "docs/command_line.md", "docs/own_environment.md")

WITH_BLOCKS = [page for page in PAGES if pages.blocks_of(page)]


@pytest.fixture
def alone(page):
    with alone_with_ray() if name_of(page) == STARTS_RAY else contextlib.nullcontext():
        yield


# Minari asks for names of authors, and a page may register an environment that another test has registered.
@pytest.mark.filterwarnings("ignore::UserWarning:minari", "ignore:.*Overriding environment")
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow) if name_of(page) in SLOW else page for page in WITH_BLOCKS],
    ids=name_of,
)
def test_every_block_runs(page, alone, short_runs, monkeypatch):
    """Run the blocks of a page in their order, as a reader does who follows it from top to bottom."""
    # As in a script: what is defined on the page can be pickled.
    script = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", script)
    for block in pages.blocks_of(page):
        if block.language in LANGUAGES:
            pages.write_named_file(block)
        if block.language == "python":
            if "_minari" in block.code and find_spec("minari") is None:  # needs Python 3.11
                continue
            code = "\n" * (block.line - 1) + block.code  # a traceback names the line of the page
            exec(compile(code, str(page), "exec"), vars(script))
        elif block.language == "yaml":
            yaml.safe_load(block.code)
        elif block.language == "bash":
            for command in pages.commands_of(block.code):
                run_or_check(command)
        else:
            assert block.language == "text" or block.language.startswith("{"), (
                f"{name_of(page)}, line {block.line}: blocks are one of {sorted(LANGUAGES)}, not {block.language!r}"
            )


def test_commands_in_sentences_name_things_that_exist():
    for page in PAGES:
        for span in spans_of(page):
            if re.match(r"make \w|python \S*\.py\b|\.venv/bin/|pip install |sb3-per ", span):
                print(name_of(page), span)  # shown if it fails
                check(shlex.split(span))


def run_or_check(words: list[str]) -> None:
    if words[:3] == ["python", "-m", "sb3_per.zoo"]:
        run_zoo(words[3:])
    elif words[:3] == ["python", "-m", "sb3_per.zoo.summary"]:
        from sb3_per.zoo import summary

        summary.main(words[3:])
    elif words[0] == "sb3-per" and words[1] in ZOO_LIMITS:
        run_zoo(words[1:])
    elif words[:2] == ["sb3-per", "convert"]:
        convert(words[2:])
    else:
        check(words)


def run_zoo(arguments: list[str]) -> None:
    from sb3_per.zoo import main

    limits = ZOO_LIMITS.get(arguments[0], "").split()
    if "--trial-id" in arguments:
        limits += ["--trial-id", "1"]  # the last of those that were just made
    try:
        main([*arguments, *limits])
    except SystemExit as end:  # a run that has ended cannot be resumed
        assert end.code == 0


def check(words: list[str]) -> None:
    """Check that a command names programs, files, options, targets and extras that exist."""
    program, *arguments = words
    if program.startswith(".venv/bin/"):
        program = program.removeprefix(".venv/bin/")
        assert (Path(sys.executable).parent / program).exists(), f"No {program} in the virtual environment"
        if program not in ("python", "pip"):
            missing = [word for word in arguments if ("/" in word or word.endswith(".py")) and not (ROOT / word).exists()]
            assert not missing, f"{missing} do not exist"
            return
    if program == "make":
        check_make(arguments)
    elif program == "python":
        check_script(*arguments)
    elif program == "pip":
        check_install(*arguments)
    elif program == "sb3-per":
        check_command(*arguments)
    else:
        raise AssertionError(f"A command that nothing checks: {shlex.join(words)}")


def check_script(script: str, *arguments: str) -> None:
    assert script.endswith(".py"), f"Only scripts of this repository are checked, not {script}"
    source = (ROOT / script).read_text()
    for module in ("campaign", "timing"):  # with the options that scripts share
        if f"from {module} import" in source:
            source += (ROOT / "benchmarks" / f"{module}.py").read_text()
    for word in arguments:
        if word.startswith("-"):
            assert re.search(rf'add_argument\([^()]*"{word}"', source), f"{script} has no option {word}"


def check_command(command: str, *arguments: str) -> None:
    page = (ROOT / "docs" / "command_line.md").read_text()
    assert command in {"COMMAND", "--help"} or f"| `sb3-per {command}` |" in page, f"docs/command_line.md has no {command}"


def check_install(subcommand: str, *requirements: str) -> None:
    if requirements in ELSEWHERE:
        return
    pyproject = (ROOT / "pyproject.toml").read_text()
    table = pyproject.split("[project.optional-dependencies]\n")[1].split("\n[")[0]
    extras = set(re.findall(r"^(\w+) = ", table, re.MULTILINE))
    for requirement in requirements:
        this_package = re.fullmatch(r"\.(?:\[(\w+(?:,\w+)*)\])?", requirement)
        assert subcommand == "install" and this_package, f"Only this package is installed, not {requirement}"
        unknown = set((this_package[1] or "").split(",")) - extras - {""}
        assert not unknown, f"Unknown extras: {unknown}"


def test_mistakes_in_commands_are_found(short_runs):
    for command in (
        "ls",
        "make nothing",
        "make train NOTHING=1",
        "python benchmarks/nothing.py",
        "python benchmarks/speed.py --nothing",
        "python -m nothing",
        "python -m sb3_per.zoo nothing",
        "python -m sb3_per.zoo train --nothing",
        ".venv/bin/nothing",
        ".venv/bin/pytest tests/nothing.py",
        ".venv/bin/python benchmarks/speed.py --nothing",
        "pip install nothing",
        "pip install '.[nothing]'",
        "pip uninstall .",
        "pip install sb3_per",
        "sb3-per nothing",
    ):
        print(command)  # shown if it passes
        with pytest.raises((AssertionError, FileNotFoundError, SystemExit)):
            run_or_check(*pages.commands_of(command))


def test_correct_commands_pass():
    for command in pages.commands_of(
        """
        make train ALGO=per_dqn  # a comment
        python benchmarks/speed.py --only sample \\
            --out speed
        .venv/bin/pytest tests/project/test_docs.py -k correct
        pip install .
        pip install '.[extra,zoo]'
        """
    ):
        run_or_check(command)


def test_the_page_of_settings_has_a_section_for_each():
    headings = re.findall("^### (.*)", (ROOT / "docs" / "settings.md").read_text(), re.MULTILINE)
    described = {name for heading in headings for name in re.findall(r"`(\w+)`", heading)}
    assert described >= set(SETTING_NAMES)


def test_newcomer_finds_its_commands_in_the_readme():
    assert pages.commands_of("\n".join(newcomer.blocks("bash"))) == [["make", "train"], ["make", "test"]]
    assert [".learn(" in code for code in newcomer.blocks("python")] == [False, True]


def test_newcomer_tries_every_command():
    page = (ROOT / "docs" / "command_line.md").read_text()
    assert set(newcomer.COMMANDS) == set(re.findall(r"^\| `sb3-per ([\w-]+)` \|", page, re.MULTILINE))


class Unprioritized(ReplayBuffer):
    """A buffer of a user's own."""


# What raises each message.
MISTAKES = {
    "Pass a number, not a string": lambda: PERSAC("MlpPolicy", "Pendulum-v1", replay_buffer_kwargs=dict(epsilon="1e-3")),
    "'n_sampled_goal', it is one of PrioritizedHerReplayBuffer": lambda: PERSAC(
        "MlpPolicy", "Pendulum-v1", replay_buffer_kwargs=dict(n_sampled_goal=4)
    ),
    "has no effect with": lambda: PERSAC(
        "MlpPolicy", "Pendulum-v1", replay_buffer_kwargs=dict(scheme="uniform", initial_priority="td_error")
    ),
    "needs a prioritized replay buffer, and PositiveRewards is not": lambda: PERSAC(
        "MlpPolicy", "Pendulum-v1", replay_buffer_class=type("PositiveRewards", (Unprioritized,), {})
    ),
}


def test_common_mistakes_raise_an_error_that_names_them():
    for message, make in MISTAKES.items():
        with pytest.raises((TypeError, ValueError), match=re.escape(message)):
            make()


# Words of README and pages. What is longer is said twice, or belongs into a docstring.
MOST_WORDS = 15_000
# A table that `make figures` writes from docs/benchmarks.
GENERATED = re.compile(r"<!--figure [^>]*-->\n\n.*?<!--/figure-->", re.DOTALL)


def words_of(text: str) -> list[str]:
    """Split a page into words, those of its tables too, without blocks of code, comments and tables of benchmarks."""
    text = re.sub("<!--.*?-->", "", GENERATED.sub("", pages.BLOCK.sub("", text)), flags=re.DOTALL)
    return [word for word in text.split() if re.search(r"\w", word)]


def test_words_are_those_of_sentences_and_tables():
    table = "# One two\n\n| three | `four` |\n|---|---|\n\n"
    text = table + "```bash\nnot this\n```\n\n<!--figure six-->seven<!--/figure-->, eight - nine\n"
    assert len(words_of(text)) == 7
    assert words_of("<!--figure missed-->\n\n| a | b |\n\n<!--/figure-->") == []


def test_pages_are_few_and_short():
    counted = {name_of(page): len(words_of(page.read_text())) for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]}
    assert len(counted) <= 19  # 18, and the one on compatibility
    assert sum(counted.values()) <= MOST_WORDS, counted
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100


def test_ten_questions_lead_from_the_readme_to_a_heading():
    """Each link of the table "Where to go" ends at a heading of its page."""
    section = (ROOT / "README.md").read_text().partition("## Where to go\n")[2].partition("\n## ")[0]
    links = re.findall(r"\]\((docs/[\w.]+)(?:#([\w-]+))?\)", section)
    assert len(links) >= 10
    for path, anchor in links:
        text = pages.BLOCK.sub("", (ROOT / path).read_text())
        headings = re.findall(r"^#+ (.*)", text, re.MULTILINE)
        slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in slugs, (path, anchor)


def headings_of(page: Path) -> set[str]:
    """List the anchors that GitHub gives to the headings of a page."""
    lines = pages.BLOCK.sub("", page.read_text()).splitlines()
    titles = (line.lstrip("#").strip().lower() for line in lines if line.startswith("#"))
    return {re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title)).replace(" ", "-") for title in titles}


def test_links_open_headings_wherever_a_page_is_read():
    """On GitHub and on the built site: a label of Sphinx would be no anchor on GitHub."""
    written = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    anchors = {page.resolve(): headings_of(page) for page in written}
    n_links = 0
    for page in written:
        for other, anchor in re.findall(r"\]\(((?!http)[^)#]*\.md)?#([^)]+)\)", page.read_text()):
            target = (page.parent / other).resolve() if other else page.resolve()
            assert anchor in anchors[target], f"{page.name}: {other}#{anchor}"
            n_links += 1
    assert n_links > 50
