"""
The settings of a prioritized buffer: names, defaults, allowed values and meaning. Constructors, checks, help, and the tuner of
RL Zoo all read this one table.
"""

import dataclasses
import difflib
import inspect
import warnings
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from sb3_per.sampling.schemes import DEFAULT_EPSILON, DEFAULT_KAPPA, PriorityScheme, make_scheme
from sb3_per.storage.mapped import absolute
from sb3_per.utils.checks import ABOVE_0, AT_LEAST_0, FLAG, FRACTION, PATH, Reasons, integer, number, refuse, require, words

_Init = TypeVar("_Init", bound=Callable[..., None])


class IgnoredSettingWarning(UserWarning):
    """A setting was given that has no effect with the scheme, or with another setting."""


# ---- the table


def _setting(default: Any, *allowed: Any) -> Any:
    return dataclasses.field(default=default, metadata={"allowed": allowed})


@dataclasses.dataclass(frozen=True)
class PrioritySettings:
    """
    Settings of all prioritized buffers, see :class:`~sb3_per.PrioritizedReplayBuffer` for their meaning.

    :raises ValueError: for a value that is not allowed, with the setting and the value in the message
    :warns IgnoredSettingWarning: for a setting that has no effect
    """

    scheme: Any = "proportional"
    alpha: float | None = _setting(None, AT_LEAST_0)
    beta_start: float = _setting(0.4, FRACTION)
    beta_end: float = _setting(1.0, FRACTION)
    beta_anneal_steps: int | None = _setting(None, integer())
    epsilon: float = _setting(DEFAULT_EPSILON, ABOVE_0)
    kappa: float = _setting(DEFAULT_KAPPA, ABOVE_0)
    td_error_reduction: str | None = _setting(None, words("mean", "max", "min"))
    stratified: bool = _setting(True, FLAG)
    uniform_fraction: float = _setting(0.0, number("in [0, 1)", lambda x: 0.0 <= x < 1.0))
    weight_normalization: str = _setting("max", words("max", "mean", "none"))
    actor_batch: str = _setting("prioritized", words("prioritized", "weighted", "uniform"))
    initial_priority: str = _setting("max", words("max", "mean", "td_error"))
    max_priority_interval: int | None = _setting(None, integer())
    recency: float = _setting(1.0, number("in (0, 1]", lambda x: 0.0 < x <= 1.0))
    recency_min: int = _setting(5000, integer())
    age_decay: float = _setting(0.0, AT_LEAST_0)
    unique: bool = _setting(False, FLAG)
    n_steps: int = _setting(1, integer())
    gamma: float = _setting(0.99, FRACTION)
    frames: int | dict[str, int] | None = None
    storage_folder: str | None = _setting(None, PATH)
    demonstration_fraction: float = _setting(0.0, FRACTION)
    demonstration_fraction_end: float | None = _setting(None, FRACTION)
    demonstration_bonus: float = _setting(0.0, AT_LEAST_0)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if "allowed" in field.metadata:
                require(field.name, getattr(self, field.name), *field.metadata["allowed"], none=field.default is None)
        if self.storage_folder is not None:
            # It stays the same folder when the working directory changes.
            object.__setattr__(self, "storage_folder", absolute(self.storage_folder))
        if self.beta_end < self.beta_start:
            raise ValueError(f"beta never decreases: beta_end={self.beta_end} is below beta_start={self.beta_start}")
        end, start = self.demonstration_fraction_end, self.demonstration_fraction
        if end is not None and end > start:
            raise ValueError(f"demonstration_fraction_end={end} must be at most demonstration_fraction={start}")
        scheme = self.make_scheme()
        self._check_effects(scheme)
        if self.age_decay > 0.0:
            refuse(self._unsupported_with_decay(scheme))

    @classmethod
    def names(cls) -> list[str]:
        """Names of the settings, in their order."""
        return [field.name for field in dataclasses.fields(cls)]

    def some(self, names: str) -> dict[str, Any]:
        """
        Select settings.

        :param names: of settings, separated by spaces
        :return: their values by name
        """
        return {name: getattr(self, name) for name in names.split()}

    def make_scheme(self) -> PriorityScheme:
        """
        Make the scheme.

        :return: the scheme object
        :raises ValueError: for an unknown scheme, or settings that belong into the scheme object
        """
        return make_scheme(self.scheme, self.alpha, self.epsilon, self.kappa, self.td_error_reduction)

    def _check_effects(self, scheme: PriorityScheme) -> None:
        """Refuse some settings that have no effect, and warn of the others."""
        if self.initial_priority == "mean" and scheme.ranks:
            raise ValueError(f"initial_priority='mean' has no meaning with {scheme}: ranks have no mean priority")
        for field in dataclasses.fields(self):
            value, what, reason = getattr(self, field.name), f"scheme={self.scheme!r}", ignored(scheme, field.name)
            if field.name == "recency_min" and self.recency == 1.0:
                what, reason = "recency=1.0", "set a recency below 1"
            if value == field.default or reason is None:
                continue
            if field.name in _REFUSED:
                raise ValueError(f"{field.name}={value!r} has no effect with {scheme}: {reason}")
            warnings.warn(f"{field.name}={value!r} has no effect with {what}: {reason}", IgnoredSettingWarning)

    def _unsupported_with_decay(self, scheme: PriorityScheme) -> Reasons:
        decay = f"age_decay={self.age_decay} with"
        return {
            f"{decay} scheme={scheme}": scheme.ranks and "the masses of ranks are not in proportion to a priority",
            f"{decay} recency={self.recency}": self.recency != 1.0 and "both favour recent transitions. Choose one",
            f"{decay} uniform_fraction={self.uniform_fraction}": self.uniform_fraction != 0.0
            and "old transitions are drawn the more often the smaller age_decay is",
        }


