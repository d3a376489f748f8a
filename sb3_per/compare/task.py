"""The task of a comparison, its arms and its runs. All of it is text and numbers, so that it names rows of a file."""

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from rl_zoo3.utils import ALGOS
from stable_baselines3 import HerReplayBuffer

import sb3_per
from sb3_per.buffers import PrioritizedReplayBuffer
from sb3_per.buffers.settings import PrioritySettings, ignored
from sb3_per.compare.campaign import Job
from sb3_per.compare.controls import control_of
from sb3_per.sampling.schemes import make_scheme
from sb3_per.zoo.names import nearest, uses_sbx
from sb3_per.zoo.registry import OURS, config_path

# Settings of the buffer that do not prioritize: every prioritized arm takes them from the hyperparameter file.
_NEUTRAL = ("n_steps", "gamma", "frames")

#: Name of the prioritized algorithm, by that of its stock class in RL Zoo. The stock class need not be there.
PRIORITIZED = {name.replace("per_", "", 1): name for name in OURS}

TWIN = "uniform twin"
RANDOM = "random policy"


@dataclasses.dataclass(frozen=True)
class Task:
    """
    A task and its training, as on the command line of ``sb3-per train``.

    :param algo: name of an algorithm in RL Zoo, e.g. ``"dqn"`` or ``"per_dqn"``, which has a hyperparameter file
    :param env: id of the environment
    :param n_timesteps: environment steps of a run; -1: as in the file
    :param conf_file: hyperparameter file; ``None``: that of RL Zoo for ``"dqn"``, that of this package for ``"per_dqn"``
    :param hyperparams: entries that replace those of the file, e.g. ``"learning_rate:0.001"``
    :param env_kwargs: arguments of the environment, e.g. ``"gravity:-5.0"``
    :param gym_packages: modules that register environments
    :param vec_env: ``"dummy"`` or ``"subproc"``
    :param device: device of PyTorch
    :param n_evaluations: number of evaluations of a run, in equal distances
    :param n_episodes: number of episodes of an evaluation
    """

    algo: str
    env: str
    n_timesteps: int = -1
    conf_file: str | None = None
    hyperparams: Sequence[str] = ()
    env_kwargs: Sequence[str] = ()
    gym_packages: Sequence[str] = ()
    vec_env: str = "dummy"
    device: str = "cpu"
    n_evaluations: int = 10
    n_episodes: int = 10

    @property
    def stock_algo(self) -> str:
        """Name of the stock algorithm; it need not exist."""
        return self.algo.replace("per_", "", 1)

    @property
    def our_algo(self) -> str:
        """
        Name of the prioritized algorithm.

        :raises ValueError: if there is none, or if the algorithm has no hyperparameters; the message names the nearest
        """
        known = [algo for algo in (*PRIORITIZED, *OURS) if config_path(algo).exists()]
        if self.algo not in known:
            raise ValueError(f"--algo {self.algo} cannot be compared: {nearest(self.algo, known)}")
        return PRIORITIZED[self.stock_algo]

    @property
    def config(self) -> str:
        """Path of the hyperparameter file, or name of a module."""
        return self.conf_file or str(config_path(self.algo))

    def fingerprint(self, entry: dict[str, Any]) -> str:
        """
        Hash a task.

        :param entry: hyperparameters of the file, before they are processed
        :return: hash of all that makes a run of the task what it is, versions of the packages included
        """
        made_of = {name: value for name, value in vars(self).items() if name != "conf_file"}
        packages = "stable-baselines3 sb3-contrib gymnasium torch" + " sbx-rl jax" * uses_sbx(self.algo)
        versions = [sb3_per.__version__, *map(version, packages.split())]
        text = json.dumps([made_of, entry, versions], sort_keys=True, default=repr)
        return hashlib.sha256(text.encode()).hexdigest()[:10]


