"""
The settings of a prioritized buffer: names, defaults and allowed values. Constructors, saved models, RL Zoo's files and
``compare`` read them here; the ranges that the tuner searches are in ``zoo/tuning.py``.
"""

import dataclasses
import difflib
import inspect
import warnings
from collections.abc import Collection
from typing import Any

from sb3_per.buffers.files import absolute
from sb3_per.sampling.sampler import DrawSettings
from sb3_per.sampling.schemes import (
    DEFAULT_EPSILON,
    DEFAULT_KAPPA,
    SCHEME_ARGUMENTS,
    PriorityScheme,
    make_scheme,
    schemes_with,
    try_scheme,
)
from sb3_per.utils.checks import ABOVE_0, AT_LEAST_0, FLAG, FRACTION, PATH, check_argument, integer, number, words

# What the setting `beta` stands for.
_BETAS = ("beta_start", "beta_end")


class IgnoredSettingWarning(UserWarning):
    """A setting was given that has no effect with the scheme, or with another setting."""


@dataclasses.dataclass(frozen=True)
class BufferSettings:
    """
    Settings of all prioritized buffers. The page "Settings" of the documentation, ``docs/settings.md``, explains each.

    :raises ValueError: for a value that is not allowed, with the setting and the value in the message
    :raises NotImplementedError: for settings that do not go together
    :warns IgnoredSettingWarning: for a setting that has no effect
    """

    scheme: Any = "proportional"
    alpha: float | None = None
    beta_start: float = 0.4
    beta_end: float = 1.0
    beta_anneal_steps: int | None = None
    epsilon: float = DEFAULT_EPSILON
    kappa: float = DEFAULT_KAPPA
    td_error_reduction: str | None = None
    stratified: bool = DrawSettings.stratified
    actor_batch: str = "prioritized"
    initial_priority: str = "max"
    recency: float = DrawSettings.recency
    recency_min: int = DrawSettings.recency_min
    age_decay: float = DrawSettings.age_decay
    unique: bool = DrawSettings.unique
    n_steps: int = 1
    gamma: float = 0.99
    frames: int | dict[str, int] | None = None
    storage_folder: str | None = None
    demonstration_fraction: float = 0.0
    demonstration_fraction_end: float | None = None

    def __post_init__(self) -> None:
        check_argument("alpha", self.alpha, AT_LEAST_0, or_none=True)
        check_argument("beta_start", self.beta_start, FRACTION)
        check_argument("beta_end", self.beta_end, FRACTION)
        check_argument("beta_anneal_steps", self.beta_anneal_steps, integer(), or_none=True)
        check_argument("epsilon", self.epsilon, ABOVE_0)
        check_argument("kappa", self.kappa, ABOVE_0)
        check_argument("td_error_reduction", self.td_error_reduction, words("mean", "max", "min"), or_none=True)
        check_argument("stratified", self.stratified, FLAG)
        check_argument("actor_batch", self.actor_batch, words("prioritized", "uniform"))
        check_argument("initial_priority", self.initial_priority, words("max", "td_error"))
        check_argument("recency", self.recency, number("in (0, 1]", lambda x: 0.0 < x <= 1.0))
        check_argument("recency_min", self.recency_min, integer())
        check_argument("age_decay", self.age_decay, AT_LEAST_0)
        check_argument("unique", self.unique, FLAG)
        check_argument("n_steps", self.n_steps, integer())
        check_argument("gamma", self.gamma, FRACTION)
        check_argument("storage_folder", self.storage_folder, PATH, or_none=True)
        check_argument("demonstration_fraction", self.demonstration_fraction, FRACTION)
        check_argument("demonstration_fraction_end", self.demonstration_fraction_end, FRACTION, or_none=True)
        if self.beta_end < self.beta_start:
            raise ValueError(f"beta never decreases: beta_end={self.beta_end} is below beta_start={self.beta_start}")
        if self.demonstration_fraction_end is not None and self.demonstration_fraction_end > self.demonstration_fraction:
            raise ValueError(
                f"demonstration_fraction_end={self.demonstration_fraction_end} must be at most "
                f"demonstration_fraction={self.demonstration_fraction}"
            )
        if self.storage_folder is not None:
            # It stays the same folder when the working directory changes.
            object.__setattr__(self, "storage_folder", absolute(self.storage_folder))
        scheme = self.make_scheme()
        if scheme.is_user_defined:
            try_scheme(scheme)
        self._check_effects(scheme)
        if self.age_decay > 0.0:
            self._check_age_decay(scheme)

    @classmethod
    def names(cls) -> list[str]:
        """Names of the settings, in their order."""
        return [field.name for field in dataclasses.fields(cls)]

    @property
    def draw_settings(self) -> DrawSettings:
        """Settings of the draw, whatever the scheme."""
        return DrawSettings(**{field.name: getattr(self, field.name) for field in dataclasses.fields(DrawSettings)})

    @property
    def places_arrays(self) -> bool:
        """Whether other arrays than SB3's hold the transitions."""
        return self.frames is not None or self.storage_folder is not None

    def make_scheme(self) -> PriorityScheme:
        """
        Make the scheme.

        :return: the scheme object
        :raises ValueError: for an unknown scheme, or settings that belong into the scheme object
        """
        given = {name: getattr(self, name) for name, default in SCHEME_ARGUMENTS.items() if getattr(self, name) != default}
        return make_scheme(self.scheme, **given)

    def _check_effects(self, scheme: PriorityScheme) -> None:
        """Warn of settings that have no effect, and refuse ``initial_priority``, which the caller of ``add`` relies on."""
        unused = {name: getattr(self, name) for name in scheme.unused_settings}
        given = {name: value for name, value in unused.items() if value != getattr(BufferSettings, name)}
        if self.beta_start == self.beta_end and given.keys() & set(_BETAS):  # the user wrote `beta`
            given = {name: value for name, value in given.items() if name not in _BETAS} | {"beta": self.beta_start}
        for name, value in given.items():
            reason = f"it is a setting of {', '.join(map(repr, schemes_with('beta_start' if name == 'beta' else name)))}"
            if name == "initial_priority":
                raise ValueError(f"{name}={value!r} has no effect with {scheme}: {reason}")
            warnings.warn(f"{name}={value!r} has no effect with scheme={self.scheme!r}: {reason}", IgnoredSettingWarning)
        if self.recency == 1.0 and self.recency_min != BufferSettings.recency_min:
            warnings.warn(
                f"recency_min={self.recency_min} has no effect with recency=1.0: set a recency below 1", IgnoredSettingWarning
            )

    def _check_age_decay(self, scheme: PriorityScheme) -> None:
        """Refuse what has no meaning together with ``age_decay``."""
        if scheme.ranks_priorities:
            raise NotImplementedError(
                f"age_decay={self.age_decay} with scheme={scheme} is not supported: the masses of ranks are not in proportion "
                "to a priority"
            )
        if scheme.has_user_defined_tree:
            raise NotImplementedError(
                f"age_decay={self.age_decay} with make_tree() of {scheme} is not supported: age needs a tree of its own"
            )
        if self.recency != 1.0:
            raise NotImplementedError(
                f"age_decay={self.age_decay} with recency={self.recency} is not supported: both favour recent transitions. "
                "Choose one"
            )


