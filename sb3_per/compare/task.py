"""The task of a comparison, its arms and its runs."""

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from rl_zoo3 import ALGOS

import sb3_per
from sb3_per.buffers import PrioritizedReplayBuffer
from sb3_per.buffers.conversion import stock_choice
from sb3_per.buffers.settings import NEW_ARGUMENTS, SCHEME_SETTINGS, SETTING_NAMES
from sb3_per.compare.campaign import Job
from sb3_per.compare.controls import control_of
from sb3_per.compare.literals import setting_of
from sb3_per.sampling.schemes import make_scheme
from sb3_per.zoo.names import nearest, uses_sbx
from sb3_per.zoo.registry import PRIORITIZED, config_path

#: Number of evaluations of a run, in equal distances.
N_EVALUATIONS = 10

#: Names of arms that every comparison has.
RANDOM, TWIN = "random policy", "uniform twin"

# Settings of the buffer that do not prioritize: every prioritized arm takes them from the hyperparameter file.
_NEUTRAL = ("n_steps", "gamma", "frames", "storage_folder")


@dataclasses.dataclass(frozen=True)
class Task:
    """
    A task and its training, as on the command line of ``sb3-per train``.

    :param algo: name of an algorithm in RL Zoo, e.g. ``"dqn"`` or ``"per_dqn"``, which has a hyperparameter file
    :param env: id of the environment
    :param n_timesteps: environment steps of a run; -1: as in the file
    :param conf_file: hyperparameter file; ``None``: that of RL Zoo for ``"dqn"``, that of this package for ``"per_dqn"``
    :param hyperparams: entries that replace those of the file
    :param env_kwargs: arguments of the environment
    :param gym_packages: modules that register environments
    :param vec_env: ``"dummy"`` or ``"subproc"``
    :param device: device of PyTorch
    :param n_episodes: number of episodes of an evaluation
    """

    algo: str
    env: str
    n_timesteps: int = -1
    conf_file: str | None = None
    hyperparams: dict[str, Any] = dataclasses.field(default_factory=dict)
    env_kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    gym_packages: Sequence[str] = ()
    vec_env: str = "dummy"
    device: str = "cpu"
    n_episodes: int = 10

    @property
    def stock_algo(self) -> str:
        """Name of the stock algorithm; it need not exist."""
        return self.algo.replace("per_", "", 1)

    def require_our_algo(self) -> str:
        """
        Find the prioritized algorithm.

        :return: its name
        :raises ValueError: if there is none, or if the algorithm has no hyperparameters; the message names the nearest
        """
        prioritized = {name.replace("per_", "", 1): name for name in PRIORITIZED}
        known = [algo for algo in (*prioritized, *PRIORITIZED) if config_path(algo).exists()]
        if self.algo not in known:
            raise ValueError(f"--algo {self.algo} cannot be compared: {nearest(self.algo, known)}")
        return prioritized[self.stock_algo]

    @property
    def config(self) -> str:
        """Path of the hyperparameter file, or name of a module."""
        return self.conf_file or str(config_path(self.algo))

    @property
    def versions(self) -> str:
        """Versions of the packages that make a run what it is. Results of others do not count."""
        packages = ["stable-baselines3", "sb3-contrib", "rl_zoo3", "gymnasium", "torch"]
        if uses_sbx(self.algo):
            packages += ["sbx-rl", "jax"]
        return " ".join([f"sb3_per {sb3_per.__version__}", *(f"{name} {version(name)}" for name in packages)])

    def fingerprint(self, entry: dict[str, Any]) -> str:
        """
        Hash a task.

        :param entry: hyperparameters of the file, before they are processed
        :return: hash of the settings of all runs
        """
        made_of = {name: value for name, value in vars(self).items() if name != "conf_file"}
        text = json.dumps([made_of, entry], sort_keys=True, default=repr)
        return hashlib.sha256(text.encode()).hexdigest()[:10]


@dataclasses.dataclass(frozen=True)
class Arm:
    """
    An arm of a comparison. Arms differ only in the class and in ``replay_buffer_kwargs``.

    :param name: name in files and in the legend of the picture
    :param label: short name in tables
    :param algo: name of the algorithm in RL Zoo
    :param kind: ``"stock"``, ``"uniform"``, ``"more"``, ``"setting"``, ``"shuffled"`` or ``"random"``
    :param setting: keyword arguments of the buffer; ``None``: those of the file
    :param more_updates: how many times the gradient steps of the other arms
    :param control_for: name of the setting whose control it is; ``None``: it is no control
    """

    name: str
    label: str
    algo: str
    kind: str
    setting: dict[str, Any] | None = None
    more_updates: int = 1
    control_for: str | None = None

    @property
    def is_reference(self) -> bool:
        """Whether it draws uniformly and makes as many updates as a setting, so that all settings are compared with it."""
        return self.kind in ("stock", "uniform")

    @property
    def is_judged(self) -> bool:
        """Whether it is one of the settings that the user asks about."""
        return self.kind == "setting"

    @property
    def has_more_updates(self) -> bool:
        """Whether it makes more gradient steps than the other arms, and is compared at the same time, too."""
        return self.more_updates > 1

    def apply(self, hyperparams: dict[str, Any]) -> dict[str, Any]:
        """
        Apply an arm to hyperparameters.

        :param hyperparams: arguments of the algorithm, from the hyperparameter file
        :return: those of this arm
        """
        hyperparams = dict(hyperparams)
        kwargs = dict(hyperparams.pop("replay_buffer_kwargs", None) or {})
        for name in ("n_steps", "gamma"):  # arguments of every algorithm, also of a stock one
            if name in kwargs and name not in hyperparams:
                hyperparams[name] = kwargs.pop(name)
        file_settings = {name: kwargs.pop(name) for name in SETTING_NAMES if name in kwargs}
        if self.kind == "stock":
            hyperparams.pop("double_q", None)  # an argument of PERDQN
            kwargs = {name: value for name, value in kwargs.items() if name not in NEW_ARGUMENTS}
            buffer_class = hyperparams.get("replay_buffer_class")
            if isinstance(buffer_class, type) and issubclass(buffer_class, PrioritizedReplayBuffer):
                hyperparams["replay_buffer_class"] = stock_choice(buffer_class)
        else:
            kwargs.update({name: file_settings.pop(name) for name in _NEUTRAL if name in file_settings})
            setting = file_settings if self.setting is None else self.setting
            kwargs.update(control_of(setting) if self.kind == "shuffled" else setting)
        return {**hyperparams, "replay_buffer_kwargs": kwargs} if kwargs else hyperparams


