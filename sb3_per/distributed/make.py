"""``make_actors``: what it takes, and that it fits, before anything is started."""

import importlib.util
import os
from collections.abc import Callable
from typing import Any

import gymnasium as gym
from stable_baselines3.common.vec_env import VecEnv

from sb3_per.buffers.ring import is_count
from sb3_per.distributed.crew import CrewSettings
from sb3_per.distributed.engines import Engine, LocalEngine
from sb3_per.distributed.loop import LoopSettings
from sb3_per.distributed.messages import EnvRecipe
from sb3_per.distributed.vec_env import ActorVecEnv

ENGINES = ("ray", "local")
EXPLORATIONS = (None, "ladder")
INITIAL_PRIORITIES = ("actor", "max")


def make_actors(
    env_id: str | Callable[..., gym.Env],
    n_envs: int = 1,
    seed: int | None = None,
    start_index: int = 0,
    monitor_dir: str | None = None,
    wrapper_class: Callable[[gym.Env], gym.Env] | None = None,
    env_kwargs: dict[str, Any] | None = None,
    vec_env_cls: type[VecEnv] | None = None,
    vec_env_kwargs: dict[str, Any] | None = None,
    monitor_kwargs: dict[str, Any] | None = None,
    wrapper_kwargs: dict[str, Any] | None = None,
    *,
    n_actors: int = 2,
    chunk: int = 50,
    exploration: str | None = None,
    initial_priorities: str = "actor",
    lockstep: bool = False,
    address: str | None = None,
    max_restarts: int = 10,
    timeout: float = 60.0,
    engine: str = "ray",
    in_flight: int | None = None,
    ray_options: dict[str, Any] | None = None,
) -> ActorVecEnv:
    """
    Environments that act by themselves, on many cores or machines (Ape-X, Horgan et al. 2018, arXiv 1803.00933), in the place
    of ``make_vec_env``, whose arguments come first.

    The algorithms of this package collect asynchronously with it: each actor has a CPU copy of the policy, and sends what it
    sees. Others step it as they step ``SubprocVecEnv``.

    :param env_id: id of the environment, or what makes one
    :param n_envs: environments of each actor
    :param seed: as ``make_vec_env``
    :param start_index: as ``make_vec_env``
    :param monitor_dir: as ``make_vec_env``, on the machine of the actor
    :param wrapper_class: as ``make_vec_env``
    :param env_kwargs: as ``make_vec_env``
    :param vec_env_cls: how an actor steps its own environments; ``None``: one after the other
    :param vec_env_kwargs: as ``make_vec_env``
    :param monitor_kwargs: as ``make_vec_env``
    :param wrapper_kwargs: as ``make_vec_env``
    :param n_actors: number of actors, at least 1: processes with the engine ``"ray"``
    :param chunk: steps of each environment that an actor takes with the same weights and sends together, at least 1
    :param exploration: ``"ladder"``: actor i of N takes random actions with probability 0.4 ** (1 + 7 i / (N - 1)), for
        algorithms with such a probability; ``None``: all explore as the algorithm says
    :param initial_priorities: of new transitions: ``"actor"``, from TD errors by the actor's weights, unless
        ``replay_buffer_kwargs`` says otherwise with ``initial_priority``; ``"max"``, as without actors
    :param lockstep: chunks are admitted in a fixed order: slower, and reproducible to the bit
    :param address: of a Ray cluster, e.g. ``"auto"``; ``None``: this machine, or what ``RAY_ADDRESS`` says
    :param max_restarts: how often each actor may be started anew in a run, at least 0
    :param timeout: seconds without an answer after which there is a warning or, if no process of an actor runs, an error,
        above 0. A process that makes or resets its environments runs
    :param engine: ``"ray"``, or ``"local"``: the same in this process, without Ray
    :param in_flight: most calls of an actor that are not answered yet, 1 or 2. ``None``: 2, so that no actor waits for the
        learner; 1 with ``lockstep`` and with the engine ``"local"``
    :param ray_options: further arguments of ``ray.init``, if it is called here
    :return: ``n_actors * n_envs`` environments
    :raises ValueError: for an argument outside of its range, before anything is started
    :raises ImportError: if the engine is Ray, and it is not installed
    """
    _check_counts(n_envs=n_envs, n_actors=n_actors, chunk=chunk)
    for name, value, known in (
        ("exploration", exploration, EXPLORATIONS),
        ("initial_priorities", initial_priorities, INITIAL_PRIORITIES),
        ("engine", engine, ENGINES),
        ("in_flight", in_flight, (None, 1, 2)),
        ("lockstep", lockstep, (False, True)),
    ):
        if value not in known:
            raise ValueError(f"{name} must be one of {known}, not {value!r}")
    if not isinstance(max_restarts, int) or isinstance(max_restarts, bool) or max_restarts < 0:
        raise ValueError(f"max_restarts must be an integer of at least 0, not {max_restarts!r}")
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0.0 < timeout < float("inf"):
        raise ValueError(f"timeout must be a number of seconds above 0, not {timeout!r}")
    if engine == "local" and address is not None:
        raise ValueError(f"address={address!r} has no meaning with engine='local', which stays in this process")
    arguments: dict[str, Any] = dict(
        env_id=env_id,
        seed=seed,
        # Where an actor runs is not where the script does.
        monitor_dir=None if monitor_dir is None else os.path.abspath(monitor_dir),
        wrapper_class=wrapper_class,
        env_kwargs=env_kwargs,
        vec_env_cls=vec_env_cls,
        vec_env_kwargs=vec_env_kwargs,
        monitor_kwargs=monitor_kwargs,
        wrapper_kwargs=wrapper_kwargs,
    )
    spec = _spec_of(env_id)
    if in_flight is None:
        in_flight = 1 if lockstep or engine == "local" else 2
    return ActorVecEnv(
        _engine(engine, address, ray_options),
        n_actors,
        EnvRecipe(arguments, n_envs, start_index, spec),
        CrewSettings(in_flight, lockstep or engine == "local", max_restarts, timeout),
        LoopSettings(chunk, exploration, initial_priorities),
    )


def _check_counts(**counts: Any) -> None:
    for name, value in counts.items():
        if not is_count(value):
            raise ValueError(f"{name} must be an integer of at least 1, not {value!r}")


def _spec_of(env_id: str | Callable[..., gym.Env]) -> Any:
    """
    :param env_id: id of the environment, or what makes one
    :return: what the learner has registered under that id, which an actor may not have; ``None`` if there is nothing to know
    :raises ValueError: for an id that nobody has registered
    """
    if callable(env_id):
        return None
    if not isinstance(env_id, str):
        raise ValueError(f"env_id must be the id of an environment or a callable, not {env_id!r}")
    if ":" in env_id:  # gym imports the module in front of it, which registers the environment
        return None
    try:
        return gym.spec(env_id)
    except gym.error.Error as error:
        raise ValueError(f"env_id={env_id!r} is not a registered environment: {error}") from error


def _engine(name: str, address: str | None, ray_options: dict[str, Any] | None) -> Engine:
    if name == "local":
        return LocalEngine()
    if importlib.util.find_spec("ray") is None:
        raise ImportError(
            "engine='ray' needs Ray: pip install 'sb3_per[distributed]'. engine='local' runs the same in one process"
        )
    from sb3_per.distributed.ray_engine import RayEngine

    return RayEngine(address, ray_options)
