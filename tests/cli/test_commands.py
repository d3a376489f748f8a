"""The command sb3-per calls the right scripts, and its doctor finds faults."""

import importlib.util
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gymnasium.error import DependencyNotInstalled

import sb3_per
import sb3_per.zoo
from sb3_per.cli import checks, compare, doctor
from sb3_per.cli import main as cli
from sb3_per.monitoring.plots import plot_buffer
from sb3_per.utils import extras
from sb3_per.zoo import summary
from sb3_per.zoo.options import SCRIPTS
from tests.utils import ROOT, fill, make_buffer


def test_commands_call_scripts_of_the_zoo(monkeypatch):
    calls = []
    monkeypatch.setattr(cli, "run", lambda *call: calls.append(call))
    for command in SCRIPTS:
        assert cli.main([command, "--algo", "per_sac"]) == 0
        assert calls.pop() == (command, ["--algo", "per_sac"], f"sb3-per {command}", False)


# Packages of extras: a plain installation has none of them.
ALONE = """
import sys
for package in "matplotlib rl_zoo3 scipy minari h5py ray jax sbx optuna moviepy pygame".split():
    sys.modules[package] = None  # importing it raises ImportError
from sb3_per.cli.main import main
for command in ([], *([command] for command in sys.argv[1:])):
    try:
        main([*command, "--help"])
    except SystemExit as stopped:
        assert stopped.code == 0
"""
COMMANDS = (*cli.SCRIPTS, *cli.MODULES)