# Settings that are refused where a scheme ignores them; others warn.
_REFUSED = ("weight_normalization", "initial_priority", "max_priority_interval")


def ignored(scheme: "str | PriorityScheme", name: str) -> str | None:
    """
    Say whether a scheme ignores a setting.

    :param scheme: its name, or an object
    :param name: of a setting
    :return: the schemes that use it, in words; ``None`` if this scheme uses it
    """
    # A scheme object brings alpha and so on; giving these again as settings is an error elsewhere.
    made = make_scheme(scheme)
    by_priority, weighted = not made.draws_uniformly, made.importance_sampling
    weights = "'proportional' and 'rank' have importance-sampling weights"
    draws = "'proportional', 'rank' and 'lap' draw by priority"
    masses = "'proportional' and 'lap' with an alpha above 0 have masses that follow from priorities"
    rules = {
        "alpha": (by_priority or made.replaces_loss, "'proportional', 'rank', 'lap' and 'pal' have an alpha"),
        "td_error_reduction": (by_priority or made.replaces_loss, "'proportional', 'rank', 'lap' and 'pal' reduce TD errors"),
        "epsilon": (weighted and not made.ranks, "'proportional' adds it to |td|"),
        "kappa": (made.replaces_loss, "'lap' and 'pal' have a kappa"),
        **dict.fromkeys(("uniform_fraction", "initial_priority"), (by_priority, draws)),
        "max_priority_interval": (by_priority and not made.ranks and made.alpha > 0.0, masses),
        "demonstration_bonus": (by_priority and not made.ranks, "'proportional' and 'lap' draw in proportion to a priority"),
        **dict.fromkeys(("beta_start", "beta_end", "beta_anneal_steps", "weight_normalization"), (weighted, weights)),
    }
    is_used, users = rules.get(name, (True, ""))
    return None if is_used else users


# ---- constructors


def takes_settings(init: _Init) -> _Init:
    """
    Show help and editors the settings in place of ``**settings``.

    :param init: constructor whose last argument is ``**settings``
    :return: the same, with a signature that names them
    """
    signature = inspect.signature(init)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    added = [p.replace(kind=p.KEYWORD_ONLY) for p in inspect.signature(PrioritySettings).parameters.values()]
    init.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
    return init


def make_settings(cls: type, given: dict[str, Any]) -> PrioritySettings:
    """
    Make settings from keyword arguments.

    :param cls: class of the buffer, for messages
    :param given: keyword arguments that are not SB3's
    :return: the settings
    :raises TypeError: for a keyword that is not a setting; the message names the nearest
    :raises ValueError: for a value that is not allowed
    """
    known = PrioritySettings.names()
    unknown = [name for name in given if name not in known]
    if unknown:
        own = [*inspect.signature(cls.__init__).parameters, *known]  # type: ignore[misc]
        raise TypeError(f"{cls.__name__} has no setting {'; '.join(f'{name!r}{hint(name, own)}' for name in unknown)}")
    return PrioritySettings(**given)


#: Settings that make another scheme if they change.
SCHEME_SETTINGS = ("scheme", "alpha", "epsilon", "kappa", "td_error_reduction")

#: Names that other libraries and older versions of RL Zoo use.
OTHER_NAMES = {
    "prioritized_replay_alpha": "alpha",
    **dict.fromkeys(("beta", "beta0", "prioritized_replay_beta0"), "beta_start"),
    **dict.fromkeys(("beta_frames", "beta_steps", "prioritized_replay_beta_iters"), "beta_anneal_steps"),
    **dict.fromkeys(("eps", "prioritized_replay_eps"), "epsilon"),
}

#: Arguments of a single kind of buffer that SB3's buffers do not have.
HER_ARGUMENTS = ("update_from_virtual",)
SEQUENCE_ARGUMENTS = ("sequence_length", "burn_in", "sequence_period", "eta", "store_state", "state_shapes")

# Arguments that belong elsewhere.
_ELSEWHERE = {
    "double_q": ", it is an argument of the algorithm: PERDQN(..., double_q=True)",
    "prioritized_replay": ": prioritized replay is what PERDQN does, leave it out",
    **dict.fromkeys(
        (*HER_ARGUMENTS, "n_sampled_goal", "goal_selection_strategy", "copy_info_dict"),
        ", it is one of PrioritizedHerReplayBuffer: replay_buffer_class=PrioritizedHerReplayBuffer",
    ),
    **dict.fromkeys(SEQUENCE_ARGUMENTS, ", it is one of PrioritizedSequenceReplayBuffer, which PERRecurrentDQN has"),
}


def hint(name: str, known: Collection[str]) -> str:
    """
    Say what a user may have meant by an unknown name.

    :param name: unknown name of an argument
    :param known: names of arguments
    :return: end of an error message that names the right argument, or its place; empty if no name is near
    """
    if name in _ELSEWHERE and name not in known:
        return _ELSEWHERE[name]
    meant = OTHER_NAMES.get(name) or next(iter(difflib.get_close_matches(name, sorted(known), n=1)), None)
    return "" if meant is None or meant == name else f": did you mean {meant!r}?"