def make_settings(cls: type, given: dict[str, Any]) -> BufferSettings:
    """
    Make settings from keyword arguments.

    :param cls: class of the buffer, for messages
    :param given: keyword arguments that are not SB3's
    :return: the settings
    :raises TypeError: for a keyword that is not a setting; the message names the nearest
    :raises ValueError: for a value that is not allowed, or settings beside a scheme object, which has its own
    """
    given = with_both_betas(given)
    unknown = [name for name in given if name not in BufferSettings.names()]
    if unknown:
        parameters = inspect.signature(cls).parameters.values()
        own = [*(each.name for each in parameters if each.kind is not each.VAR_KEYWORD), *SETTING_NAMES]
        raise TypeError(f"{cls.__name__} has no setting {'; '.join(f'{name!r}{setting_hint(name, own)}' for name in unknown)}")
    if isinstance(given.get("scheme"), PriorityScheme):
        # This refuses settings beside it. Below, those that equal the default look as if they were not given.
        make_scheme(**{name: given[name] for name in SCHEME_SETTINGS if name in given})
    return BufferSettings(**given)


def with_both_betas(given: dict[str, Any]) -> dict[str, Any]:
    """
    Write the setting ``beta`` as ``beta_start`` and ``beta_end``, which a buffer keeps.

    :param given: settings as a user gives them
    :return: the same settings without ``beta``; a copy if there was one
    :raises ValueError: for a ``beta`` outside [0, 1], or beside one of the two
    """
    if "beta" not in given:
        return given
    check_argument("beta", given["beta"], FRACTION)
    others = {name: value for name, value in given.items() if name != "beta"}
    for name in _BETAS:
        if name in others:
            raise ValueError(f"beta={given['beta']} sets beta_start and beta_end: leave out {name}={others[name]}, or beta")
        others[name] = given["beta"]
    return others


