"""
Search spaces for Optuna: what RL Zoo tries for the stock classes, settings of the buffer, and sizes of recurrent agents.

The Zoo puts the result of a trial in place of whole entries of the hyperparameter file. :func:`join` keeps those settings of
``replay_buffer_kwargs`` that are not tuned.
"""

from typing import Any, NamedTuple

from sb3_per.algorithms.recurrent.mixin import RecurrentMixin
from sb3_per.buffers.settings import with_both_betas
from sb3_per.sampling.schemes import SCHEMES, PriorityScheme, make_scheme
from sb3_per.zoo import upstream


class Range(NamedTuple):
    """
    Values that trials try, both ends included.

    :param low: the smallest
    :param high: the largest
    :param log: whether the logarithm is drawn uniformly
    """

    low: float
    high: float
    log: bool = False


#: Settings of the buffer, which replace those of the file. docs/command_line.md has the same table.
RANGES = {
    "alpha": Range(0.2, 0.9),
    "beta_start": Range(0.2, 1.0),
    "epsilon": Range(1e-6, 0.1, log=True),
    "kappa": Range(0.01, 1.0, log=True),
    "recency": Range(0.995, 1.0),
    "eta": Range(0.0, 1.0),
}

#: Settings of the buffer that are words. Quantile regression and recurrent agents refuse LAP.
CHOICES = {"scheme": ("proportional", "rank", "lap"), "actor_batch": ("prioritized", "uniform")}

#: Sizes of recurrent agents by their names in a trial. Of those that end in ``_pow``, powers of 2 are taken.
SIZES = {"sequence_length_pow": (3, 6), "burn_in": (0, 40), "lstm_hidden_size_pow": (5, 8)}

# Settings that only a buffer with hindsight has. The Zoo tunes the first two.
_TUNED_BY_ZOO = ("n_sampled_goal", "goal_selection_strategy")
_HINDSIGHT = {*_TUNED_BY_ZOO, "copy_info_dict", "update_from_virtual"}


def sample(
    algo: str, cls: Any, space: str, trial: Any, n_actions: int, n_envs: int, additional_args: dict[str, Any]
) -> dict[str, Any]:
    """
    Choose hyperparameters for a trial.

    :param algo: name of a prioritized algorithm
    :param cls: its class
    :param space: name of the stock algorithm whose search space is used
    :param trial: trial of Optuna
    :param n_actions: number of dimensions of the action space
    :param n_envs: number of environments
    :param additional_args: the Zoo's
    :return: hyperparameters
    :raises ValueError: for a scheme object in the hyperparameter file, because it brings its own settings
    """
    file_kwargs = upstream.buffer_settings_of(additional_args)
    if isinstance(file_kwargs.get("scheme"), PriorityScheme):
        raise ValueError(
            f"Tuning chooses among named schemes and cannot replace {file_kwargs['scheme']}: name a scheme instead"
        )
    has_hindsight = not _HINDSIGHT.isdisjoint(file_kwargs)
    is_recurrent = issubclass(cls, RecurrentMixin)
    takes_lap = cls.has_scalar_td_loss and not is_recurrent
    schemes = [name for name in CHOICES["scheme"] if takes_lap or not SCHEMES[name].replaces_loss]
    scheme = trial.suggest_categorical("scheme", schemes)
    tuned = {"scheme": scheme}
    for name in _tuned_with(scheme, is_recurrent, has_hindsight, file_kwargs):
        tuned[name] = trial.suggest_float(name, RANGES[name].low, RANGES[name].high, log=RANGES[name].log)
    if cls.has_actor and not is_recurrent:
        tuned["actor_batch"] = trial.suggest_categorical("actor_batch", CHOICES["actor_batch"])
    hyperparams = upstream.sample_stock(space, trial, n_actions, n_envs, additional_args, has_hindsight)
    goals = hyperparams.pop("replay_buffer_kwargs", {})
    for name in _TUNED_BY_ZOO:
        if name in goals:
            tuned[name] = goals[name]
    sizes = {name: trial.suggest_int(name, *limits) for name, limits in SIZES.items() if is_recurrent}
    return _adapted(algo, hyperparams, sizes, join(file_kwargs, tuned))


