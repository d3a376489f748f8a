"""The tuner's search spaces are those of the page, and give settings that work."""

import re
import shlex
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("rl_zoo3", reason="needs the extra zoo")
import optuna
from rl_zoo3.hyperparams_opt import HYPERPARAMS_CONVERTER, HYPERPARAMS_SAMPLER

from sb3_per import LAP, PrioritizedReplayBuffer, PrioritizedSequenceReplayBuffer
from sb3_per.buffers.settings import BufferSettings, IgnoredSettingWarning
from sb3_per.sampling.schemes import SCHEMES, make_scheme
from sb3_per.zoo import ALGORITHMS, class_of, main, register
from sb3_per.zoo.registry import SEARCH_SPACES
from sb3_per.zoo.tuning import CHOICES, RANGES, join
from tests.helpers.buffers import ACTION_SPACES, OBSERVATION_SPACES, make_buffer
from tests.helpers.project import ROOT
from tests.helpers.zoo import RECURRENT, loaded, settings_of

# The buffers of these tests are smaller than recency_min.
pytestmark = pytest.mark.filterwarnings("ignore:recency=.* has no effect")

HINDSIGHT = dict(n_sampled_goal=4, goal_selection_strategy="future")


def new_study() -> optuna.Study:
    register()
    return optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))


def sampled(algo: str, trial: optuna.Trial, **of_file: Any) -> dict[str, Any]:
    """Draw the settings of the buffer in a trial."""
    arguments = {"using_her_replay_buffer": False, "her_kwargs": of_file}
    return HYPERPARAMS_SAMPLER[algo](trial, 1, 1, arguments)["replay_buffer_kwargs"]


def converted(algo: str, trial: optuna.Trial, **of_file: Any) -> dict[str, Any]:
    """Compute the same settings from the stored parameters of the trial."""
    return join(of_file, HYPERPARAMS_CONVERTER[algo](trial.params)["replay_buffer_kwargs"])


def buffer_of(algo: str, **kwargs: Any) -> PrioritizedReplayBuffer:
    """Make a small buffer of the kind that the algorithm uses."""
    if algo not in RECURRENT:
        return make_buffer(4, **kwargs)
    spaces_ = OBSERVATION_SPACES["box"], ACTION_SPACES["box"]
    return PrioritizedSequenceReplayBuffer(100, *spaces_, "cpu", sequence_length=4, burn_in=2, **kwargs)


