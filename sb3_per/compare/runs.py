"""Train the runs of a comparison. RL Zoo's manager builds each, so policies, wrappers, VecNormalize and HER are the Zoo's."""

import argparse
import contextlib
import functools
import inspect
import io
import os
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch as th
from rl_zoo3 import utils
from rl_zoo3.exp_manager import ExperimentManager
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.callbacks import ConvertCallback, EveryNTimesteps
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.utils import set_random_seed

from sb3_per.buffers import PrioritizedReplayBuffer
from sb3_per.buffers.settings import SCHEME_SETTINGS, IgnoredSettingWarning
from sb3_per.compare.task import Arm, Task
from sb3_per.monitoring.monitor import PriorityMonitor, statistics
from sb3_per.zoo.environments import register_environment
from sb3_per.zoo.hyperparameters import check_schedules, with_numbers
from sb3_per.zoo.names import uses_sbx
from sb3_per.zoo.registry import register
from sb3_per.zoo.summary import evaluate_random

# Least time of training that is measured, in seconds.
TIMED_SECONDS = 2.0


class ArmManager(ExperimentManager):
    """
    The Zoo's manager for a run of one arm.

    :param task: task
    :param arm: arm
    :param folder: folder of the run's files
    :param rate: factor of the learning rate
    :param seed: seed of the run
    """

    def __init__(self, task: Task, arm: Arm, folder: str, rate: float, seed: int):
        super().__init__(
            argparse.Namespace(),
            arm.algo,
            task.env,
            folder,
            n_timesteps=task.n_timesteps,
            n_eval_episodes=task.n_episodes,
            hyperparams=_evaluated("-params", task.hyperparams),
            env_kwargs=_evaluated("--env-kwargs", task.env_kwargs),
            seed=seed,
            log_interval=-2,
            verbose=0,
            vec_env_type=task.vec_env,
            device=task.device,
            config=task.config,
        )
        self.task, self.arm, self.rate = task, arm, rate

    def read_hyperparameters(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """
        Read the hyperparameters of the file and of the command line.

        :return: hyperparameters for the run, and those to save
        """
        hyperparams, saved = super().read_hyperparameters()
        return with_numbers(hyperparams), with_numbers(saved)

    def _preprocess_hyperparams(self, hyperparams: dict[str, Any]) -> Any:
        processed, env_wrapper, callbacks, vec_env_wrapper = super()._preprocess_hyperparams(hyperparams)
        processed = self.arm.apply(processed)
        self.eval_freq = max(self.n_timesteps // self.task.n_evaluations, 1)
        if self.rate != 1.0:
            default = inspect.signature(utils.ALGOS[self.algo]).parameters["learning_rate"].default
            processed["learning_rate"] = functools.partial(_scaled, processed.get("learning_rate", default), self.rate)
        # Stock has no priorities to monitor.
        callbacks = [callback for callback in callbacks if not isinstance(callback, PriorityMonitor)]
        return processed, env_wrapper, callbacks, vec_env_wrapper


def _evaluated(option: str, words: Sequence[str]) -> dict[str, Any] | None:
    """
    Evaluate words such as ``"name:value"`` as the Zoo's command line does.

    :param option: option that has the words
    :param words: words
    :return: values by name; ``None`` without words
    :raises ValueError: for a word without a colon, or whose value is no Python expression
    """
    found = {}
    for word in words:
        name, colon, value = word.partition(":")
        if not colon:
            raise ValueError(f"{option}: {word!r} has no colon: write NAME:VALUE, e.g. {name.replace('=', ':', 1)}")
        try:
            found[name] = eval(value, vars(utils))
        except Exception as error:  # the value may be any expression
            raise ValueError(f"{option}: the value of {word!r} is no Python expression: {_line_of(error)}") from error
    return found or None


def _line_of(error: Exception) -> str:
    """Write an error in one line. SB3 asserts that a space is supported, and names classes as ``repr`` does."""
    kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
    return kind + re.sub(r"<class '[\w.]*?(\w+)'>", r"\1", " ".join(str(error).split())).replace(",)", ")")


def _scaled(schedule: float | Callable[[float], float], factor: float, progress_remaining: float) -> float:
    return factor * (schedule(progress_remaining) if callable(schedule) else schedule)


@contextlib.contextmanager
def _manager_of(task: Task, arm: Arm, rate: float = 1.0, seed: int = 0) -> Iterator[ArmManager]:
    """Make a manager, hide what the Zoo prints about the run, and remove the files of the run at the end."""
    with contextlib.redirect_stdout(io.StringIO()), tempfile.TemporaryDirectory() as folder:
        yield ArmManager(task, arm, folder, rate, seed)


def prepare(task: Task) -> None:
    """
    Register algorithms and environments in this process, and take one core.

    :param task: task
    :raises ValueError: if a module of environments does not exist, or if the environment is not registered
    """
    th.set_num_threads(1)
    register(uses_sbx(task.algo))
    register_environment(task.env, task.gym_packages)


def entry_of(task: Task) -> dict[str, Any]:
    """
    Check the names of a task, and read its hyperparameters, after :func:`prepare`.

    :param task: task
    :return: hyperparameters of the file, with those of the command line, before they are processed
    :raises ValueError: for an unknown algorithm, with the nearest name; if the file has no hyperparameters for the
        environment, or a learning rate that cannot be read; and for words of the command line that cannot be read
    """
    with _manager_of(task, Arm("", task.our_algo, "uniform")) as manager:
        try:
            entry = dict(manager.read_hyperparameters()[1])
        except (ValueError, KeyError) as error:
            raise ValueError(
                f"{task.config} has no hyperparameters for --env {task.env}: try another --algo, or name a file with -conf"
            ) from error
    check_schedules(entry)
    return entry


class Facts(NamedTuple):
    """
    Facts of an arm that are known before it trains.

    :param n_timesteps: environment steps of a run
    :param algorithm: name of the class
    :param identity: the class and all settings of the buffer: arms with equal identities make the same runs
    :param warnings: warnings when it was built
    """

    n_timesteps: int
    algorithm: str
    identity: Any
    warnings: list[str]


def inspect_arm(task: Task, arm: Arm) -> Facts:
    """
    Build an arm, and do not train it.

    :param task: task
    :param arm: arm
    :return: its facts
    :raises ValueError: if it cannot be built, if its setting has no effect, and for too few steps
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if arm.setting:
            warnings.simplefilter("error", IgnoredSettingWarning)
        try:
            with _manager_of(task, arm) as manager:
                model: Any = manager.setup_experiment()[0]  # type: ignore[index]
                model.env.close()
        except Exception as error:  # hyperparameters and settings are expressions, and may raise anything
            what = f"--setting {arm.setting}" if arm.setting else f"--algo {task.algo} on --env {task.env}"
            raise ValueError(f"{what}: {_line_of(error)}") from error
    _require_training(task, manager, model.learning_starts)
    algorithm = f"{'sbx.' * uses_sbx(arm.algo)}{type(model).__name__}"
    return Facts(manager.n_timesteps, algorithm, _identity(model), [str(warning.message) for warning in caught])


def _require_training(task: Task, manager: ArmManager, learning_starts: int) -> None:
    """
    Refuse runs that cannot be evaluated, or that make no gradient step.

    :param task: task
    :param manager: manager that has built a run
    :param learning_starts: number of steps before the first update
    :raises ValueError: for too few steps
    """
    n, least = manager.n_timesteps, task.n_evaluations * manager.n_envs
    if n < least:
        evaluations = f"{task.n_evaluations} evaluations with {manager.n_envs} environments"
        raise ValueError(f"-n {n} is too short: {evaluations} need {least} steps or more")
    if n <= learning_starts:
        raise ValueError(
            f"no run reaches learning_starts={learning_starts} in {n} steps, so nothing would be trained: give a larger -n, "
            f"or -params learning_starts:{max(n // 10, 1)}"
        )


def _identity(model: Any) -> Any:
    buffer = model.replay_buffer
    if not isinstance(buffer, PrioritizedReplayBuffer):
        return type(model)
    scheme = buffer.scheme
    settings = {name: value for name, value in vars(buffer.settings).items() if name not in SCHEME_SETTINGS}
    others = {name: value for name, value in model.replay_buffer_kwargs.items() if name not in vars(buffer.settings)}
    # Without an exponent, all priorities are equal, and all weights are 1.
    if not scheme.replaces_loss and (scheme.draws_uniformly or scheme.alpha == 0):
        return type(model), {name: value for name, value in settings.items() if not name.startswith("beta")}, others
    return type(model), type(scheme), {**settings, **scheme.settings}, others


def run(task: Task, arm: Arm, rate: float, seed: int | None) -> dict[str, Any]:
    """
    Train and evaluate once.

    :param task: task
    :param arm: arm
    :param rate: factor of the learning rate
    :param seed: seed of the run; ``None``: evaluate a random policy, without training
    :return: ``"returns"``: mean return of each evaluation, as text; ``"spread"``: share of the buffer that draws were spread
        over, the median of ten looks; 1: they were uniform
    """
    prepare(task)
    set_random_seed(seed or 0)
    with _manager_of(task, arm, rate, seed or 0) as manager:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # `inspect_arm` has shown them
            model: Any = manager.setup_experiment()[0]  # type: ignore[index]
        spreads: list[float] = []

        def look(*_: Any) -> bool:
            if model.num_timesteps > model.learning_starts and isinstance(model.replay_buffer, PrioritizedReplayBuffer):
                spreads.append(statistics(model.replay_buffer)[1].get("buffer_effective_sample_size", 1.0))
            return True

        if seed is None:
            means = evaluate_random(manager.create_envs(1, eval_env=True), task.n_episodes, task.n_evaluations)
        else:
            manager.callbacks.append(EveryNTimesteps(manager.n_timesteps // task.n_evaluations, ConvertCallback(look)))
            manager.learn(model)
            with np.load(os.path.join(manager.save_path, "evaluations.npz")) as evaluations:
                means = evaluations["results"].mean(axis=1)[: task.n_evaluations]
            if len(means) < task.n_evaluations:
                raise KeyboardInterrupt  # the manager ends a run without a word
    return {"returns": " ".join(f"{mean:.6g}" for mean in means), "spread": f"{np.median(spreads or [1.0]):.6g}"}


class Seconds(NamedTuple):
    """
    Estimated time of a run.

    :param training: seconds of all environment steps and updates
    :param evaluation: seconds of all evaluations
    """

    training: float
    evaluation: float


def seconds_of(task: Task, arm: Arm) -> Seconds:
    """
    Estimate how long a run takes, from a short one.

    :param task: task
    :param arm: arm
    :return: seconds
    """
    with _manager_of(task, arm) as manager:
        model: Any = manager.setup_experiment()[0]  # type: ignore[index]
        if not isinstance(model.replay_buffer, HerReplayBuffer):  # which needs whole episodes before it can draw
            model.learning_starts = min(model.learning_starts, 100)
        model.learn(model.learning_starts + 1)  # with the first update, which may compile
        first, start, seconds, n_steps = model.num_timesteps, time.perf_counter(), 0.0, 1
        while seconds < TIMED_SECONDS:
            model.learn(n_steps, reset_num_timesteps=False)
            seconds, n_steps = time.perf_counter() - start, model.num_timesteps - first
        env = manager.create_envs(1, eval_env=True)
        start = time.perf_counter()
        evaluate_policy(model, env, 1)
        evaluation = (time.perf_counter() - start) * task.n_episodes
        env.close()
        model.env.close()
    return Seconds(manager.n_timesteps * seconds / n_steps, task.n_evaluations * evaluation)
