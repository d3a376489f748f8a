"""The command sb3-per: commands reach their modules, and the doctor finds faults."""

import re
import subprocess
import sys

import numpy as np
import pytest

import sb3_per
import sb3_per.zoo
from sb3_per.cli import doctor
from sb3_per.cli import main as cli
from sb3_per.monitoring.plots import plot_buffer
from sb3_per.zoo import SCRIPTS
from tests.utils import ROOT, fill, make_buffer


@pytest.mark.parametrize(
    ("command", "handed"), [("train", ["train"]), ("tune", ["train", "-optimize"]), ("enjoy", ["enjoy"]), ("plot", ["plot"])]
)
def test_commands_run_scripts_of_the_zoo(command, handed, monkeypatch):
    calls = []
    monkeypatch.setattr("sb3_per.zoo.main", calls.append)
    assert cli.main([command, "--algo", "per_sac"]) == 0
    assert calls == [[*handed, "--algo", "per_sac"]]
    assert handed[0] in SCRIPTS


def test_convert_receives_its_options(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["convert", "old.pkl", "new.buffer"])
    assert stopped.value.code == 2
    assert "--trust" in capsys.readouterr().err


def test_unknown_commands_are_refused_and_help_lists_all(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["fly"])
    assert stopped.value.code == 2
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--help"])
    assert stopped.value.code == 0
    listed = set(re.findall(r"^  (\w+)  ", capsys.readouterr().out.partition("commands:")[2], re.MULTILINE))
    assert listed == set(cli.COMMANDS)


def test_version_is_printed(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert sb3_per.__version__ in capsys.readouterr().out


def test_a_missing_zoo_names_the_command_that_installs_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "rl_zoo3", None)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["train", "--algo", "per_sac", "--env", "Pendulum-v1"])
    assert stopped.value.code == 1
    assert 'pip install ".[zoo]"' in capsys.readouterr().err


def test_other_missing_modules_raise(monkeypatch):
    monkeypatch.setitem(sys.modules, "sb3_per.cli.doctor", None)
    with pytest.raises(ModuleNotFoundError):
        cli.main(["doctor"])


def test_doctor_on_a_healthy_installation(capsys):
    state = np.random.get_state()[1].copy()
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "All checks passed" in out
    assert (np.random.get_state()[1] == state).all()
    for word in ("python", "torch", "numba", "cache", "threads", "gpu", *(f"check {name}" for name in doctor.CHECKS)):
        assert re.search(rf"^{word} ", out, re.MULTILINE), word


def test_doctor_finds_a_tree_that_draws_wrongly(monkeypatch, capsys):
    find = sb3_per.SumTree.find
    monkeypatch.setattr(sb3_per.SumTree, "find", lambda self, values: np.maximum(find(self, values) - 1, 0))
    monkeypatch.setattr(doctor, "CHECKS", {"tree": doctor.check_tree})
    assert doctor.main([]) == 1
    assert "check tree         FAILED" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:10 batches were drawn")
def test_doctor_finds_a_buffer_that_ignores_priorities(monkeypatch):
    monkeypatch.setattr(sb3_per.PrioritizedReplayBuffer, "update_priorities", lambda self, ids, errors: 0)
    with pytest.raises(AssertionError, match="was drawn"):
        doctor.check_buffer()
    with pytest.raises(AssertionError, match="TD errors"):
        doctor.check_learning("PERDQN", "CartPole-v1", 200)


def test_doctor_names_the_extra_of_what_is_missing(monkeypatch, capsys):
    monkeypatch.setitem(doctor.EXTRAS, "zoo", ("no_such_module",))
    assert doctor.main(["--no-test"]) == 0
    assert 'lacks no_such_module: pip install "no_such_module", or pip install ".[zoo]"' in capsys.readouterr().out
    extras = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert set(doctor.EXTRAS) <= set(extras)


def test_the_package_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "sb3_per", "--version"], capture_output=True, text=True, check=True)
    assert sb3_per.__version__ in done.stdout


def test_missing_extras_name_commands_that_work(monkeypatch, tmp_path):
    filled = make_buffer()
    fill([filled], 5)
    model = sb3_per.PERDQN("MlpPolicy", "CartPole-v1", tensorboard_log=str(tmp_path), buffer_size=100)
    for module, use, command in (
        ("matplotlib", lambda: plot_buffer(filled), 'pip install "matplotlib", or pip install ".[extra]"'),
        ("matplotlib.figure", lambda: plot_buffer(filled), 'pip install "matplotlib"'),
        ("tensorboard", lambda: model.learn(1), 'pip install "tensorboard", or pip install ".[extra]"'),
        ("rl_zoo3", lambda: sb3_per.zoo.register(), 'pip install "rl_zoo3[plots]" "requests", or pip install ".[zoo]"'),
    ):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            with pytest.raises(ImportError, match=re.escape(command)):
                use()
