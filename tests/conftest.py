"""Settings and fixtures of all tests."""

import gc
import os
from pathlib import Path
from typing import Any

import pytest
import torch as th
import yaml
from hypothesis import HealthCheck, settings

# Assertions in helpers show their values, too.
pytest.register_assert_rewrite("tests.helpers")

# JAX: compiling takes nearly all of the time of its tests, and unoptimized code takes half of that. Flags of the user win.
QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
os.environ["XLA_FLAGS"] = f"{QUICK} {os.environ.get('XLA_FLAGS', '')}".strip()

# No deadline: kernels are compiled at their first call, and machines are shared, so times show nothing.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")


@pytest.fixture
def zoo(tmp_path, monkeypatch):
    """Run a command of RL Zoo in an empty folder, with `logs` and, for training, a small hyperparameter file."""
    pytest.importorskip("rl_zoo3", reason="needs the extra zoo")
    from sb3_per.zoo import main
    from tests.helpers.zoo import env_of, settings_of

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")

    def run(command: str, algo: str, *options: str, entry: dict[str, Any] | None = None, env: str | None = None) -> Path:
        env = env or env_of(algo)
        arguments = [command, "--algo", algo, "--env", env, "-f", "logs", *options]
        if command == "train":
            name = env.rpartition(":")[2]
            Path("hyperparams.yml").write_text(yaml.safe_dump({name: entry or settings_of(algo)}))
            arguments += [] if "-conf" in options else ["-conf", "hyperparams.yml"]
            arguments += ["--seed", "3"]
            arguments += [] if "--eval-freq" in options else ["--eval-freq", "-1"]
        main(arguments)
        runs = sorted(Path("logs", algo).glob(f"{env}_*"))
        return runs[-1] if runs else Path("logs")

    return run


@pytest.fixture(scope="module")
def small_heap():
    """
    Hide the objects that are there already, e.g. of PyTorch, from the garbage collector.

    Tests that collect garbage again and again, or fork, then take a fraction of the time.
    """
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def one_thread():
    """Let learners compute with one thread, as actors do: rounding may depend on the number of threads."""
    n_threads = th.get_num_threads()
    th.set_num_threads(1)
    yield
    th.set_num_threads(n_threads)
