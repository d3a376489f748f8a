"""
Search spaces for Optuna: what RL Zoo tries for the stock classes, settings of the buffer, and sizes of recurrent agents.

The Zoo puts the result of a trial in place of whole entries of the hyperparameter file. :func:`join` keeps those settings of
``replay_buffer_kwargs`` that are not tuned.
"""

from collections.abc import Callable
from typing import Any

from rl_zoo3.hyperparams_opt import HYPERPARAMS_SAMPLER, convert_offpolicy_params

from sb3_per.buffers.settings import ignored
from sb3_per.sampling.schemes import PriorityScheme
from sb3_per.zoo.names import uses_sbx

# The stock class whose search space is used. The Zoo has none for CrossQ, which is SAC without target networks.
_STOCK = {"crossq": "sac"}

# Settings of the buffer that every trial tunes, also those that the file names.
_ALWAYS = ("scheme", "alpha", "beta_start", "n_sampled_goal", "goal_selection_strategy")

# Parameters of a trial of a recurrent algorithm, with their ranges. `_adapted` turns them into arguments.
_SIZES = {"sequence_length_pow": (3, 6), "burn_in": (0, 40), "lstm_hidden_size_pow": (5, 8)}

# Settings that only a buffer with hindsight has.
_HINDSIGHT = {"n_sampled_goal", "goal_selection_strategy", "copy_info_dict", "update_from_virtual"}


def sample(algo: str, trial: Any, n_actions: int, n_envs: int, additional_args: dict[str, Any]) -> dict[str, Any]:
    """
    Choose hyperparameters for a trial.

    :param algo: name of a prioritized algorithm
    :param trial: trial of Optuna
    :param n_actions: number of dimensions of the action space
    :param n_envs: number of environments
    :param additional_args: the Zoo's; ``"her_kwargs"`` holds the ``replay_buffer_kwargs`` of the hyperparameter file
    :return: hyperparameters
    :raises ValueError: for a scheme object in the hyperparameter file, because it brings its own settings
    """
    of_file = additional_args["her_kwargs"]
    if isinstance(of_file.get("scheme"), PriorityScheme):
        raise ValueError(f"Tuning chooses among named schemes and cannot replace {of_file['scheme']}: name a scheme instead")
    has_hindsight = not _HINDSIGHT.isdisjoint(of_file)
    choices = _choices(algo, trial, has_hindsight)
    tuned: dict[str, Any] = {}
    for name, choose in choices.items():  # the scheme first
        is_tuned = name in _ALWAYS or name not in of_file
        if is_tuned and (name == "scheme" or _has_effect(name, tuned["scheme"])):
            tuned[name] = choose(name)
    # The Zoo sets this only for SB3's own class.
    additional_args["using_her_replay_buffer"] = has_hindsight
    stock = algo.removeprefix("sbx_").removeprefix("per_").removesuffix("_lstm")
    hyperparams = HYPERPARAMS_SAMPLER[_STOCK.get(stock, stock)](trial, n_actions, n_envs, additional_args)
    sizes = {name: trial.suggest_int(name, *limits) for name, limits in _SIZES.items() if _is_recurrent(algo)}
    goals = {k: v for k, v in hyperparams.pop("replay_buffer_kwargs", {}).items() if k in _ALWAYS}
    return _adapted(algo, hyperparams, sizes, join(of_file, {**goals, **tuned}))


