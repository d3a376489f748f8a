"""Every command runs to its end in its first form, and with each option alone."""

import sys

import matplotlib
import pytest
import torch as th

pytest.importorskip("rl_zoo3", reason="needs the extra zoo")
from sb3_per.cli import main as cli
from tests.helpers.first_forms import COMMANDS, PICKLE


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Make an empty folder, which a first run of `train` fills for the commands that need one."""
    return tmp_path_factory.mktemp("trained")


@pytest.fixture
def folder(trained, monkeypatch):
    """Type the commands in this folder, without a display."""
    matplotlib.use("Agg")
    monkeypatch.chdir(trained)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setattr(sys, "path", list(sys.path))
    optuna = pytest.importorskip("optuna")
    optuna.logging.disable_default_handler()  # it keeps the stream of the first test
    threads = th.get_num_threads()
    yield trained
    optuna.logging.enable_default_handler()
    th.set_num_threads(threads)


def run(command: str, *options: str) -> None:
    try:
        assert cli.main([command, *COMMANDS[command].required, *COMMANDS[command].short, *options]) == 0
    except SystemExit as end:  # a run that has ended cannot be resumed, which is no error
        assert end.code == 0


def prepare(command: str, folder) -> None:
    if command in ("enjoy", "plot", "record-video") and not (folder / "logs" / "per_dqn" / "CartPole-v1_1").exists():
        run("train")
    if command == "convert" and not (folder / "old.pkl").exists():
        exec(PICKLE, {})


def test_all_commands_are_in_the_list():
    assert set(COMMANDS) == set(cli.COMMANDS)


# Other quick tests run them: tests/compare/test_command.py, and test_doctor_on_a_healthy_installation.
SLOW = ("compare", "doctor")


@pytest.mark.parametrize("command", [pytest.param(c, marks=pytest.mark.slow) if c in SLOW else c for c in COMMANDS])
def test_the_first_form_runs_to_its_end(command, folder, capfd):
    """RL Zoo's commands end with the next one."""
    prepare(command, folder)
    run(command)
    streams = capfd.readouterr()
    assert "Traceback" not in streams.out + streams.err
    if command in cli.zoo.COMMANDS:
        assert ": sb3-per " in streams.out.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize(("command", "option"), [(c, option) for c, each in COMMANDS.items() for option in each.options])
def test_each_option_alone_runs_to_its_end(command, option, folder, capfd):
    prepare(command, folder)
    run(command, *option.split(" "))
    streams = capfd.readouterr()
    assert "Traceback" not in streams.out + streams.err