def ranges_of_page() -> dict[str, str]:
    """Read the table of docs/command_line.md: what is tried, by name of the setting."""
    section = (ROOT / "docs" / "command_line.md").read_text().partition("## Tune")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| `")]
    return {name: tried.strip() for names, tried in rows for name in re.findall(r"`(\w+)`", names)}


def text_of(name: str, distribution: Any) -> tuple[str, str]:
    """Write the values that a trial draws from, as the page does."""
    if isinstance(distribution, optuna.distributions.CategoricalDistribution):
        return name, ", ".join(f"`{choice}`" for choice in distribution.choices)
    low, high = distribution.low, distribution.high
    suffix = ", logarithmic" if distribution.log else ""
    if name.endswith("_pow"):
        low, high, suffix = 2**low, 2**high, ", powers of 2"
    return name.removesuffix("_pow"), f"{low:g} to {high:g}{suffix}".replace("e-0", "e-")


def test_trials_draw_from_the_ranges_of_the_page():
    of_page = ranges_of_page()
    seen: dict[str, set[str]] = {}
    for algo in ALGORITHMS:
        study, of_stock = new_study(), new_study().ask()
        stock = algo.removeprefix("per_")
        HYPERPARAMS_SAMPLER[SEARCH_SPACES.get(stock, stock)](
            of_stock, 1, 1, {"using_her_replay_buffer": False, "her_kwargs": {}}
        )
        for _ in range(20):
            trial = study.ask()
            sampled(algo, trial)
            for name, distribution in trial.distributions.items():
                if name not in of_stock.distributions:  # which the Zoo draws
                    name, text = text_of(name, distribution)
                    seen.setdefault(name, set()).add(text)
    every = [f"`{name}`" for name in CHOICES["scheme"]]
    without_lap = [name for name in every if name != "`lap`"]
    assert seen.pop("scheme") == {", ".join(every), ", ".join(without_lap)}
    assert of_page.pop("scheme").startswith(f"{', '.join(every)}; no `lap` for `per_qrdqn`, `per_tqc` and recurrent")
    assert [of_page.pop(name) for name in HINDSIGHT] == ["as RL Zoo does"] * 2
    assert seen == {name: {text.partition(";")[0]} for name, text in of_page.items()}


def test_trials_tune_what_the_algorithm_and_the_scheme_use():
    """And nothing else: what the Zoo prints of the best trial are its parameters."""
    for algo in ALGORITHMS:
        cls = class_of(algo)
        schemes = set()
        study = new_study()
        for i in range(20):
            of_file = HINDSIGHT if i % 2 and algo not in RECURRENT else {}
            trial = study.ask()
            kwargs = sampled(algo, trial, **of_file, stratified=False)
            schemes.add(kwargs["scheme"])
            of_schemes = set(RANGES) - {"recency", "eta"}
            assert of_schemes.intersection(trial.params) == of_schemes - set(make_scheme(kwargs["scheme"]).unused_settings)
            assert ("actor_batch" in trial.params) == (algo not in RECURRENT and cls.has_actor)
            assert ("recency" in trial.params) == (algo not in RECURRENT and not of_file)
            assert ("eta" in trial.params) == (algo in RECURRENT)
            assert ("n_sampled_goal" in trial.params) == bool(of_file)
            assert not kwargs["stratified"]
            assert converted(algo, trial, **of_file, stratified=False) == kwargs
            if not of_file:
                with warnings.catch_warnings():
                    warnings.simplefilter("error", IgnoredSettingWarning)
                    buffer_of(algo, **kwargs)
        assert schemes == {
            name
            for name in CHOICES["scheme"]
            if not SCHEMES[name].replaces_loss or (cls.has_scalar_td_loss and algo not in RECURRENT)
        }


def test_settings_of_the_file_that_are_not_tuned_stay_if_the_scheme_uses_them():
    """Otherwise such a trial would end the study."""
    study = new_study()
    of_file = dict(alpha=0.33, beta_end=0.3, beta_anneal_steps=10, td_error_reduction="max", age_decay=1.0)
    for _ in range(20):
        trial = study.ask()
        kwargs = sampled("per_sac", trial, **of_file)
        buffer_of("per_sac", **kwargs)
        weighted = kwargs["scheme"] != "lap"
        assert kwargs["alpha"] == trial.params["alpha"] and kwargs["td_error_reduction"] == "max"
        assert ("beta_end" in kwargs) == ("beta_anneal_steps" in kwargs) == weighted
        assert not weighted or kwargs["beta_start"] == min(trial.params["beta_start"], 0.3)
        assert ("age_decay" in kwargs) == (kwargs["scheme"] != "rank") and "recency" not in kwargs


def test_draws_without_weights_stay_so():
    study = new_study()
    for _ in range(10):
        trial = study.ask()
        kwargs = sampled("per_sac", trial, beta=0)
        assert buffer_of("per_sac", **kwargs).settings.beta_end in (0, BufferSettings.beta_end)
        assert (kwargs.get("beta_start"), kwargs.get("beta_end")) == ((None, None) if kwargs["scheme"] == "lap" else (0, 0))


def test_tuning_refuses_a_scheme_object():
    trial = new_study().ask()
    with pytest.raises(ValueError, match=r"LAP\(.*kappa=0.3"):
        sampled("per_sac", trial, scheme=LAP(kappa=0.3))
    assert trial.params == {}


@pytest.mark.parametrize("algo", [a if a == "per_dqn" else pytest.param(a, marks=pytest.mark.slow) for a in ALGORITHMS])
def test_a_tuned_trial_can_be_trained_again(algo, zoo):
    """Settings that are not tuned keep the values of the file."""
    stored = ["--storage", "sqlite:///study.db", "--study-name", "study"]
    short = ["--n-trials", "2", "--sampler", "random", "--n-evaluations", "1", "--eval-episodes", "1", "--no-optim-plots"]
    steps = 150 if algo in RECURRENT else 60  # windows of up to 64 steps
    entry = settings_of(algo, n_timesteps=steps, learning_starts=steps - 40, replay_buffer_kwargs=dict(stratified=False))
    zoo("train", algo, "-optimize", *short, *stored, entry=entry)
    assert not list(Path("logs", algo).glob("*_1"))  # a search leaves no empty run
    study = optuna.load_study(study_name="study", storage="sqlite:///study.db")
    assert [trial.state for trial in study.trials] == [optuna.trial.TrialState.COMPLETE] * 2
    assert study.trials[0].params["alpha"] != study.trials[1].params["alpha"]
    for number in (0, 1):
        params = study.trials[number].params
        run = zoo("train", algo, *stored, "--trial-id", str(number), entry=entry)
        model = loaded(algo, run)
        assert model.replay_buffer.scheme.alpha == params["alpha"]
        assert model.gamma == 1 - params["one_minus_gamma"]
        assert model.replay_buffer_kwargs["scheme"] == params["scheme"]
        assert not model.replay_buffer_kwargs["stratified"]
        (config,) = run.glob("*/config.yml")
        assert dict(yaml.unsafe_load(config.read_text()))["replay_buffer_kwargs"] == model.replay_buffer_kwargs
        if algo in RECURRENT:
            length = 2 ** params["sequence_length_pow"]
            assert (model.sequence_length, model.burn_in) == (length, params["burn_in"])
            assert model.batch_size == max(2 ** params["batch_size_pow"] // length, 1)
            assert model.policy.state_shapes[0] == (1, 2 ** params["lstm_hidden_size_pow"])


def test_a_search_ends_with_the_command_that_trains_with_its_best_trial(zoo, capsys):
    entry = settings_of("per_dqn", n_timesteps=60, learning_starts=20)
    Path("own.yml").write_text(yaml.safe_dump({"CartPole-v1": entry}))
    short = ["-conf", "own.yml", "-params", "gamma:0.9", "--n-trials", "2", "--n-evaluations", "1", "--no-optim-plots"]
    zoo("tune", "per_dqn", *short, "-n", "40")
    _, _, command = (
        capsys.readouterr().out.splitlines()[-1].partition("Next, train with the best trial: python -m sb3_per.zoo ")
    )
    assert not {"-n", "--n-trials", "--n-evaluations"} & set(shlex.split(command))  # they belong to the search
    main([*shlex.split(command), "--eval-freq", "-1"])
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend("logs/per_dqn/tune.log"))
    best = optuna.load_study(study_name=None, storage=storage).best_trial
    model = loaded("per_dqn", Path("logs", "per_dqn", "CartPole-v1_1"))
    assert model.num_timesteps >= 60
    assert model.gamma == 0.9  # the command line wins over the trial
    assert model.learning_rate(1.0) == best.params["learning_rate"]
    assert model.replay_buffer.scheme.alpha == best.params["alpha"]