def _choices(algo: str, trial: Any, has_hindsight: bool) -> dict[str, Callable[[str], Any]]:
    """
    List the settings that are tuned. Not ``unique``: a batch can be larger than what is stored.

    :param algo: name of a prioritized algorithm
    :param trial: trial of Optuna; every range is the same in all trials
    :param has_hindsight: whether the buffer has hindsight
    :return: function that chooses a value, by name of the setting
    """
    is_recurrent = _is_recurrent(algo)
    # Quantile regression has no scalar TD loss that LAP could replace, and sequences refuse LAP.
    schemes = ["proportional", "rank", *([] if is_recurrent or algo.endswith(("qrdqn", "tqc")) else ["lap"])]
    choices: dict[str, Callable[[str], Any]] = {
        "scheme": lambda name: trial.suggest_categorical(name, schemes),
        "alpha": lambda name: trial.suggest_float(name, 0.2, 0.9),
        "beta_start": lambda name: trial.suggest_float(name, 0.2, 1.0),
        "epsilon": lambda name: trial.suggest_float(name, 1e-6, 0.1, log=True),
        "kappa": lambda name: trial.suggest_float(name, 0.01, 1.0, log=True),
        "uniform_fraction": lambda name: trial.suggest_float(name, 0.0, 0.5),
        "weight_normalization": lambda name: trial.suggest_categorical(name, ["max", "mean", "none"]),
        "initial_priority": lambda name: trial.suggest_categorical(name, ["max", "mean"]),  # "td_error" needs actors
        "max_priority_interval": lambda name: trial.suggest_categorical(name, [None, 250]),
    }
    if "dqn" not in algo:
        batches = ["prioritized", *([] if uses_sbx(algo) else ["weighted"]), *([] if is_recurrent else ["uniform"])]
        choices["actor_batch"] = lambda name: trial.suggest_categorical(name, batches)
    if is_recurrent:
        choices["eta"] = lambda name: trial.suggest_float(name, 0.0, 1.0)
    elif not has_hindsight:
        choices["recency"] = lambda name: trial.suggest_float(name, 0.995, 1.0)
    return choices


def convert(algo: str, params: dict[str, Any]) -> dict[str, Any]:
    """
    Turn the parameters of a finished trial into hyperparameters.

    :param algo: name of a prioritized algorithm
    :param params: parameters of the trial
    :return: hyperparameters; their ``replay_buffer_kwargs`` are the tuned settings alone
    """
    others = (
        "epsilon kappa uniform_fraction weight_normalization initial_priority max_priority_interval actor_batch recency eta"
    )
    names = {*_ALWAYS, *others.split()}
    tuned = {name: value for name, value in params.items() if name in names}
    sizes = {name: value for name, value in params.items() if name in _SIZES}
    # The Zoo would pass a noise of type None to the constructor.
    no_noise = ("noise_type", "noise_std") if params.get("noise_type", "none") is None else ()
    of_zoo = {name: value for name, value in params.items() if name not in {*names, *sizes, *no_noise}}
    return _adapted(algo, convert_offpolicy_params(of_zoo), sizes, tuned)


def join(of_file: dict[str, Any], tuned: dict[str, Any]) -> dict[str, Any]:
    """
    Join the settings of the buffer. Left out is what the scheme of the trial ignores or refuses.

    :param of_file: ``replay_buffer_kwargs`` of the hyperparameter file
    :param tuned: settings of a trial
    :return: ``replay_buffer_kwargs``
    """
    scheme = tuned["scheme"]
    kept = {name: value for name, value in of_file.items() if name not in _ALWAYS}
    joined = {name: value for name, value in {**kept, **tuned}.items() if _has_effect(name, scheme)}
    if "beta_end" in joined:
        # Beta never decreases. Its range is the same in all trials, whatever the file says of its end.
        joined["beta_start"] = min(joined["beta_start"], joined["beta_end"])
    return joined


def _has_effect(name: str, scheme: str) -> bool:
    """Say whether a scheme uses a setting. Ranks have no mean for a first priority."""
    return ignored(scheme, name) is None and not (scheme == "rank" and name == "initial_priority")


def _is_recurrent(algo: str) -> bool:
    return algo.endswith("_lstm")


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
        hyperparams.update(sequence_length=length, burn_in=sizes["burn_in"])
        hyperparams["batch_size"] = max(hyperparams["batch_size"] // length, 1)
        lstm = {"lstm_hidden_size": 2 ** sizes["lstm_hidden_size_pow"]}
        hyperparams["policy_kwargs"] = {**hyperparams["policy_kwargs"], **lstm}
    return hyperparams