def _tuned_with(scheme: str, is_recurrent: bool, has_hindsight: bool, file_kwargs: dict[str, Any]) -> list[str]:
    """Name the settings that are tuned with a scheme. Not ``unique``: a batch can be larger than what is stored."""
    unused = set(make_scheme(scheme).unused_settings)
    if not is_recurrent:
        unused.add("eta")
    # `recency` and `age_decay` both favour recent transitions, and the buffer takes one.
    if is_recurrent or has_hindsight or "age_decay" in file_kwargs:
        unused.add("recency")
    return [name for name in RANGES if name not in unused]


def convert(algo: str, params: dict[str, Any]) -> dict[str, Any]:
    """
    Turn the parameters of a finished trial into hyperparameters.

    :param algo: name of a prioritized algorithm
    :param params: parameters of the trial
    :return: hyperparameters; their ``replay_buffer_kwargs`` are the tuned settings alone
    """
    tuned = {name: value for name, value in params.items() if name in (*RANGES, *CHOICES, *_TUNED_BY_ZOO)}
    sizes = {name: value for name, value in params.items() if name in SIZES}
    zoo_params = {name: value for name, value in params.items() if name not in tuned and name not in sizes}
    if "noise_type" in zoo_params and zoo_params["noise_type"] is None:
        # The Zoo would pass them to the constructor.
        del zoo_params["noise_type"]
        del zoo_params["noise_std"]
    return _adapted(algo, upstream.convert_offpolicy_params(zoo_params), sizes, tuned)


def join(file_kwargs: dict[str, Any], tuned: dict[str, Any]) -> dict[str, Any]:
    """
    Join the settings of the buffer. Left out is what the scheme of the trial ignores or refuses.

    :param file_kwargs: ``replay_buffer_kwargs`` of the hyperparameter file
    :param tuned: settings of a trial
    :return: ``replay_buffer_kwargs``
    """
    scheme = tuned["scheme"]
    kept = {name: value for name, value in with_both_betas(file_kwargs).items() if name not in (*RANGES, *CHOICES)}
    unused = make_scheme(scheme).unused_settings
    joined = {name: value for name, value in {**kept, **tuned}.items() if name not in unused}
    if SCHEMES[scheme]().ranks_priorities:
        joined.pop("age_decay", None)  # refused with ranks
    if "beta_end" in joined:
        # Beta never decreases. Its range is the same in all trials, whatever the file says of its end.
        joined["beta_start"] = min(joined["beta_start"], joined["beta_end"])
    return joined


def _adapted(algo: str, hyperparams: dict[str, Any], sizes: dict[str, int], settings: dict[str, Any]) -> dict[str, Any]:
    """
    Adapt the hyperparameters of a stock algorithm.

    :param algo: name of a prioritized algorithm
    :param hyperparams: hyperparameters of the stock algorithm
    :param sizes: sizes of a recurrent agent by their names in a trial; empty for others
    :param settings: settings of the buffer
    :return: hyperparameters; a batch of windows has about as many steps as one of transitions
    """
    hyperparams = {**hyperparams, "replay_buffer_kwargs": settings}
    if algo.endswith("crossq"):
        del hyperparams["tau"]  # CrossQ has no target network to average over
    if sizes:
        length = 2 ** sizes["sequence_length_pow"]
        hyperparams["sequence_length"] = length
        hyperparams["burn_in"] = sizes["burn_in"]
        hyperparams["batch_size"] = max(hyperparams["batch_size"] // length, 1)
        lstm = {"lstm_hidden_size": 2 ** sizes["lstm_hidden_size_pow"]}
        hyperparams["policy_kwargs"] = {**hyperparams["policy_kwargs"], **lstm}
    return hyperparams