def arms_of(task: Task, settings: Sequence[str], more_updates: int | None = None) -> list[Arm]:
    """
    List the arms of a comparison.

    :param task: task
    :param settings: settings to judge, as text; empty: that of the hyperparameter file, or the defaults of this package
    :param more_updates: how many times the gradient steps one more arm with uniform draws has; ``None``: no such arm
    :return: stock class, uniform twin, its copy with more updates, and each setting with its shuffled control
    :raises ValueError: for an algorithm that has no prioritized class, and a setting that is no prioritization
    """
    ours, stock = task.require_our_algo(), task.stock_algo
    arms = []
    if stock in ALGOS:
        arms.append(Arm(f"stock {ALGOS[stock].__name__}", "stock", stock, "stock"))
    arms.append(Arm(TWIN, "twin", ours, "uniform", dict(scheme="uniform")))
    if more_updates is not None:
        name, label = f"{TWIN}, {more_updates} times the updates", f"twin x{more_updates}"
        arms.append(Arm(name, label, ours, "more", dict(scheme="uniform"), more_updates))
    judged: dict[str, dict[str, Any] | None] = {text: setting_of(text) for text in settings}
    if not settings:
        judged = {"setting of the file": None} if task.algo == ours else {"defaults": {}}
    for i, (name, setting) in enumerate(judged.items()):
        given = setting or {}
        for neutral in _NEUTRAL:
            if neutral in given:
                raise ValueError(f"--setting {name}: {neutral} is no prioritization: give it to all arms, with -params")
        scheme_settings = {key: value for key, value in given.items() if key in SCHEME_SETTINGS}
        scheme = make_scheme(**scheme_settings)
        is_uniform = scheme.draws_uniformly or scheme.alpha == 0.0
        if is_uniform and not scheme.replaces_loss and given == scheme_settings:
            raise ValueError(f"--setting {name} draws uniformly, as the uniform twin does: name one that prioritizes")
        label = chr(ord("A") + i)
        arms.append(Arm(name, label, ours, "setting", setting))
        if not is_uniform:  # otherwise shuffled priorities are the same
            arms.append(Arm(f"{name}, shuffled", f"{label} shuffled", ours, "shuffled", setting, control_for=name))
    return arms


def first_reference(arms: list[Arm]) -> Arm:
    """
    Find the arm that the answer is about.

    :param arms: arms of a comparison
    :return: the stock class, or the uniform twin of an algorithm without one
    """
    return next(arm for arm in arms if arm.is_reference)


def pairs_of(arms: list[Arm]) -> list[tuple[Arm, Arm]]:
    """
    List the arms that are compared.

    :param arms: arms of a comparison
    :return: each setting with stock, the twin, the twin with more updates and its control, and the twins with stock
    """
    references = [arm for arm in arms if arm.is_reference]
    more = [arm for arm in arms if arm.has_more_updates]
    pairs = []
    for arm in arms:
        if arm.is_judged:
            controls = [other for other in arms if other.control_for == arm.name]
            pairs += [(arm, other) for other in (*references, *more, *controls)]
    return pairs + [(arm, references[0]) for arm in (*references[1:], *more)]


def timed_pairs_of(arms: list[Arm]) -> list[tuple[Arm, Arm]]:
    """
    List the arms that are compared at the same time, which need an arm with more updates.

    :param arms: arms of a comparison
    :return: each setting with the first reference and with the twin with more updates, and the latter with the former
    """
    first = first_reference(arms)
    more = [arm for arm in arms if arm.has_more_updates]
    settings = [arm for arm in arms if arm.is_judged]
    return [(arm, other) for arm in settings for other in (first, *more) if more] + [(arm, first) for arm in more]


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
    random = Arm(RANDOM, RANDOM, task.require_our_algo(), "random", dict(scheme="uniform"))
    runs = [(random, 1.0, 0), *((arm, rate, seed) for seed, rate, arm in itertools.product(range(seeds), rates, arms))]
    made_with = dict(task=task.fingerprint(entry), packages=task.versions)
    return [
        (dict(arm=arm.name, rate=f"{rate:.4g}", seed=seed, **made_with), (task, arm, rate, seed)) for arm, rate, seed in runs
    ]
