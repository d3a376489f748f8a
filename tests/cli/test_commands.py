"""The command sb3-per calls the right functions, and its doctor finds faults."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch as th
from gymnasium.error import DependencyNotInstalled
from stable_baselines3.common.logger import Logger

import sb3_per
import sb3_per.zoo
from sb3_per.cli import compare, doctor
from sb3_per.cli import main as cli
from sb3_per.monitoring.plots import plot_buffer
from sb3_per.zoo import summary
from tests.helpers.buffers import fill, make_buffer
from tests.helpers.project import ROOT

COMMANDS = tuple(cli.COMMANDS)
TASK = ("--algo", "per_dqn", "--env", "CartPole-v1")

# Packages of extras: a plain installation has none of them.
ALONE = """
import sys
import numba
compiled = []
compile = numba.core.dispatcher.Dispatcher.compile
numba.core.dispatcher.Dispatcher.compile = lambda self, sig: compiled.append(self) or compile(self, sig)
for package in "matplotlib rl_zoo3 scipy minari h5py ray jax sbx optuna moviepy pygame envpool".split():
    sys.modules[package] = None  # importing it raises ImportError
import gymnasium.vector
vars(gymnasium.vector).pop("AutoresetMode", None)  # came with 1.1
import sb3_per.integrations
from sb3_per.cli.main import main
try:
    main(["--help"])
except SystemExit as stopped:
    assert stopped.code == 0
assert main(["doctor", "--no-test"]) == 0
try:
    main("train --algo per_dqn --env CartPole-v1".split())
except SystemExit as stopped:
    assert stopped.code == 1
assert not compiled
import sb3_per
sb3_per.SumTree(3).update([1], [2.0])
assert compiled
"""


def test_a_plain_installation_has_help_and_doctor_and_names_the_extra():
    """It compiles nothing before a kernel is called."""
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "usage: sb3-per " in done.stdout and f"{sb3_per.__version__}" in done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith("sb3-per train: ") and 'pip install ".[zoo]"' in line


def test_help_shows_our_options_and_those_of_the_zoo(capsys):
    pytest.importorskip("rl_zoo3")
    for command, ours, of_zoo in (
        ("train", "--demonstrations", "--eval-freq"),
        ("tune", "--gym-packages", "--n-trials"),
        ("enjoy", "--algo", "--load-best"),
        ("record-video", "--output-folder", "--load-best"),
        ("plot", "--output", "--episode-window"),
    ):
        with pytest.raises(SystemExit) as stopped:
            cli.main([command, "--help"])
        assert stopped.value.code == 0
        first, _, second = capsys.readouterr().out.partition("RL Zoo's options:")
        assert first.startswith(f"usage: sb3-per {command} ") and ours in first
        assert of_zoo in second and of_zoo not in first


def test_without_a_command_all_are_listed(capsys):
    assert cli.main([]) == 2
    listed = capsys.readouterr().err
    assert all(re.search(rf"^  {command} ", listed, re.MULTILINE) for command in COMMANDS)


def test_modules_run_as_the_command_does(monkeypatch, capsys):
    for module in ("sb3_per", "sb3_per.zoo"):
        monkeypatch.setattr(sys, "argv", [module, "train"])
        with pytest.raises(SystemExit) as stopped:
            runpy.run_module(module, run_name="__main__", alter_sys=False)
        assert stopped.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"python -m {module} train: the following arguments are required: ")


def test_wrong_words_are_one_line(tmp_path, monkeypatch, capsys):
    for words, code, said in (
        (["fly"], 2, "invalid choice: 'fly'"),
        (["enjoy", "--algo", "per_dqn"], 2, "the following arguments are required: -e/--env"),
        (["convert", "old.pkl", "new.buffer"], 1, "There is no file old.pkl"),
        (
            ["convert", "here.pkl", "new.buffer"],
            2,
            "unpickling runs code from it; if you trust it, add --trust",
        ),
    ):
        monkeypatch.chdir(tmp_path)
        Path("here.pkl").touch()
        with pytest.raises(SystemExit) as stopped:
            cli.main(words)
        assert stopped.value.code == code
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line


def test_help_lists_all_commands_and_version_is_printed(capsys):
    for option in ("--help", "--version"):
        with pytest.raises(SystemExit):
            cli.main([option])
    shown = capsys.readouterr().out
    assert set(re.findall(r"^  ([\w-]+)  ", shown.partition("commands:")[2], re.MULTILINE)) == set(COMMANDS)
    assert shown.splitlines()[-1] == f"sb3_per {sb3_per.__version__}"


def test_help_loads_neither_pytorch_nor_the_classes():
    """So it comes at once. A name that is asked for is there, and one that does not exist is named."""
    code = """
import sys
from sb3_per.cli.main import main
try:
    main(["--help"])
except SystemExit as stopped:
    assert stopped.code == 0
