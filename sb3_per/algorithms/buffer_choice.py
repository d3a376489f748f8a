"""Choose the class and the settings of an algorithm's buffer, and refuse what the algorithm cannot learn from."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.preprocessing import get_action_dim, get_obs_shape
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per.algorithms.arguments import contradiction
from sb3_per.algorithms.collecting import collecting_env_in
from sb3_per.buffers import (
    PRIORITIZED_CLASSES,
    IgnoredSettingWarning,
    PrioritizedHerReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedSequenceReplayBuffer,
    hooks,
)
from sb3_per.buffers.settings import BufferSettings, with_both_betas
from sb3_per.sampling.schemes import SCHEMES
from sb3_per.storage.frame_setting import frames_of_env, require_stack_of_env
from sb3_per.utils.checks import FRACTION, Allowed, check_argument, integer

if TYPE_CHECKING:
    from sb3_per.algorithms.base import PrioritizedAlgorithm


def resolve_arguments(model: "PrioritizedAlgorithm") -> None:
    """
    Settle ``replay_buffer_class`` and ``replay_buffer_kwargs`` of a model, from what the user or a zip gave. A second call
    changes nothing.

    :param model: the algorithm
    :raises TypeError: for settings that are no dictionary
    :raises ValueError: for a class that is not prioritized, or an ``n_steps`` or ``gamma`` that contradicts the algorithm's
    """
    if not isinstance(model.replay_buffer_kwargs, dict):
        given = f"{model.replay_buffer_kwargs!r} ({type(model.replay_buffer_kwargs).__name__})"
        raise TypeError(f"replay_buffer_kwargs must be a dictionary of settings, e.g. dict(scheme='lap'), not {given}")
    settings = dict(with_both_betas(model.replay_buffer_kwargs))  # the caller's dictionary must not change
    _move_to_algorithm(model, settings, "n_steps", integer())
    _move_to_algorithm(model, settings, "gamma", FRACTION)
    if settings.get("frames") == "auto":
        settings["frames"] = frames_of_env(model.env, model.observation_space)
    require_stack_of_env(settings.get("frames"), model.env)
    if settings != model.replay_buffer_kwargs:
        model.replay_buffer_kwargs = settings
    model.replay_buffer_class = _prioritized_class(model)


@contextmanager
def complete_kwargs(model: "PrioritizedAlgorithm") -> Iterator[None]:
    """
    Let ``replay_buffer_kwargs``, from which the stock algorithm makes the buffer, hold all settings within a ``with`` block.
    The model keeps, and saves, only the user's.

    :param model: the algorithm
    :return: context in which the stock algorithm sets up the model
    """
    user_kwargs = model.replay_buffer_kwargs
    model.replay_buffer_kwargs = model._buffer_settings()
    try:
        yield
    finally:
        model.replay_buffer_kwargs = user_kwargs


def adopt_given_buffer(model: "PrioritizedAlgorithm") -> None:
    """
    Assign the buffer that ``load`` was given, through the property, which makes a buffer of SB3 prioritized. SB3's ``load``
    sets attributes past it.

    :param model: algorithm that is being set up
    """
    given = vars(model)["replay_buffer"]
    if given is not None:
        model.replay_buffer = given


def keep_absolute_folder(model: "PrioritizedAlgorithm") -> None:
    """
    Replace ``storage_folder`` in ``replay_buffer_kwargs`` by its absolute path, which is saved.

    :param model: algorithm with its buffer
    """
    settings = model.replay_buffer_kwargs
    if settings.get("storage_folder") is not None:
        # In a new dictionary, since the caller's must not change.
        model.replay_buffer_kwargs = settings | {"storage_folder": model.replay_buffer.settings.storage_folder}


def _move_to_algorithm(model: "PrioritizedAlgorithm", settings: dict[str, Any], name: str, allowed: Allowed) -> None:
    """
    Make a setting an attribute of the algorithm, to which it belongs. SB3's users give it to ``NStepReplayBuffer``, too.

    :param model: the algorithm
    :param settings: settings of the buffer; this one is removed
    :param name: ``"n_steps"`` or ``"gamma"``
    :param allowed: its allowed values
    :raises ValueError: for a value that is not allowed, or that contradicts the algorithm's
    """
    if name not in settings:
        return
    value = settings.pop(name)
    check_argument(name, value, allowed)
    given = getattr(model, name)
    default = model.changed_defaults.get(name, getattr(BufferSettings, name))
    if given == default:  # not given, as `check_agreement` has refused other given values
        setattr(model, name, value)
    elif given != value:
        raise ValueError(contradiction(type(model), name, given, model.replay_buffer_kwargs))


def _prioritized_class(model: "PrioritizedAlgorithm") -> type[PrioritizedReplayBuffer]:
    """Replace a class of SB3: HER stays HER, and any other becomes the algorithm's default, which fits its observations."""
    given = model.replay_buffer_class
    if given is None or (given in PRIORITIZED_CLASSES and not issubclass(given, HerReplayBuffer)):
        return model._default_buffer_class()
    buffer_class = PRIORITIZED_CLASSES.get(given, given)
    _check_prioritized(model, buffer_class)
    return buffer_class  # type: ignore[return-value]


