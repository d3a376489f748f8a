"""Register the prioritized algorithms with RL Zoo: names, classes, hyperparameter files and search spaces."""

import contextlib
import functools
import importlib
from pathlib import Path
from typing import Any

import sb3_per
from sb3_per.utils.extras import require

#: Class of each algorithm, by its name in RL Zoo.
ALGORITHMS: dict[str, str] = {
    "per_sac": "PERSAC",
    "per_td3": "PERTD3",
    "per_ddpg": "PERDDPG",
    "per_dqn": "PERDQN",
    "per_qrdqn": "PERQRDQN",
    "per_tqc": "PERTQC",
    "per_crossq": "PERCrossQ",
    "per_dqn_lstm": "PERRecurrentDQN",
    "per_sac_lstm": "PERRecurrentSAC",
}

#: Compiled algorithms by the name that RL Zoo has for them, as they are called in :mod:`sb3_per.sbx`, which loads JAX.
COMPILED: dict[str, str] = {
    f"sbx_{algo}": ALGORITHMS[algo] for algo in ("per_sac", "per_td3", "per_ddpg", "per_dqn", "per_tqc", "per_crossq")
}

#: All algorithms of this package, by name.
OURS = {**ALGORITHMS, **COMPILED}


def class_of(algo: str) -> Any:
    """
    Find the class of an algorithm.

    :param algo: name of an algorithm, e.g. ``"per_sac"``
    :return: its class
    """
    return getattr(importlib.import_module("sb3_per.sbx") if algo in COMPILED else sb3_per, OURS[algo])


def config_path(algo: str) -> Path:
    """
    Find the hyperparameter file of an algorithm: that of this package or, for a stock algorithm, the Zoo's. A compiled
    algorithm has the file of the one in PyTorch.

    :param algo: name of an algorithm, e.g. ``"per_sac"`` or ``"sac"``
    :return: path of the file; that of a stock algorithm need not exist
    :raises ImportError: for a stock algorithm, without RL Zoo
    """
    if algo in OURS:
        folder = Path(__file__).parent / "configs"
    else:
        zoo: Any = require("rl_zoo3", "zoo", "RL Zoo's command line")
        folder = Path(zoo.__file__).parent / "hyperparams"
    return folder / f"{algo.removeprefix('sbx_')}.yml"


def register(sbx: bool = False) -> None:
    """
    Register the algorithms and their search spaces with the Zoo, and our classes for its YAML files, e.g.
    ``replay_buffer_class: PrioritizedHerReplayBuffer``.

    :param sbx: whether to register the algorithms of SBX too, ours and the stock ones, e.g. ``sbx_sac``. They load JAX
    :raises ImportError: without RL Zoo, or without SBX
    """
    require("rl_zoo3", "zoo", "RL Zoo's command line")
    import gymnasium as gym
    from rl_zoo3 import exp_manager, hyperparams_opt, utils

    from sb3_per.zoo import tuning

    names = OURS if sbx else ALGORITHMS
    utils.ALGOS.update({algo: class_of(algo) for algo in names})
    if sbx:
        stock = require("sbx", "sbx", "an algorithm of SBX")
        utils.ALGOS.update({algo.replace("per_", "", 1): getattr(stock, name[3:]) for algo, name in COMPILED.items()})
    hyperparams_opt.HYPERPARAMS_SAMPLER.update({algo: functools.partial(tuning.sample, algo) for algo in names})
    hyperparams_opt.HYPERPARAMS_CONVERTER.update({algo: functools.partial(tuning.convert, algo) for algo in names})
    # The Zoo evaluates the strings of its YAML files with the names of this module.
    vars(exp_manager).update({name: getattr(sb3_per, name) for name in sb3_per.__all__})
    # Importing MinAtar, as the Zoo's --gym-packages does, registers none of its environments.
    with contextlib.suppress(ImportError):
        from minatar.gym import register_envs

        if "MinAtar/Breakout-v1" not in gym.registry:
            register_envs()
