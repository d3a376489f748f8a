"""Train the runs of a comparison. RL Zoo's manager builds each, so policies, wrappers, VecNormalize and HER are the Zoo's."""

import argparse
import contextlib
import copy
import functools
import inspect
import io
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch as th
import yaml
from rl_zoo3 import ALGOS
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.utils import set_random_seed

from sb3_per.buffers import PrioritizedReplayBuffer
from sb3_per.buffers.settings import IgnoredSettingWarning
from sb3_per.compare.task import N_EVALUATIONS, Arm, Task
from sb3_per.monitoring.monitor import PriorityMonitor, statistics
from sb3_per.utils.parents import overrides
from sb3_per.zoo.environments import register_environment
from sb3_per.zoo.hyperparameters import check_schedules, with_numbers
from sb3_per.zoo.names import uses_sbx
from sb3_per.zoo.random_policy import evaluate_random
from sb3_per.zoo.registry import register
from sb3_per.zoo.upstream import Manager


@overrides("read_hyperparameters")
class ArmManager(Manager):
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
            hyperparams=copy.deepcopy(task.hyperparams),
            env_kwargs=copy.deepcopy(task.env_kwargs),
            seed=seed,
            verbose=0,
            vec_env_type=task.vec_env,
            device=task.device,
            config=task.config,
        )
        self.arm = arm
        self.rate = rate

    def read_hyperparameters(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """
        Read the hyperparameters of the file and of the command line.

        :return: hyperparameters for the run, and those to save
        """
        hyperparams, saved = super().read_hyperparameters()
        return with_numbers(hyperparams), with_numbers(saved)

    def process(self, hyperparams: dict[str, Any]) -> Any:
        """
        Turn the hyperparameters of the file into arguments of this arm.

        :param hyperparams: hyperparameters of the file
        :return: see :meth:`~sb3_per.zoo.upstream.Manager.process`
        """
        processed, env_wrapper, callbacks, vec_env_wrapper = super().process(hyperparams)
        processed = self.arm.apply(processed)
        self.eval_freq = max(self.n_timesteps // N_EVALUATIONS, 1)
        if self.rate != 1.0:
            learning_rate = processed.get("learning_rate", self._default_of("learning_rate"))
            processed["learning_rate"] = functools.partial(_scaled, learning_rate, self.rate)
        if self.arm.has_more_updates:
            gradient_steps = processed.get("gradient_steps", self._default_of("gradient_steps"))
            if gradient_steps >= 0:
                processed["gradient_steps"] = self.arm.more_updates * gradient_steps
            else:
                callbacks = [*callbacks, _MoreUpdates(self.arm.more_updates)]
        # Stock has no priorities to monitor.
        callbacks = [callback for callback in callbacks if not isinstance(callback, PriorityMonitor)]
        return processed, env_wrapper, callbacks, vec_env_wrapper

    def _default_of(self, argument: str) -> Any:
        return inspect.signature(ALGOS[self.algo]).parameters[argument].default


@overrides("_on_rollout_start", "_on_rollout_end", "_on_step")
class _MoreUpdates(BaseCallback):
    """
    Make more updates than the environment steps of a call, which ``gradient_steps=-1`` asks for. Their number may differ from
    call to call, as with ``train_freq=(1, "episode")``.

    :param factor: number of updates for each environment step
    """

    def __init__(self, factor: int):
        super().__init__()
        self.factor = factor
        self.first = 0

    def _on_rollout_start(self) -> None:
        self.first = self.num_timesteps

    def _on_rollout_end(self) -> None:
        # SB3 reads it next.
        self.model.gradient_steps = self.factor * (self.model.num_timesteps - self.first)  # type: ignore[attr-defined]

    def _on_step(self) -> bool:
        return True


@overrides("_on_step")
class _Timed(CallbackList):
    """Add up the seconds of callbacks."""

    seconds = 0.0

    def _on_step(self) -> bool:
        start = time.perf_counter()
        goes_on = super()._on_step()
        self.seconds += time.perf_counter() - start
        return goes_on


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


def entry_of(task: Task, arm: Arm) -> dict[str, Any]:
    """
    Read the hyperparameters of a task, after :func:`prepare`.

    :param task: task
    :param arm: any arm
    :return: hyperparameters of the file, with those of the command line, before they are processed
    :raises ValueError: if the file has none for the environment, or a learning rate that cannot be read
    """
    with _manager_of(task, arm) as manager:
        try:
            entry = dict(manager.read_hyperparameters()[1])
        except (ValueError, KeyError) as error:
            raise ValueError(
                f"{task.config} has no hyperparameters for --env {task.env}: try another --algo, or name a file with -conf"
            ) from error
    check_schedules(entry)
    return entry


def has_own_entry(task: Task) -> bool:
    """Tell whether the hyperparameter file has an entry for the environment itself, and not only one for all or for Atari."""
    path = Path(task.config)
    if path.suffix not in (".yml", ".yaml"):
        return True  # code, which RL Zoo runs
    return task.env in yaml.safe_load(path.read_text())


class Trial(NamedTuple):
    """
    Estimated seconds of a run.

    :param training: of all environment steps and updates
    :param evaluation: of all evaluations
    """

    training: float
    evaluation: float


def try_arm(task: Task, arm: Arm, least_seconds: float) -> Trial:
    """
    Build an arm, check it, and estimate the time of a run from a short one.

    :param task: task
    :param arm: arm
    :param least_seconds: least time of training that is measured
    :return: estimated time
    :raises ValueError: if the arm cannot be built, if its setting has no effect, and for too few steps
    """
    with _manager_of(task, arm) as manager:
        try:
            with warnings.catch_warnings():
                if arm.setting:
                    warnings.simplefilter("error", IgnoredSettingWarning)
                model: Any = manager.setup_experiment()[0]  # type: ignore[index]
        except Exception as error:  # the file has expressions, and may raise anything
            named = arm.setting and (arm.is_judged or arm.control_for is not None)
            what = f"--setting {arm.name}" if named else f"--algo {task.algo} on --env {task.env}"
            raise ValueError(f"{what}: {_line_of(error)}") from error
        n_steps = manager.n_timesteps
        if n_steps < N_EVALUATIONS * manager.n_envs:
            evaluations = f"{N_EVALUATIONS} evaluations with {manager.n_envs} environments"
            raise ValueError(f"-n {n_steps} is too short: {evaluations} need {N_EVALUATIONS * manager.n_envs} steps or more")
        if n_steps <= model.learning_starts:
            raise ValueError(
                f"no run reaches learning_starts={model.learning_starts} in {n_steps} steps, so nothing would be trained: "
                f"give a larger -n, or -params learning_starts:{max(n_steps // 10, 1)}"
            )

        if not isinstance(model.replay_buffer, HerReplayBuffer):  # which needs whole episodes before it can draw
            model.learning_starts = min(model.learning_starts, 100)
        more = [callback for callback in manager.callbacks if isinstance(callback, _MoreUpdates)]
        model.learn(model.learning_starts + 1, callback=more)  # with the first update, which may compile
        first = model.num_timesteps
        start = time.perf_counter()
        seconds = 0.0
        n_measured = 1
        while seconds < least_seconds:
            model.learn(n_measured, callback=more, reset_num_timesteps=False)
            seconds = time.perf_counter() - start
            n_measured = model.num_timesteps - first
        env = manager.create_envs(1, eval_env=True)
        start = time.perf_counter()
        evaluate_policy(model, env, 1)
        evaluation = time.perf_counter() - start
        env.close()
        model.env.close()
    return Trial(n_steps * seconds / n_measured, N_EVALUATIONS * task.n_episodes * evaluation)


def _line_of(error: Exception) -> str:
    """Write an error in one line. SB3 asserts that a space is supported, and names classes as ``repr`` does."""
    kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
    return kind + re.sub(r"<class '[\w.]*?(\w+)'>", r"\1", " ".join(str(error).split())).replace(",)", ")")


def run(task: Task, arm: Arm, rate: float, seed: int) -> dict[str, Any]:
    """
    Train and evaluate once. The random policy is not trained.

    :param task: task
    :param arm: arm
    :param rate: factor of the learning rate
    :param seed: seed of the run
    :return: ``"training"``: seconds of the run without its evaluations; ``"returns"``: mean return of each evaluation, as
        text; ``"updates"``: number of gradient updates; ``"spread"``: share of the buffer that draws were spread over at the
        end; 1: they were uniform
    """
    prepare(task)
    set_random_seed(seed)
    training = 0.0
    n_updates = 0
    spread = 1.0
    with _manager_of(task, arm, rate, seed) as manager:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # `try_arm` has shown them
            model: Any = manager.setup_experiment()[0]  # type: ignore[index]
        if arm.kind == "random":
            means = np.array(evaluate_random(manager.create_envs(1, eval_env=True), task.n_episodes, N_EVALUATIONS))
        else:
            # The Zoo's own `learn` ends at an interrupt without a word.
            (evaluations,) = (callback for callback in manager.callbacks if isinstance(callback, EvalCallback))
            others = [callback for callback in manager.callbacks if callback is not evaluations]
            timed = _Timed([evaluations])
            start = time.perf_counter()
            model.learn(manager.n_timesteps, callback=[*others, timed], log_interval=None)
            training = time.perf_counter() - start - timed.seconds
            evaluations.eval_env.close()
            means = np.mean(evaluations.evaluations_results, axis=1)[:N_EVALUATIONS]
            if len(means) < N_EVALUATIONS:
                raise RuntimeError(f"a callback ended a run after {len(means)} of {N_EVALUATIONS} evaluations: leave it out")
            n_updates = int(model.logger.name_to_value["train/n_updates"])
            if isinstance(model.replay_buffer, PrioritizedReplayBuffer):
                spread = statistics(model.replay_buffer)[1]["buffer_effective_sample_size"]
        model.env.close()
    returns = " ".join(f"{mean:.6g}" for mean in means)
    return {"training": round(training, 3), "returns": returns, "updates": n_updates, "spread": f"{spread:.6g}"}
