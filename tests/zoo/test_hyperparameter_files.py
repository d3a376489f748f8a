"""The hyperparameter files in zoo_configs have the numbers of RL Zoo and the settings that the pages recommend, and train."""

import argparse
import copy
import dataclasses
import inspect
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch as th
import yaml

pytest.importorskip("rl_zoo3", reason="needs the extra zoo")

from sb3_per import PrioritizedReplayBuffer
from sb3_per.zoo import ALGORITHMS as ALL
from sb3_per.zoo import class_of, config_path, register
from sb3_per.zoo.environments import register_environment
from tests.helpers.algorithms import optimizers_of
from tests.helpers.buffers import ACTION_SPACES, OBSERVATION_SPACES
from tests.helpers.models import STOCK

# The Zoo has a hyperparameter file of the stock algorithm; it has none of variants, and of recurrent agents.
ALGORITHMS = {algo: class_of(algo) for algo in ALL if config_path(algo.removeprefix("per_")).exists()}
RECURRENT = {algo: class_of(algo) for algo in ALL if algo.endswith("_lstm")}

CONFIGS: dict[str, dict[str, Any]] = {algo: yaml.safe_load(config_path(algo).read_text()) for algo in ALGORITHMS}

DISCRETE = [algo for algo, cls in ALGORITHMS.items() if not cls.has_actor]

# What our entries add to those of the Zoo.
ADDED = {"replay_buffer_kwargs", "double_q", "n_steps"}

ATARI = "PongNoFrameskip-v4"
# Environments of other packages, by the beginning of their names. Gymnasium knows them only if the package is installed.
PACKAGES = {"MinAtar/": "minatar", ATARI: "ale_py"}


@pytest.fixture(scope="module")
def zoo():
    """Import RL Zoo with the algorithms registered."""
    import rl_zoo3

    register()
    return rl_zoo3


def stock_config(zoo: Any, algo: str) -> dict[str, dict[str, Any]]:
    path = Path(zoo.__file__).parent / "hyperparams" / f"{algo.removeprefix('per_')}.yml"
    return yaml.safe_load(path.read_text())


def stock_name(name: str) -> str:
    return name.replace("-v5", "-v4")


def learning_rate(algo: str, entry: dict[str, Any]) -> tuple[float, str]:
    """Return the first learning rate and the name of its schedule. An entry without a rate has the stock class's."""
    default = inspect.signature(STOCK[ALGORITHMS[algo]].__init__).parameters["learning_rate"].default
    value = entry.get("learning_rate", default)
    if isinstance(value, str):
        schedule, rate = value.split("_")
        return float(rate), schedule
    return value, "constant"


def env_of(algo: str, name: str) -> str:
    """Choose an environment for which the Zoo has this entry."""
    if name == "atari":
        return ATARI
    if name == "default":  # registered by the Zoo, but without an entry of its own
        return "CartPoleNoVel-v1" if algo in DISCRETE else "PendulumNoVel-v1"
    return name


def require(env_id: str) -> None:
    """Skip the test if the package of an environment is missing."""
    for prefix, package in PACKAGES.items():
        if env_id.startswith(prefix) and find_spec(package) is None:
            pytest.skip(f"{env_id} needs {package}")
    register_environment(env_id, [])
    try:
        gym.make(env_id).close()
    except gym.error.DependencyNotInstalled as error:
        pytest.skip(f"{env_id}: {error}")


def test_entries_have_the_defaults_written_out():
    """Images store every frame once. DQN has the settings of the paper's agent where rewards are frequent."""
    rare = ("MountainCar-v0", "Acrobot-v1")  # each step costs until the goal is reached
    for algo in ALGORITHMS:
        for name, entry in CONFIGS[algo].items():
            settings = dict(entry["replay_buffer_kwargs"])
            assert settings.pop("frames", None) == ("auto" if "frame_stack" in entry else None), name
            assert settings == dict(scheme="proportional", alpha=0.6, beta_start=0.4), name
            if algo == "per_dqn":
                assert entry.get("double_q", False) == (name not in rare), name
                assert entry.get("n_steps", 1) == (1 if name in (*rare, "atari") else 3), name
    assert_defaults(buffer_of(dict(scheme="proportional", alpha=0.6, beta_start=0.4)), buffer_of({}))


def test_each_file_says_where_its_numbers_come_from():
    """Those of stock algorithms and of MinAtar are taken over, those of recurrent agents were searched here."""
    for algo in (*ALGORITHMS, *RECURRENT):
        comment = " ".join(re.findall(r"^#(.*)", config_path(algo).read_text(), re.MULTILINE)).lower()
        assert ("taken over from rl zoo" in comment) == (algo in ALGORITHMS), algo
        assert ("searched here" in comment) == (algo in RECURRENT), algo
        if "MinAtar/Breakout-v1" in CONFIGS.get(algo, ()):
            assert re.search(r"minatar\b[^.]*is taken over from", comment), algo


def buffer_of(settings: dict[str, Any], cls: Any = PrioritizedReplayBuffer) -> Any:
    """Make a buffer with the settings of an entry; ``frames="auto"`` needs the environment of a model."""
    settings = {key: value for key, value in settings.items() if key != "frames"}
    return cls(40, OBSERVATION_SPACES["box"], ACTION_SPACES["box"], device="cpu", **settings)


def assert_defaults(made: Any, default: Any) -> None:
    assert repr(made.scheme) == repr(default.scheme)
    alike = dataclasses.replace(made.settings, scheme=default.settings.scheme, alpha=default.settings.alpha)
    assert alike == default.settings
    assert getattr(made, "eta", None) == getattr(default, "eta", None)


