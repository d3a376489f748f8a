"""
What Optuna tries for the prioritized algorithms: what RL Zoo tries for their stock classes, the settings of the buffer, and
where there is a memory, its own.

The Zoo knows a trial by its parameters alone, and puts the converted ones in place of whole entries of the hyperparameter
file. So that nothing of ``replay_buffer_kwargs`` is lost, what is not tuned travels in the name of a parameter: as a choice it
would be another set of choices once the file has changed, and Optuna refuses to continue a study then.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any

from rl_zoo3.hyperparams_opt import HYPERPARAMS_SAMPLER, convert_offpolicy_params

from sb3_per.sampling.schemes import PriorityScheme

# The stock class whose search space the Zoo has; it has none for CrossQ, which is SAC without target networks.
_STOCK = {"per_crossq": "sac"}

# Parameters of a trial that belong into `replay_buffer_kwargs`; those from epsilon on are tuned unless the file has them. Not
# `unique`: a batch that is larger than what is stored at first, as many that the Zoo tries, would end the trial.
_BUFFER_SETTINGS = ("scheme", "alpha", "beta_start", "n_sampled_goal", "goal_selection_strategy")
_FURTHER_SETTINGS = (
    "epsilon",
    "kappa",
    "uniform_fraction",
    "weight_normalization",
    "actor_batch",
    "initial_priority",
    "max_priority_interval",
    "recency",
    "eta",
)
# Of them, those that only some schemes have a use for.
_USES = {
    "epsilon": ("proportional",),
    "kappa": ("lap",),
    "weight_normalization": ("proportional", "rank"),
    "initial_priority": ("proportional", "lap"),
    "max_priority_interval": ("proportional", "lap"),
}
_KEPT = "kept_replay_buffer_kwargs="

# Parameters of a trial of an algorithm with memory, which are turned into settings in `_remember`.
_MEMORY = ("sequence_length_pow", "burn_in", "lstm_hidden_size_pow")

# What only a buffer with hindsight has.
_HINDSIGHT = {"n_sampled_goal", "goal_selection_strategy", "copy_info_dict", "update_from_virtual"}


def sample(algo: str, trial: Any, n_actions: int, n_envs: int, additional_args: dict[str, Any]) -> dict[str, Any]:
    """
    :param algo: name of a prioritized algorithm
    :param trial: trial of Optuna
    :param n_actions: dimensions of the action space
    :param n_envs: number of environments
    :param additional_args: the Zoo's; ``"her_kwargs"`` are the ``replay_buffer_kwargs`` of the hyperparameter file
    :return: hyperparameters
    :raises ValueError: for a scheme object in the hyperparameter file, which brings its own settings
    :raises TypeError: for other settings of the buffer that cannot be written as JSON
    """
    if isinstance(additional_args["her_kwargs"].get("scheme"), PriorityScheme):
        raise ValueError(f"Tuning chooses among named schemes, and cannot replace {additional_args['her_kwargs']['scheme']}")
    # Values of the file that the trial does not replace; LAP's kappa, for one, belongs to the environment.
    kept = {name: value for name, value in additional_args["her_kwargs"].items() if name not in _BUFFER_SETTINGS}
    written = json.dumps(kept, sort_keys=True)
    trial.suggest_categorical(_KEPT + written, [True])
    kept = json.loads(written)  # as it comes back from the trial
    # LAP replaces the loss of a scalar TD error, which quantile regression does not have, and sequences refuse.
    takes_lap = algo not in ("per_qrdqn", "per_tqc") and not _has_memory(algo)
    schemes = ["proportional", "rank", "lap"] if takes_lap else ["proportional", "rank"]
    tuned = {
        "scheme": trial.suggest_categorical("scheme", schemes),
        "alpha": trial.suggest_float("alpha", 0.2, 0.9),
        "beta_start": trial.suggest_float("beta_start", 0.2, 1.0),
    }
    is_hindsight = not _HINDSIGHT.isdisjoint(additional_args["her_kwargs"])
    tuned.update(_further(algo, trial, is_hindsight, kept))
    # The Zoo recognises SB3's own class only.
    additional_args["using_her_replay_buffer"] = is_hindsight
    stock = _STOCK.get(algo, algo.removeprefix("per_").removesuffix("_lstm"))
    hyperparams = HYPERPARAMS_SAMPLER[stock](trial, n_actions, n_envs, additional_args)
    if _has_memory(algo):
        sizes = (trial.suggest_int(name, *limits) for name, limits in zip(_MEMORY, ((3, 6), (0, 40), (5, 8)), strict=True))
        hyperparams = _remember(hyperparams, dict(zip(_MEMORY, sizes, strict=True)))
    goals = hyperparams.pop("replay_buffer_kwargs", {})
    return _hyperparams(algo, hyperparams, {**goals, **kept, **tuned}, tuned)


def _further(algo: str, trial: Any, is_hindsight: bool, kept: dict[str, Any]) -> dict[str, Any]:
    """
    :param algo: name of a prioritized algorithm
    :param trial: trial of Optuna; every range is the same in all trials
    :param is_hindsight: whether the buffer has hindsight
    :param kept: settings of the file, which are not tuned
    :return: settings of the draw, of the weights and of the priorities
    """
    choices: dict[str, Callable[[str], Any]] = {
        "epsilon": lambda name: trial.suggest_float(name, 1e-6, 0.1, log=True),
        "kappa": lambda name: trial.suggest_categorical(name, [1.0, "auto"]),
        "uniform_fraction": lambda name: trial.suggest_float(name, 0.0, 0.5),
        "weight_normalization": lambda name: trial.suggest_categorical(name, ["max", "mean", "none"]),
        "actor_batch": lambda name: trial.suggest_categorical(name, ["prioritized", "weighted", "uniform"]),
        "initial_priority": lambda name: trial.suggest_categorical(name, ["max", "mean"]),  # no actor knows TD errors here
        "max_priority_interval": lambda name: trial.suggest_categorical(name, [None, 250]),
        "recency": lambda name: trial.suggest_float(name, 0.995, 1.0),
        "eta": lambda name: trial.suggest_float(name, 0.0, 1.0),
    }
    if "dqn" in algo:
        del choices["actor_batch"]
    if is_hindsight or _has_memory(algo):
        del choices["recency"]
    if not _has_memory(algo):
        del choices["eta"]
    elif "actor_batch" in choices:
        choices["actor_batch"] = lambda name: trial.suggest_categorical(name, ["prioritized", "weighted"])
    return {name: choose(name) for name, choose in choices.items() if name not in kept}


def convert(algo: str, params: dict[str, Any]) -> dict[str, Any]:
    """
    :param algo: name of a prioritized algorithm
    :param params: parameters of a finished trial
    :return: hyperparameters, as :func:`sample` gave them
    """
    params = dict(params)
    kept: dict[str, Any] = {}
    for name in [name for name in params if name.startswith(_KEPT)]:
        del params[name]
        kept = json.loads(name.removeprefix(_KEPT))
    settings = {name: params.pop(name) for name in (*_BUFFER_SETTINGS, *_FURTHER_SETTINGS) if name in params}
    sizes = {name: params.pop(name) for name in _MEMORY if name in params}
    if params.get("noise_type", "none") is None:
        # The Zoo would hand them to the constructor.
        del params["noise_type"], params["noise_std"]
    hyperparams = convert_offpolicy_params(params)
    return _hyperparams(algo, _remember(hyperparams, sizes) if sizes else hyperparams, {**kept, **settings}, settings)


def _has_memory(algo: str) -> bool:
    return algo.endswith("_lstm")


def _remember(hyperparams: dict[str, Any], sizes: dict[str, int]) -> dict[str, Any]:
    """
    :param hyperparams: of the algorithm without memory
    :param sizes: by their names in a trial
    :return: those with memory; a batch has about as many steps as transitions without
    """
    length, burn_in, hidden_size = 2 ** sizes["sequence_length_pow"], sizes["burn_in"], 2 ** sizes["lstm_hidden_size_pow"]
    return {
        **hyperparams,
        "batch_size": max(hyperparams["batch_size"] // length, 1),
        "sequence_length": length,
        "burn_in": burn_in,
        "policy_kwargs": {**hyperparams["policy_kwargs"], "lstm_hidden_size": hidden_size},
    }


def _hyperparams(
    algo: str, hyperparams: dict[str, Any], buffer_kwargs: dict[str, Any], tuned: Iterable[str]
) -> dict[str, Any]:
    """
    :param algo: name of a prioritized algorithm
    :param hyperparams: of the stock algorithm
    :param buffer_kwargs: settings of the buffer, tuned ones and those of the file
    :param tuned: names of those that were tuned; what the scheme has no use for is left out
    :return: hyperparameters that the algorithm takes
    """
    scheme = buffer_kwargs.get("scheme", "proportional")
    buffer_kwargs = {k: v for k, v in buffer_kwargs.items() if k not in tuned or scheme in _USES.get(k, (scheme,))}
    if "beta_end" in buffer_kwargs and "beta_start" in buffer_kwargs:
        # Beta never decreases. Its range is the same in all trials, whatever the file says of its end.
        buffer_kwargs = {**buffer_kwargs, "beta_start": min(buffer_kwargs["beta_start"], buffer_kwargs["beta_end"])}
    # CrossQ has no target network to average over.
    known = {name: value for name, value in hyperparams.items() if not (algo == "per_crossq" and name == "tau")}
    return {**known, "replay_buffer_kwargs": buffer_kwargs}