assert not {"torch", "numba", "stable_baselines3", "gymnasium"} & set(sys.modules)
import sb3_per
assert {"PERSAC", "__version__"} <= set(dir(sb3_per))
assert sb3_per.PERSAC.__module__ == "sb3_per.algorithms.sac"
sb3_per.PERSACC
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("AttributeError: module 'sb3_per' has no attribute 'PERSACC'"), done.stderr


def test_a_package_that_an_environment_lacks_is_one_line(monkeypatch, capsys):
    """Gymnasium's error is no ImportError."""

    def render(*_):
        raise DependencyNotInstalled('pygame is not installed, run `pip install "gymnasium[classic-control]"`')

    monkeypatch.setattr(cli.zoo, "run", render)
    with pytest.raises(SystemExit) as ended:
        cli.main(["record-video", *TASK])
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith("sb3-per record-video: pygame is not installed, run `pip install")


def test_missing_extras_name_commands_that_work(monkeypatch, tmp_path):
    filled = make_buffer()
    fill([filled], 5)
    model = sb3_per.PERDQN("MlpPolicy", "CartPole-v1", tensorboard_log=str(tmp_path), buffer_size=100)
    other = sb3_per.PERDQN("MlpPolicy", "CartPole-v1", buffer_size=100).learn(20)
    model.replay_buffer.add_demonstrations_from(other.replay_buffer)
    for module, use, command in (
        ("matplotlib.figure", lambda: plot_buffer(filled), 'pip install "matplotlib", or pip install ".[extra]"'),
        ("tqdm.rich", lambda: model.pretrain(1, progress_bar=True), 'pip install "tqdm" "rich", or pip install ".[extra]"'),
        ("rl_zoo3", lambda: compare.main(TASK), 'or pip install ".[compare]"'),
        ("rl_zoo3", lambda: sb3_per.zoo.register(), 'pip install "rl_zoo3[plots]" requests, or pip install ".[zoo]"'),
    ):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            with pytest.raises(ImportError, match=re.escape(command)):
                use()
            if module == "rl_zoo3":
                with pytest.raises(SystemExit):
                    summary.main(TASK)
    monkeypatch.setattr("stable_baselines3.common.utils.SummaryWriter", None)  # what SB3 has without it
    with pytest.raises(ImportError, match=re.escape('pip install "tensorboard" "tqdm" "rich", or pip install ".[extra]"')):
        model.learn(1)


def test_a_logger_of_the_users_own_needs_no_tensorboard(monkeypatch, tmp_path):
    model = sb3_per.PERDQN("MlpPolicy", "CartPole-v1", tensorboard_log=str(tmp_path), buffer_size=100)
    model.set_logger(Logger(None, []))
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    assert model.learn(4).num_timesteps == 4


# ---- doctor


def test_doctor_on_a_healthy_installation(capsys):
    threads = th.get_num_threads()
    assert cli.main(["doctor"]) == 0
    th.set_num_threads(threads)
    facts = dict(re.split(r"  +| (?=\d)", line, maxsplit=1) for line in capsys.readouterr().out.splitlines() if "  " in line)
    assert facts["sb3_per"].startswith(sb3_per.__version__) and facts["PyTorch"] == th.__version__
    assert {"Python", "numba", "threads", "GPU Enabled", "check buffer", "check PERSAC"} <= set(facts)


def test_doctor_finds_a_tree_that_draws_wrongly(monkeypatch, capsys):
    class Shifted(sb3_per.PrioritizedReplayBuffer):
        def sample(self, batch_size, env=None):
            batch = super().sample(batch_size, env)
            return batch._replace(indices=np.maximum(batch.indices - 1, 0))

    monkeypatch.setattr(sb3_per, "PrioritizedReplayBuffer", Shifted)
    monkeypatch.setattr(doctor, "check_learning", lambda: "learned")
    threads = th.get_num_threads()
    assert doctor.main([]) == 1
    th.set_num_threads(threads)
    shown = capsys.readouterr().out
    assert "check buffer       FAILED: AssertionError: A transition was drawn" in shown
    assert "A check failed" in shown and "All checks passed" not in shown


def test_doctor_finds_parameters_that_are_not_finite(monkeypatch):
    class Broken(sb3_per.PERSAC):
        def learn(self, *args, **kwargs):
            with th.no_grad():
                next(self.critic.parameters())[0] = np.nan
            return self

    monkeypatch.setattr(sb3_per, "PERSAC", Broken)
    with pytest.raises(AssertionError, match="A parameter is not finite"):
        doctor.check_learning()


def test_doctor_finds_a_buffer_that_ignores_priorities(monkeypatch):
    class Short(sb3_per.PERSAC):
        def learn(self, *args, **kwargs):
            self.learning_starts = 10
            return super().learn(30)

    monkeypatch.setattr(sb3_per, "PERSAC", Short)
    monkeypatch.setattr(sb3_per.PrioritizedReplayBuffer, "update_priorities", lambda self, ids, errors: 0)
    with pytest.raises(AssertionError, match="was drawn"):
        doctor.check_buffer()
    with pytest.raises(AssertionError, match="TD errors"):
        doctor.check_learning()