def test_entries_differ_from_those_of_the_zoo_only_in_what_we_add(zoo):
    for algo in ALGORITHMS:
        for name, entry in CONFIGS[algo].items():
            if not name.startswith("MinAtar/"):
                stock = stock_config(zoo, algo)[stock_name(name)]
                assert ADDED.isdisjoint(stock), name  # else it would have to be part of ours
                assert {key: value for key, value in entry.items() if key not in ADDED} == stock, name


def test_all_games_of_minatar_have_the_same_numbers():
    """The Zoo has no entries for them. The two algorithms differ in what they add."""
    entries = [
        {key: value for key, value in entry.items() if key not in ADDED}
        for algo in DISCRETE
        for name, entry in CONFIGS[algo].items()
        if name.startswith("MinAtar/")
    ]
    assert len(entries) == 10 and all(entry == entries[0] for entry in entries)


def test_every_environment_of_gymnasium_has_an_entry(zoo):
    """One entry is left out, because its wrapper comes from another package."""
    for algo in ALGORITHMS:
        from_gymnasium = {
            stock_name(env_id) for env_id, spec in gym.registry.items() if str(spec.entry_point).startswith("gymnasium.envs.")
        }
        stock = {
            name
            for name, entry in stock_config(zoo, algo).items()
            if name in from_gymnasium | {"default", "atari"} and "ae.wrapper" not in str(entry.get("env_wrapper"))
        }
        ours = {stock_name(name) for name in CONFIGS[algo] if not name.startswith("MinAtar/")}
        assert ours >= stock
        games = {name for name in CONFIGS[algo] if name.startswith("MinAtar/")}
        assert len(games) == (5 if algo in DISCRETE else 0)


def build(zoo: Any, algo: str, name: str, folder: Path, **hyperparams: Any) -> tuple[Any, Any]:
    """
    Make the Zoo's manager and its model for an entry, with few steps. Networks and update frequency stay as in the entry. The
    model trains twice, so that a learning rate that falls to 0 is not 0 in the first training.
    """
    from rl_zoo3.exp_manager import ExperimentManager

    env_id = env_of(algo, name)
    require(env_id)
    learning_starts = 16
    train_freq = CONFIGS[algo][name].get("train_freq", 4)
    manager = ExperimentManager(
        argparse.Namespace(),
        algo,
        env_id,
        str(folder),
        n_timesteps=learning_starts + 2 * max(train_freq, 3),
        eval_freq=-1,
        hyperparams=dict(buffer_size=500, learning_starts=learning_starts, batch_size=4, **hyperparams),
        config=str(config_path(algo)),
        log_interval=-2,
        verbose=0,
        device="cpu",
    )
    model, _ = manager.setup_experiment()
    return manager, model


# One entry of each algorithm is enough: entries differ only in numbers, which the tests above compare.
TRAINED = [("per_sac", "Pendulum-v1"), ("per_dqn", "atari")]


@pytest.mark.parametrize(
    "algo, name",
    [
        *TRAINED,
        *(
            pytest.param(algo, name, marks=pytest.mark.slow)
            for algo in ALGORITHMS
            for name in CONFIGS[algo]
            if (algo, name) not in TRAINED
        ),
    ],
)
def test_an_entry_trains_in_the_zoo(algo, name, zoo, tmp_path):
    th.set_num_threads(1)
    manager, model = build(zoo, algo, name, tmp_path)
    assert type(model) is ALGORITHMS[algo]
    assert model.lr_schedule(1) == learning_rate(algo, CONFIGS[algo][name])[0]
    assert getattr(model, "double_q", False) == CONFIGS[algo][name].get("double_q", False)
    assert_learns(manager, model)
    assert repr(model.replay_buffer.scheme) == repr(buffer_of(CONFIGS[algo][name]["replay_buffer_kwargs"]).scheme)
    if name == "atari":
        assert model.replay_buffer.settings.frames == 4  # frame_stack in the same entry
        assert model.replay_buffer.frames_per_transition < 1.5


def assert_learns(manager: Any, model: Any) -> None:
    """Train, and check that every optimizer has changed all its tensors."""
    parameters = [p for optimizer in optimizers_of(model) for group in optimizer.param_groups for p in group["params"]]
    before = copy.deepcopy(parameters)
    manager.learn(model)
    assert model._n_updates > 0
    assert all((old != new).any() for old, new in zip(before, parameters, strict=True))


MEASURED = (("per_dqn_lstm", "CartPoleNoVel-v1"), ("per_sac_lstm", "PendulumNoVel-v1"))


def recurrent_entries() -> dict[tuple[str, str], dict[str, Any]]:
    files = {algo: yaml.safe_load(config_path(algo).read_text()) for algo in RECURRENT}
    return {(algo, name): entry for algo, file in files.items() for name, entry in file.items()}


@pytest.mark.slow
@pytest.mark.parametrize("algo, name", MEASURED)
def test_recurrent_entries_train_in_the_zoo(algo, name, zoo, tmp_path):
    from rl_zoo3.exp_manager import ExperimentManager

    assert {known for _, known in recurrent_entries()} == {"default", *(name for _, name in MEASURED)}
    th.set_num_threads(1)
    manager = ExperimentManager(
        argparse.Namespace(),
        algo,
        name,
        str(tmp_path),
        n_timesteps=160,
        eval_freq=-1,
        hyperparams=dict(buffer_size=500, learning_starts=120, batch_size=4, train_freq=8),
        config=str(config_path(algo)),
        log_interval=-2,
        verbose=0,
        device="cpu",
    )
    model, _ = manager.setup_experiment()
    assert type(model) is RECURRENT[algo]
    assert_learns(manager, model)
    assert model.replay_buffer.sequence_length == model.sequence_length
