"""Every command runs to its end in its first form, and with each option alone."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import matplotlib
import pytest
import yaml
from gymnasium.envs.classic_control import CartPoleEnv

pytest.importorskip("rl_zoo3", reason="needs the extra zoo")
from sb3_per.cli import compare
from sb3_per.cli import main as cli
from sb3_per.compare import campaign, task
from sb3_per.zoo import register, scripts
from tests.first_forms import COMMANDS, PICKLE

SHORT = {
    "n_timesteps": 240,
    "policy": "MlpPolicy",
    "learning_starts": 100,
    "batch_size": 16,
    "buffer_size": 1_000,
    "policy_kwargs": "dict(net_arch=[8])",
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train in an empty folder, for the commands that need a run."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "short.yml").write_text(yaml.dump({"CartPole-v1": SHORT}))
    return folder


@pytest.fixture
def short_task(trained, monkeypatch):
    """Shorten the task, not the command: a hyperparameter file with few steps, and few runs of a comparison."""
    matplotlib.use("Agg")
    monkeypatch.chdir(trained)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setitem(CartPoleEnv.metadata, "render_fps", 1_000)  # a window shows 50 steps in a second
    monkeypatch.setattr(sys, "path", list(sys.path))
    for module in (scripts, task):
        monkeypatch.setattr(module, "config_path", lambda algo: trained / "short.yml")
    monkeypatch.setattr(compare, "SEEDS", 1)
    monkeypatch.setattr(compare, "RATES", (1.0,))
    # In this process, which has imported everything.
    monkeypatch.setattr(campaign, "ProcessPoolExecutor", lambda workers, mp_context: ThreadPoolExecutor(1))
    if not Path("old.pkl").exists():
        exec(PICKLE, {})
    yield
    register()


def run(command: str, *arguments: str) -> None:
    try:
        assert cli.main([command, *arguments]) == 0
    except SystemExit as end:  # a run that has ended cannot be resumed, which is no error
        assert end.code == 0


def run_first_form(command: str) -> None:
    if command in ("enjoy", "plot", "record-video") and not Path("episodes").exists():
        Path("episodes").touch()
        # A plot averages over a hundred episodes.
        run("train", *COMMANDS["train"].required, "-n", "3000", "-params", "learning_starts:2950")
    run(command, *COMMANDS[command].required)


def test_all_commands_are_in_the_list():
    assert set(COMMANDS) == {*cli.SCRIPTS, *cli.MODULES}


@pytest.mark.parametrize("command", [pytest.param(c, marks=pytest.mark.slow) if c == "compare" else c for c in COMMANDS])
def test_the_first_form_runs_to_its_end(command, short_task, capfd):
    run_first_form(command)
    streams = capfd.readouterr()
    assert "Traceback" not in streams.out + streams.err
    assert streams.out or command == "enjoy", f"{command} says nothing"


@pytest.mark.slow
@pytest.mark.parametrize(("command", "option"), [(c, option) for c, each in COMMANDS.items() for option in each.options])
def test_each_option_alone_runs_to_its_end(command, option, short_task, capfd):
    if command in ("enjoy", "plot", "record-video"):
        run_first_form(command)
    shorter = ["--quick", "--seeds", "1"] if command == "compare" and option not in ("--quick", "--seeds 2") else []
    run(command, *COMMANDS[command].required, *option.split(" "), *shorter)
    streams = capfd.readouterr()
    assert "Traceback" not in streams.out + streams.err


def test_a_plot_without_a_display_is_saved(short_task, capsys):
    run_first_form("plot")
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"Saved {os.path.join('logs', 'per_dqn', 'plot.png')}"
    assert Path(last.removeprefix("Saved ")).read_bytes().startswith(b"\x89PNG")


def test_the_help_of_tune_is_its_own(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["tune", "--help"])
    shown = capsys.readouterr().out
    assert stopped.value.code == 0
    assert all(option in shown for option in ("--n-trials", "--storage", "--study-name"))
    assert "-optimize" not in shown and "--resume" not in shown