@dataclasses.dataclass(frozen=True)
class Arm:
    """
    An arm of a comparison. Arms differ only in the class and in ``replay_buffer_kwargs``.

    :param name: name in tables and files
    :param algo: name of the algorithm in RL Zoo
    :param kind: ``"stock"``, ``"uniform"``, ``"setting"`` or ``"shuffled"``
    :param setting: keyword arguments of the buffer as text, e.g. ``"scheme='lap'"``; ``None``: those of the file
    """

    name: str
    algo: str
    kind: str
    setting: str | None = None

    def apply(self, hyperparams: dict[str, Any]) -> dict[str, Any]:
        """
        Apply an arm to hyperparameters.

        :param hyperparams: arguments of the algorithm, from the hyperparameter file
        :return: those of this arm
        :raises ValueError: for a setting that is not allowed
        """
        hyperparams = dict(hyperparams)
        kwargs = dict(hyperparams.pop("replay_buffer_kwargs", None) or {})
        settings = {name: kwargs.pop(name) for name in PrioritySettings.names() if name in kwargs}
        if self.kind == "stock":
            hyperparams.pop("double_q", None)  # an argument of PERDQN
            buffer_class = hyperparams.get("replay_buffer_class")
            if isinstance(buffer_class, type) and issubclass(buffer_class, PrioritizedReplayBuffer):
                hyperparams["replay_buffer_class"] = HerReplayBuffer if issubclass(buffer_class, HerReplayBuffer) else None
        else:
            kwargs.update({name: settings.pop(name) for name in _NEUTRAL if name in settings})
            if self.kind == "uniform":
                settings = dict(scheme="uniform")
            elif self.setting is not None:
                settings = evaluated(self.setting)
            kwargs.update(control_of(settings) if self.kind == "shuffled" else settings)
        return {**hyperparams, "replay_buffer_kwargs": kwargs} if kwargs else hyperparams

    def role(self) -> str:
        """Name the look of this arm in figures, a key of :data:`~sb3_per.compare.figures.LOOKS`."""
        if self.kind in ("stock", "uniform"):
            return self.kind
        scheme = make_scheme(evaluated(self.setting or "").get("scheme", "proportional"))
        return {"LAP": "LAP", "PAL": "PAL", "RankBased": "rank"}.get(type(scheme).__name__, "defaults")


def evaluated(setting: str) -> dict[str, Any]:
    """
    Read a setting from the command line.

    :param setting: keyword arguments as text, in which all public names of this package may occur
    :return: keyword arguments
    :raises ValueError: if it is no list of keyword arguments
    """
    try:
        return dict(eval(f"dict({setting})", vars(sb3_per)))
    except (SyntaxError, NameError, TypeError) as error:
        message = f"--setting takes keyword arguments such as \"scheme='lap', kappa=0.1\", not {setting!r}: {error}"
        raise ValueError(message) from error


def arms_of(task: Task, settings: Sequence[str]) -> list[Arm]:
    """
    List the arms of a comparison.

    :param task: task
    :param settings: settings to judge, as text; empty: that of the hyperparameter file, or the defaults of this package
    :return: stock class, uniform twin, and each setting with its shuffled control
    :raises ValueError: for an algorithm that has no prioritized class, and a setting that is no prioritization
    """
    ours, stock = task.our_algo, task.stock_algo
    arms = [Arm(f"stock {ALGOS[stock].__name__}", stock, "stock")] if stock in ALGOS else []
    arms.append(Arm(TWIN, ours, "uniform"))
    judged: list[str | None] = [None] if not settings and task.algo == ours else [*dict.fromkeys(settings or [""])]
    for setting in judged:
        given = evaluated(setting or "")
        _require_prioritization(given)
        name = "setting of the file" if setting is None else setting or "defaults"
        arms.append(Arm(name, ours, "setting", setting))
        # Shuffled priorities are the same priorities where all are equal.
        if not make_scheme(given.get("scheme", "proportional")).draws_uniformly and given.get("alpha") != 0:
            arms.append(Arm(f"{name}, shuffled", ours, "shuffled", setting))
    return arms


def _require_prioritization(setting: dict[str, Any]) -> None:
    """
    Refuse a setting that is the same for all arms, or that has no effect, whatever its value.

    :param setting: keyword arguments of a buffer
    :raises ValueError: with the name, the value, and what to do
    """
    scheme = setting.get("scheme", "proportional")
    for name, value in setting.items():
        if name in _NEUTRAL:
            where = f"{name}:{value!r}" if name != "frames" else f"replay_buffer_kwargs:'dict(frames={value!r})'"
            raise ValueError(f"--setting {name}={value!r} is no prioritization: give it to all arms, with -params {where}")
        if name == "storage_folder":
            raise ValueError(f"--setting {name}={value!r} is no prioritization, and runs cannot share a folder: leave it out")
        users = ignored(scheme, name)
        if users is not None:
            raise ValueError(f"--setting {name}={value!r} has no effect with scheme={scheme!r}: {users}")


def jobs_of(task: Task, entry: dict[str, Any], arms: list[Arm], rates: list[float], seeds: int) -> list[Job]:
    """
    List the runs of a comparison.

    :param task: task
    :param entry: hyperparameters of the file, before they are processed
    :param arms: arms to compare
    :param rates: factors of the learning rate
    :param seeds: number of runs of each arm at each learning rate
    :return: all runs, seed by seed, so that a stopped comparison has all arms on some seeds; first the random policy
    """
    fingerprint = task.fingerprint(entry)
    names = dict(arm=RANDOM, rate="1", seed=0, task=fingerprint)
    jobs: list[Job] = [(names, (task, next(arm for arm in arms if arm.name == TWIN), 1.0, None))]
    for seed, rate, arm in itertools.product(range(seeds), rates, arms):
        names = dict(arm=arm.name, rate=f"{rate:.4g}", seed=seed, task=fingerprint)
        jobs.append((names, (task, arm, rate, seed)))
    return jobs
