"""``make_actors``: check its arguments, then start the actors."""

import os
from collections.abc import Callable
from typing import Any

import gymnasium as gym
from stable_baselines3.common.vec_env import VecEnv

from sb3_per.distributed.actor_pool import ActorSettings
from sb3_per.distributed.engines import Engine, LocalEngine
from sb3_per.distributed.environments import EnvRecipe
from sb3_per.distributed.vec_env import ActorVecEnv
from sb3_per.utils.checks import FLAG, Allowed, check_argument, integer, number, words


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
    Make environments that act on their own, on many cores or machines (Ape-X, Horgan et al. 2018, arXiv 1803.00933).

    Use it instead of ``make_vec_env``, whose arguments come first. The algorithms of this package collect asynchronously: each
    actor has a CPU copy of the policy and sends its transitions. Stock algorithms step them like ``SubprocVecEnv``.

    :param env_id: id of the environment, or a function that makes one
    :param n_envs: environments of each actor
    :param seed: as ``make_vec_env``
    :param start_index: as ``make_vec_env``
    :param monitor_dir: as ``make_vec_env``, a folder on the machine of the actor
    :param wrapper_class: as ``make_vec_env``
    :param env_kwargs: as ``make_vec_env``
    :param vec_env_cls: class that an actor steps its own environments with; ``None``: ``DummyVecEnv``
    :param vec_env_kwargs: as ``make_vec_env``
    :param monitor_kwargs: as ``make_vec_env``
    :param wrapper_kwargs: as ``make_vec_env``
    :param n_actors: number of actors, at least 1; with Ray, each is a process
    :param chunk: steps of each environment that an actor takes with the same weights and sends together, at least 1; fewer if
        they are more than a quarter of the buffer's rows
    :param exploration: ``"ladder"``: actor i of N takes random actions with probability 0.4 ** (1 + 7 i / (N - 1)), for DQN
        and QR-DQN; ``None``: all actors explore as the algorithm does
    :param initial_priorities: priorities of new transitions. ``"actor"``: from TD errors by the actor's weights, unless
        ``replay_buffer_kwargs`` sets ``initial_priority``; ``"max"``: the largest priority, as without actors
    :param lockstep: whether chunks are stored in a fixed order, which is slower, and reproducible to the bit
    :param address: address of a Ray cluster, e.g. ``"auto"``; ``None``: ``RAY_ADDRESS`` or, without it, this machine
    :param max_restarts: largest number of restarts of each actor in a run, at least 0
    :param timeout: seconds of silence, above 0, before a warning or, if no process of an actor runs, an error. A process runs
        while it makes or resets its environments
    :param engine: ``"ray"``; or ``"local"`` to run all actors in this process, without Ray
    :param in_flight: largest number of unanswered calls of an actor, 1 or 2. ``None``: 2, so that no actor waits for the
        learner; 1 with ``lockstep`` and with ``engine="local"``
    :param ray_options: further arguments of ``ray.init``, if it is called here
    :return: ``n_actors * n_envs`` environments
    :raises ValueError: for an argument outside of its range; nothing is started then
    :raises ImportError: for ``engine="ray"`` without Ray
    """
    in_order = lockstep or engine == "local"
    if in_flight is None:
        in_flight = 1 if in_order else 2
    settings = ActorSettings(chunk, exploration, initial_priorities, in_flight, in_order, max_restarts, timeout)
    _check(engine, address, lockstep, n_actors, n_envs, settings)
    arguments: dict[str, Any] = dict(
        env_id=env_id,
        n_envs=n_envs,
        seed=seed,
        start_index=start_index,
        # An actor may run in another folder than the script.
        monitor_dir=None if monitor_dir is None else os.path.abspath(monitor_dir),
        wrapper_class=wrapper_class,
        env_kwargs=env_kwargs,
        vec_env_cls=vec_env_cls,
        vec_env_kwargs=vec_env_kwargs,
        monitor_kwargs=monitor_kwargs,
        wrapper_kwargs=wrapper_kwargs,
    )
    recipe = EnvRecipe(arguments, _spec_of(env_id))
    return ActorVecEnv(_engine(engine, address, ray_options), n_actors, recipe, settings)


def _check(engine: str, address: str | None, lockstep: bool, n_actors: int, n_envs: int, settings: ActorSettings) -> None:
    check_argument("n_actors", n_actors, integer())
    check_argument("n_envs", n_envs, integer())
    check_argument("chunk", settings.chunk, integer())
    check_argument("engine", engine, words("ray", "local"))
    check_argument("lockstep", lockstep, FLAG)
    check_argument("exploration", settings.exploration, words("ladder"), or_none=True)
    check_argument("initial_priorities", settings.initial_priorities, words("actor", "max"))
    check_argument("max_restarts", settings.max_restarts, integer(0))
    check_argument("timeout", settings.timeout, number("of seconds above 0", lambda x: x > 0.0))
    check_argument("in_flight", settings.in_flight, Allowed("1 or 2", lambda value: value in (1, 2)), or_none=True)
    if engine == "local" and address is not None:
        raise ValueError(f"address={address!r} has no effect with engine='local', which runs in this process: leave it out")


def _spec_of(env_id: str | Callable[..., gym.Env]) -> Any:
    """
    Find the registration of an environment, which an actor's process may lack.

    :param env_id: id of the environment, or a function that makes one
    :return: its registration, or ``None`` if the actor needs none
    :raises ValueError: for an id that is not registered
    """
    # Gymnasium imports the module before a colon, which registers the environment.
    if callable(env_id) or (isinstance(env_id, str) and ":" in env_id):
        return None
    try:
        return gym.spec(env_id)
    except (gym.error.Error, TypeError) as error:
        raise ValueError(f"env_id={env_id!r} is neither a registered environment nor a callable: {error}") from error


def _engine(name: str, address: str | None, ray_options: dict[str, Any] | None) -> Engine:
    if name == "local":
        return LocalEngine()
    try:
        import ray  # noqa: F401
    except ImportError as error:
        command = 'pip install "ray", or pip install ".[distributed]" in a clone of this package'
        raise ImportError(f"engine='ray' needs ray: {command}") from error
    from sb3_per.distributed.ray_engine import RayEngine

    return RayEngine(address, ray_options)
