"""Register the prioritized algorithms with RL Zoo: names, classes, hyperparameter files and search spaces."""

import functools
import importlib
from pathlib import Path
from typing import Any

import sb3_per

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

#: Stock algorithms whose search spaces are used, where the Zoo has none of that name. CrossQ is SAC without target networks.
SEARCH_SPACES: dict[str, str] = {"crossq": "sac", "dqn_lstm": "dqn", "sac_lstm": "sac"}

#: All algorithms of this package, by name.
PRIORITIZED = {**ALGORITHMS, **COMPILED}


def class_of(algo: str) -> Any:
    """
    Find the class of an algorithm.

    :param algo: name of an algorithm, e.g. ``"per_sac"``
    :return: its class
    """
    return getattr(importlib.import_module("sb3_per.sbx") if algo in COMPILED else sb3_per, PRIORITIZED[algo])


def config_path(algo: str) -> Path:
    """
    Find the hyperparameter file of an algorithm: that of this package or, for a stock algorithm, the Zoo's. A compiled
    algorithm has the file of the one in PyTorch.

    :param algo: name of an algorithm, e.g. ``"per_sac"`` or ``"sac"``
    :return: path of the file; that of a stock algorithm need not exist
    :raises ImportError: for a stock algorithm, without RL Zoo
    """
    if algo in PRIORITIZED:
        folder = Path(__file__).parent / "configs"
    else:
        folder = Path(import_zoo().__file__).parent / "hyperparams"
    return folder / f"{algo.removeprefix('sbx_')}.yml"


def import_zoo() -> Any:
    """
    Import RL Zoo.

    :return: the package
    :raises ImportError: if it is not installed; the message names the command that installs it
    """
    try:
        import rl_zoo3
    except ImportError as error:
        command = 'pip install "rl_zoo3[plots]" requests, or pip install ".[zoo]" in a clone of this package'
        raise ImportError(f"This needs RL Zoo: {command}") from error
    return rl_zoo3


def register(sbx: bool = False) -> None:
    """
    Register the algorithms and their search spaces with the Zoo.

    :param sbx: whether to register the algorithms of SBX too, ours and the stock ones, e.g. ``sbx_sac``. They load JAX
    :raises ImportError: without RL Zoo, or without SBX
    """
    algorithms = import_zoo().ALGOS
    from sb3_per.zoo import tuning, upstream

    names = PRIORITIZED if sbx else ALGORITHMS
    for algo in names:
        algorithms[algo] = class_of(algo)
        stock_name = algo.removeprefix("sbx_").removeprefix("per_")
        space = SEARCH_SPACES.get(stock_name, stock_name)
        sample = functools.partial(tuning.sample, algo, class_of(algo), space)
        upstream.add_search_space(algo, sample, functools.partial(tuning.convert, algo))
    if sbx:
        import sbx as stock

        for algo, name in COMPILED.items():
            stock_class = getattr(stock, name.removeprefix("PER"), None)
            if stock_class is not None:  # SBX has no class for a variant
                algorithms[algo.replace("per_", "", 1)] = stock_class