#: Names of settings that a user may give.
SETTING_NAMES = (*BufferSettings.names(), "beta")

#: Settings that say where the transitions are.
PLACE_SETTINGS = ("frames", "storage_folder")

#: Settings that make another scheme if they change.
SCHEME_SETTINGS = ("scheme", *SCHEME_ARGUMENTS)

#: Names that other libraries and older versions of RL Zoo use.
OTHER_NAMES = {
    "prioritized_replay_alpha": "alpha",
    **dict.fromkeys(("beta0", "prioritized_replay_beta0"), "beta_start"),
    **dict.fromkeys(("beta_frames", "beta_steps", "prioritized_replay_beta_iters"), "beta_anneal_steps"),
    **dict.fromkeys(("eps", "prioritized_replay_eps"), "epsilon"),
}

#: Arguments of a single kind of buffer that SB3's buffers do not have.
HER_ARGUMENTS = ("update_from_virtual",)
SEQUENCE_ARGUMENTS = ("sequence_length", "burn_in", "sequence_period", "eta", "store_state", "state_shapes")

#: Keyword arguments that SB3's buffers do not have.
NEW_ARGUMENTS = (*SETTING_NAMES, *HER_ARGUMENTS, *SEQUENCE_ARGUMENTS)

# What to say of names for which another name alone is no answer.
_HINTS = {
    "beta0": ": did you mean 'beta_start', or 'beta' for a constant?",
    "double_q": ", it is an argument of the algorithm: PERDQN(..., double_q=True)",
    "prioritized_replay": ": prioritized replay is what PERDQN does, leave it out",
    **dict.fromkeys(
        (*HER_ARGUMENTS, "n_sampled_goal", "goal_selection_strategy", "copy_info_dict"),
        ", it is one of PrioritizedHerReplayBuffer: replay_buffer_class=PrioritizedHerReplayBuffer",
    ),
    **dict.fromkeys(
        SEQUENCE_ARGUMENTS, ", it is one of PrioritizedSequenceReplayBuffer, which PERRecurrentDQN and PERRecurrentSAC have"
    ),
}


def setting_hint(name: str, known: Collection[str]) -> str:
    """
    Say what a user may have meant by an unknown name.

    :param name: unknown name of an argument
    :param known: names of arguments
    :return: end of an error message that names the right argument, or its place; empty if no name is near
    """
    if name in _HINTS and name not in known:
        return _HINTS[name]
    meant = OTHER_NAMES.get(name) or next(iter(difflib.get_close_matches(name, sorted(known), n=1)), None)
    return "" if meant is None or meant == name else f": did you mean {meant!r}?"