def test_help_imports_no_package_of_an_extra():
    done = subprocess.run([sys.executable, "-c", ALONE, *COMMANDS], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    for words in ("sb3-per", *(f"sb3-per {command}" for command in COMMANDS)):
        assert f"usage: {words} " in done.stdout


def test_help_shows_the_command_that_was_typed(monkeypatch, capsys):
    typed = [*(("sb3_per", command) for command in COMMANDS), *(("sb3_per.zoo", script) for script in SCRIPTS)]
    for module, command in typed:
        monkeypatch.setattr(sys, "argv", [module, command, "--help"])
        with pytest.raises(SystemExit) as stopped:
            runpy.run_module(module, run_name="__main__", alter_sys=False)
        assert stopped.value.code == 0
        assert capsys.readouterr().out.startswith(f"usage: python -m {module} {command} ")


def test_algorithm_and_environment_are_required(capsys):
    for command in ("train", "tune", "enjoy", "plot"):
        for options, missing in (([], "--algo, "), (["--algo", "per_dqn"], "--env")):
            with pytest.raises(SystemExit) as stopped:
                cli.main([command, *options])
            assert stopped.value.code == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert line.startswith(f"sb3-per {command}: the following arguments are required: ") and missing in line


def test_help_names_the_module_that_lists_all_options_of_the_zoo(capsys):
    pytest.importorskip("rl_zoo3")
    for script in SCRIPTS:
        with pytest.raises(SystemExit):
            cli.main([script, "--help"])
        (module,) = re.findall(r"python -m (\S+) --help lists all", capsys.readouterr().out)
        assert importlib.util.find_spec(module) is not None


def test_commands_without_a_run_say_where_they_looked(tmp_path, monkeypatch, capsys):
    """They do not use the network."""
    pytest.importorskip("rl_zoo3")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("socket.socket.connect", None)
    for command, *options in (("enjoy",), ("plot",), ("enjoy", "-f", "elsewhere"), ("plot", "-f", "elsewhere")):
        with pytest.raises(SystemExit) as stopped:
            cli.main([command, "--algo", "dqn", "--env", "CartPole-v1", *options])
        assert stopped.value.code == 2
        assert str(Path(options[-1] if options else "logs", "dqn")) in capsys.readouterr().err


def test_convert_asks_for_trust_only_if_there_is_a_source(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for code, said in ((1, "There is no file old.pkl"), (2, "old.pkl is a pickle, and unpickling runs code from it; ")):
        with pytest.raises(SystemExit) as stopped:
            cli.main(["convert", "old.pkl", "new.buffer"])
        assert stopped.value.code == code
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"sb3-per convert: {said}") and ("--trust" in line) == (code == 2)
        Path("old.pkl").touch()


def test_unknown_commands_are_refused_and_help_lists_all(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["fly"])
    assert stopped.value.code == 2
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--help"])
    assert stopped.value.code == 0
    listed = set(re.findall(r"^  ([\w-]+)  ", capsys.readouterr().out.partition("commands:")[2], re.MULTILINE))
    assert listed == set(COMMANDS)


def test_version_is_printed(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert sb3_per.__version__ in capsys.readouterr().out


def test_a_missing_zoo_names_the_command_that_installs_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "rl_zoo3", None)
    task = ["--algo", "per_sac", "--env", "Pendulum-v1"]
    for program, words in ((cli.main, ["train", *task]), (sb3_per.zoo.main, ["enjoy", *task]), (summary.main, task)):
        with pytest.raises(SystemExit) as stopped:
            program(words)
        assert stopped.value.code == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert 'pip install ".[zoo]"' in line


def test_a_package_that_an_environment_lacks_is_one_line(monkeypatch, capsys):
    """Gymnasium's error is no ImportError."""

    def render(*_):
        raise DependencyNotInstalled('pygame is not installed, run `pip install "gymnasium[classic-control]"`')

    monkeypatch.setattr(cli, "run", render)
    with pytest.raises(SystemExit) as ended:
        cli.main(["record-video", "--algo", "per_dqn", "--env", "CartPole-v1"])
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith("sb3-per record-video: pygame is not installed, run `pip install")


def test_other_missing_modules_raise(monkeypatch):
    monkeypatch.setitem(sys.modules, "sb3_per.cli.doctor", None)
    with pytest.raises(ModuleNotFoundError):
        cli.main(["doctor"])


def test_doctor_on_a_healthy_installation(capsys):
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "All checks passed" in out
    for word in (
        "sb3_per",
        "Python",
        "PyTorch",
        "numba",
        "cache",
        "threads",
        "GPU Enabled",
        *(f"check {name}" for name in checks.CHECKS),
    ):
        assert re.search(rf"^{word} ", out, re.MULTILINE), word


def test_doctor_finds_a_tree_that_draws_wrongly(monkeypatch, capsys):
    draw = sb3_per.SumTree.draw

    def draw_the_slot_before(self, *arguments):
        slots, masses = draw(self, *arguments)
        return np.maximum(slots - 1, 0), masses

    monkeypatch.setattr(sb3_per.SumTree, "draw", draw_the_slot_before)
    monkeypatch.setattr(checks, "CHECKS", {"buffer": checks.check_buffer})
    assert doctor.main([]) == 1
    assert "check buffer       FAILED" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:10 batches were drawn")
def test_doctor_finds_a_buffer_that_ignores_priorities(monkeypatch):
    monkeypatch.setattr(sb3_per.PrioritizedReplayBuffer, "update_priorities", lambda self, ids, errors: 0)
    with pytest.raises(AssertionError, match="was drawn"):
        checks.check_buffer()
    with pytest.raises(AssertionError, match="TD errors"):
        checks.check_learning("PERDQN", "CartPole-v1", 200)


def test_doctor_names_the_extra_of_what_is_missing(monkeypatch, capsys):
    monkeypatch.setitem(checks.EXTRAS, "zoo", ("no_such_module",))
    assert doctor.main(["--no-test"]) == 0
    expected = 'extra zoo          optional, not installed: pip install "no_such_module", or pip install ".[zoo]"'
    assert expected in capsys.readouterr().out
    names = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert set(checks.EXTRAS) <= set(names)


def test_doctor_names_every_package_once(monkeypatch, capsys):
    monkeypatch.setattr(checks, "packages_distributions", dict)
    assert doctor.main(["--no-test"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("extra ")]
    assert len(lines) == len(checks.EXTRAS) and not any("lacks" in line for line in lines)
    for line in lines:
        packages = re.findall(r'"([^"]+)"', line.partition(", or pip")[0])
        assert packages and len(packages) == len(set(packages)), line


def test_a_folder_of_the_user_is_no_installed_package(monkeypatch, tmp_path, capsys):
    (tmp_path / "no_such_ray").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(checks.EXTRAS, "distributed", ("no_such_ray",))
    assert doctor.main(["--no-test"]) == 0
    assert "extra distributed  optional, not installed" in capsys.readouterr().out
    with pytest.raises(ImportError, match='engine needs no_such_ray: pip install "no_such_ray"'):
        extras.require("no_such_ray", "distributed", "engine")


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
        ("rl_zoo3", lambda: compare.main(["--algo", "dqn", "--env", "CartPole-v1"]), 'or pip install ".[compare]"'),
        ("rl_zoo3", lambda: sb3_per.zoo.register(), 'pip install "rl_zoo3[plots]" "requests", or pip install ".[zoo]"'),
    ):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            with pytest.raises(ImportError, match=re.escape(command)):
                use()
