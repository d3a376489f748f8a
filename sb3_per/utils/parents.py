"""Check that the classes of other packages have the methods that the classes of this package override."""

from importlib.metadata import version
from typing import TypeVar

from sb3_per.utils.origin import package_of

#: Versions of other packages that have these methods, as in pyproject.toml, by the name under which they are imported.
WORKS_WITH = {
    "stable_baselines3": "stable-baselines3>=2.7,<3",
    "rl_zoo3": "rl_zoo3>=2.9.2,<3",
}

#: Methods that are overridden here and are part of no documented interface, by the class that has them. If one went away, the
#: override would never be called, and nobody would notice.
HOOKS: dict[str, tuple[str, ...]] = {
    "BaseAlgorithm": (
        "_excluded_save_params",
        "_setup_learn",
        "_setup_model",
        "_update_current_progress_remaining",
        "_update_learning_rate",
        "_wrap_env",
    ),
    "OffPolicyAlgorithm": ("_sample_action", "_store_transition"),
    "BaseModel": ("_get_constructor_parameters",),
    "SACPolicy": ("_build",),
    "BaseBuffer": ("_get_samples",),
    "HerReplayBuffer": ("_compute_episode_length",),
    "BaseCallback": ("_init_callback", "_on_rollout_end", "_on_rollout_start", "_on_step", "_on_training_start"),
    "ExperimentManager": (
        "_create_sampler",
        "_load_pretrained_agent",
        "_preprocess_hyperparams",
        "_save_config",
        "create_callbacks",
        "create_envs",
        "create_log_folder",
        "hyperparameters_optimization",
        "learn",
        "read_hyperparameters",
        "save_trained_model",
        "setup_experiment",
    ),
}

_Class = TypeVar("_Class", bound=type)


def require_hooks(cls: _Class) -> _Class:
    """
    Check that the parents of a class have the hooks that it overrides. Use it in ``__init_subclass__``, or as a decorator.

    :param cls: class that extends one of another package
    :return: this class
    :raises ImportError: if a hook is not there; the message names it, and the versions that work
    """
    parents = [base for base in cls.__mro__ if package_of(base) in WORKS_WITH]
    ours = [base for base in cls.__mro__ if package_of(base) == "sb3_per"]
    for parent in parents:
        for hook in HOOKS.get(parent.__name__, ()):
            overriding = next((each for each in ours if hook in vars(each)), None)
            if overriding is not None and not any(hook in vars(base) for base in parents):
                package = package_of(parent)
                raise ImportError(
                    f"{overriding.__name__} overrides {parent.__name__}.{hook}, which is not there in {package} "
                    f"{version(package)}: sb3_per works with {WORKS_WITH[package]}"
                )
    return cls