def accepted_buffer(model: "PrioritizedAlgorithm", buffer: ReplayBuffer) -> PrioritizedReplayBuffer:
    """
    Take a buffer for a model. A buffer of SB3 becomes prioritized, with the settings of the model, and shares its arrays.

    :param model: the algorithm
    :param buffer: any buffer
    :return: prioritized buffer
    :raises ValueError: for a class that is not prioritized, or a buffer that does not fit the environment
    :raises NotImplementedError: for a buffer that the algorithm cannot learn from
    """
    if isinstance(buffer, PrioritizedReplayBuffer):
        check_fit(model, buffer)
        model._check_buffer(buffer)
        return buffer
    _check_prioritized(model, PRIORITIZED_CLASSES.get(type(buffer), type(buffer)))
    check_fit(model, buffer)
    resolve_arguments(model)  # a subclass may assign a buffer before `_setup_model`
    settings = model._buffer_settings()
    if isinstance(buffer, NStepReplayBuffer):
        settings["n_steps"] = buffer.n_steps
        settings["gamma"] = buffer.gamma
    buffer_class: Any = model.replay_buffer_class
    if isinstance(buffer, HerReplayBuffer) and not has_hindsight(model):
        buffer_class = PrioritizedHerReplayBuffer
    made: PrioritizedReplayBuffer = buffer_class.from_replay_buffer(buffer, **settings)
    made.device = model.device
    model._check_buffer(made)
    if buffer.size() == 0:
        warnings.warn(
            f"The empty {type(buffer).__name__} became a {type(made).__name__} that shares its arrays, not its position: "
            "add transitions to model.replay_buffer. What is added to the old buffer is never drawn",
            stacklevel=3,  # the line that assigns the buffer
        )
    return made


def has_hindsight(model: "PrioritizedAlgorithm") -> bool:
    """
    Tell whether a model makes a buffer with HER.

    :param model: the algorithm
    :return: whether its ``replay_buffer_class`` is one with HER
    """
    return model.replay_buffer_class is not None and issubclass(model.replay_buffer_class, HerReplayBuffer)


# ---- what is refused


def _check_prioritized(model: "PrioritizedAlgorithm", buffer_class: type) -> None:
    """Refuse a class that is not prioritized, and name the one to derive from."""
    if issubclass(buffer_class, PrioritizedReplayBuffer):
        return
    name = type(model).__name__
    base = PrioritizedHerReplayBuffer if issubclass(buffer_class, HerReplayBuffer) else model._default_buffer_class()
    raise ValueError(
        f"{name} needs a prioritized replay buffer, and {buffer_class.__name__} is not: use a subclass of "
        f"{base.__name__}, or leave the choice of the buffer to {name}"
    )


def check_fit(model: "PrioritizedAlgorithm", buffer: ReplayBuffer) -> None:
    """
    Check HER, shapes and the number of environments.

    :param model: the algorithm
    :param buffer: any buffer
    :raises ValueError: for a buffer that does not fit this model
    """
    if has_hindsight(model) and not isinstance(buffer, HerReplayBuffer):
        raise ValueError(f"The {type(buffer).__name__} does not fit this model, which needs a buffer with HER")
    facts = {
        "n_envs": (buffer.n_envs, model.n_envs),
        "observations of shape": (buffer.obs_shape, get_obs_shape(model.observation_space)),
        "actions of dimension": (buffer.action_dim, get_action_dim(model.action_space)),
    }
    for what, (found, expected) in facts.items():
        if found != expected:
            raise ValueError(
                f"The {type(buffer).__name__} does not fit this model: it has {what} {found}, the model {expected}"
            )


def check_supported(model: "PrioritizedAlgorithm", buffer: PrioritizedReplayBuffer) -> None:
    """
    Refuse what an algorithm cannot learn from.

    :param model: the algorithm
    :param buffer: its buffer
    :raises NotImplementedError: for a combination that is not supported
    """
    name = type(model).__name__
    if buffer.scheme.replaces_loss and not model.has_scalar_td_loss:
        raise NotImplementedError(
            f"{name} with {buffer.scheme} is not supported: the scheme replaces the loss of a scalar TD error, and this "
            f"algorithm regresses quantiles. Use one of {[each for each in SCHEMES if not SCHEMES[each].replaces_loss]}"
        )
    is_recurrent = issubclass(model._default_buffer_class(), PrioritizedSequenceReplayBuffer)
    if isinstance(buffer, PrioritizedSequenceReplayBuffer) and not is_recurrent:
        raise NotImplementedError(
            f"{name} with {type(buffer).__name__} is not supported: it is not recurrent and learns from single transitions. "
            "Use a recurrent algorithm, such as PERRecurrentDQN"
        )
    if buffer.settings.actor_batch != "prioritized" and not model.has_actor:
        raise NotImplementedError(
            f"{name} with actor_batch={buffer.settings.actor_batch!r} is not supported: it has no actor. Leave the setting out"
        )


def warn_of_unused_settings(model: "PrioritizedAlgorithm") -> None:
    """
    Warn of settings of the buffer that have no effect in ``learn``.

    :param model: algorithm that is to learn
    :warns IgnoredSettingWarning: for TD errors of new transitions that nobody gives, and a ``recency`` that the buffer is too
        small for
    """
    buffer = model.replay_buffer
    gets_td_errors = collecting_env_in(model.env) is not None or hooks.is_overridden(buffer, "add")
    if buffer.settings.initial_priority == "td_error" and not gets_td_errors:
        warnings.warn(
            "initial_priority='td_error' has no effect in learn(): SB3 passes no td_errors to add(), so new transitions get "
            "the largest priority. Use make_actors() for the environments, or call add() in a loop of your own",
            IgnoredSettingWarning,
        )
    recency_min = buffer.settings.recency_min
    if buffer.settings.recency < 1.0 and recency_min >= buffer.ring.capacity:
        warnings.warn(
            f"recency={buffer.settings.recency} has no effect: draws see the newest recency_min={recency_min} transitions at "
            f"least, and the buffer holds {buffer.ring.capacity}",
            IgnoredSettingWarning,
        )
