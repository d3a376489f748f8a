"""Environments of the command line: import the modules that register them, and check their ids."""

import contextlib
import difflib
import importlib
from collections.abc import Iterable

import gymnasium as gym

from sb3_per.zoo.names import split_env


def register_environment(env: str, packages: Iterable[str]) -> str:
    """
    Import the modules that register an environment, and check that one of them did.

    :param env: id of the environment, or ``"module:id"`` as in Gymnasium
    :param packages: modules of ``--gym-packages``
    :return: id of the environment, without its module
    :raises ValueError: if there is no such module, or if the environment is not registered; the message says what to do
    """
    module, name = split_env(env)
    for package in packages:
        _import(f"--gym-packages {package}", package)
    if module:
        _import(f"--env {env}", module)
    if name.lower().startswith("minatar/") and name not in gym.registry:
        # Importing MinAtar, as the Zoo's --gym-packages does, registers none of its environments.
        with contextlib.suppress(ImportError):
            from minatar.gym import register_envs

            register_envs()
    if name not in gym.registry:
        from sb3_per.zoo import upstream

        upstream.import_environments()
    if name not in gym.registry:
        nearest = difflib.get_close_matches(name, gym.registry, n=1)
        meant = f": did you mean {nearest[0]!r}?" if nearest else "."
        raise ValueError(f"--env {env} is not registered{meant} If a module registers it, write --env module:{name}")
    return name


def _import(option: str, module: str) -> None:
    """Import a module. An error inside of it is the user's, and keeps its traceback."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        message = f"{option}: there is no module {error.name!r}; install it, or run the command in the folder that contains it"
        raise ValueError(message) from error
