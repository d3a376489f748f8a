"""The tuner's search spaces for the prioritized algorithms give settings that work."""

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
from sb3_per.buffers.settings import SEQUENCE_ARGUMENTS, IgnoredSettingWarning, PrioritySettings
from sb3_per.zoo import ALGORITHMS, main, register
from sb3_per.zoo.runs import RunManager
from sb3_per.zoo.tuning import join
from tests.utils import ACTION_SPACES, OBSERVATION_SPACES, ROOT, make_buffer
from tests.zoo.test_scripts import DISCRETE, RECURRENT, error_of, loaded, settings_of, zoo

__all__ = ["zoo"]  # a fixture


def buffer_of(algo: str, **kwargs: Any) -> PrioritizedReplayBuffer:
    """Make a small buffer of the kind that the algorithm uses."""
    if algo not in RECURRENT:
        return make_buffer(4, **kwargs)
    spaces_ = OBSERVATION_SPACES["box"], ACTION_SPACES["box"]
    return PrioritizedSequenceReplayBuffer(100, *spaces_, "cpu", sequence_length=4, burn_in=2, **kwargs)


def study_of() -> optuna.Study:
    register()
    return optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))


def sampled(algo: str, trial: optuna.Trial, **of_file: Any) -> dict[str, Any]:
    """Draw the settings of the buffer in a trial."""
    arguments = {"using_her_replay_buffer": False, "her_kwargs": of_file}
    return HYPERPARAMS_SAMPLER[algo](trial, 1, 1, arguments)["replay_buffer_kwargs"]


def converted(algo: str, trial: optuna.Trial, **of_file: Any) -> dict[str, Any]:
    """Compute the same settings from the stored parameters of the trial."""
    assert all(isinstance(value, (str, int, float, type(None))) for value in trial.params.values())
    return join(of_file, HYPERPARAMS_CONVERTER[algo](trial.params)["replay_buffer_kwargs"])


@pytest.mark.parametrize(
    "algo",
    [algo if algo in ("per_dqn_lstm",) else pytest.param(algo, marks=pytest.mark.slow) for algo in ALGORITHMS],
)
def test_a_tuned_trial_can_be_trained_again(algo, zoo):
    """Settings that are not tuned keep the values of the file."""
    stored = ["--storage", "sqlite:///study.db", "--study-name", "study"]
    tuning = ["-optimize", "--n-trials", "2", "--sampler", "random", "--n-evaluations", "1", "--eval-episodes", "1"]
    kept = dict(weight_normalization="mean") if algo in RECURRENT else dict(uniform_fraction=0.1)
    steps = 150 if algo in RECURRENT else 60  # windows of up to 64 steps
    entry = settings_of(algo, n_timesteps=steps, learning_starts=steps - 40, replay_buffer_kwargs=dict(alpha=0.33, **kept))
    zoo("train", algo, *tuning, "--no-optim-plots", *stored, entry=entry)
    study = optuna.load_study(study_name="study", storage="sqlite:///study.db")
    assert len(study.trials) == 2
    assert all(trial.state == optuna.trial.TrialState.COMPLETE for trial in study.trials)
    for trial in study.trials:
        assert {"alpha", "scheme", "learning_rate"} <= set(trial.params)
    assert study.trials[0].params["alpha"] != study.trials[1].params["alpha"]

    params = study.trials[1].params
    run = zoo("train", algo, *stored, "--trial-id", "1", entry=entry)
    model = loaded(algo, run)
    buffer = model.replay_buffer
    assert type(buffer.scheme).__name__.lower().startswith(params["scheme"])
    assert buffer.scheme.alpha == params["alpha"]
    if buffer.scheme.importance_sampling:
        assert buffer.settings.beta_start == params["beta_start"]
    assert model.replay_buffer_kwargs.items() >= kept.items()
    (config,) = run.glob("*/config.yml")
    assert dict(yaml.unsafe_load(config.read_text()))["replay_buffer_kwargs"] == model.replay_buffer_kwargs
    assert model.gamma == 1 - params["one_minus_gamma"]
    if algo in RECURRENT:
        length = 2 ** params["sequence_length_pow"]
        assert (model.sequence_length, model.burn_in, buffer.eta) == (length, params["burn_in"], params["eta"])
        assert model.batch_size == max(2 ** params["batch_size_pow"] // length, 1)
        assert model.policy.state_shapes[0] == (1, 2 ** params["lstm_hidden_size_pow"])


def test_a_search_ends_with_the_command_that_trains_with_its_best_trial(zoo, capsys):
    """The Zoo alone takes trial 0 for none, and has no name for a study without a storage."""
    entry = settings_of("per_dqn", n_timesteps=60, learning_starts=20)
    Path("own.yml").write_text(yaml.safe_dump({"CartPole-v1": entry}))
    short = ["-conf", "own.yml", "-params", "gamma:0.9", "--n-trials", "1", "--n-evaluations", "1", "--no-optim-plots"]
    zoo("tune", "per_dqn", *short)
    *_, title, command = capsys.readouterr().out.splitlines()
    assert title == "Train with the best trial:"
    words = shlex.split(command)
    assert words[:4] == ["python", "-m", "sb3_per.zoo", "train"] and words[words.index("--trial-id") + 1] == "0"
    main([*words[3:], "--eval-freq", "-1"])
    (study_path,) = Path("logs", "per_dqn").glob("tune.log")
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(study_path)))
    (trial,) = optuna.load_study(study_name=None, storage=storage).trials
    model = loaded("per_dqn", Path("logs", "per_dqn", "CartPole-v1_2"))  # the search has made the first folder
    assert model.gamma == 0.9  # the command line wins over the trial
    assert model.learning_rate(1.0) == trial.params["learning_rate"]
    assert model.replay_buffer.scheme.alpha == trial.params["alpha"]


def test_a_search_without_a_finished_trial_is_one_line(zoo, capsys, monkeypatch):
    def prune(*_: Any) -> None:
        raise optuna.exceptions.TrialPruned

    monkeypatch.setattr(RunManager, "objective", prune)
    with pytest.raises(SystemExit) as ended:
        zoo("tune", "per_dqn", "--n-trials", "1", "--no-optim-plots", "-n", "50")
    assert ended.value.code == 1
    assert "tune: no trial has come to its end" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--trial-id 3", "--trial-id 3 needs the study of the trial: --storage PATH and --study-name NAME"),
        (
            "--trial-id 3 --storage none.log --study-name some",
            "there is no --trial-id 3 of --study-name some",
        ),
        ("--resume -optimize", "--resume continues a run, not a search"),
    ],
)
def test_a_trial_that_does_not_exist_is_one_line(options, said, zoo, capsys):
    assert said in error_of(capsys, zoo, "train", "per_dqn", *options.split())


def test_tuning_tries_only_settings_that_the_algorithm_accepts():
    for algo in ("per_qrdqn", "per_tqc", *RECURRENT):
        study = study_of()
        trials = [sampled(algo, study.ask()) for _ in range(30)]
        assert {trial["scheme"] for trial in trials} == {"proportional", "rank"}
        assert ("uniform" in {trial.get("actor_batch") for trial in trials}) == (algo == "per_tqc")


def test_settings_of_hindsight_are_tuned_if_the_file_uses_hindsight():
    for of_file in (
        dict(goal_selection_strategy="future", n_sampled_goal=4, stratified=False),
        dict(update_from_virtual=False),
    ):
        trial = study_of().ask()
        tried = sampled("per_sac", trial, **of_file)
        assert {"goal_selection_strategy", "n_sampled_goal", "alpha", "beta_start", "scheme"} <= set(tried)
        assert "recency" not in tried
        kept = {k: v for k, v in of_file.items() if k not in ("n_sampled_goal", "goal_selection_strategy")}
        assert tried.items() >= kept.items()
        assert converted("per_sac", trial, **of_file) == tried


def test_a_study_continues_with_a_changed_file():
    """Every trial gives a valid buffer, whatever the file sets for beta."""
    for algo in ALGORITHMS:
        study = study_of()
        files = [
            dict(beta_start=0, beta_end=0),
            dict(beta_end=0.3, epsilon=0.01),
            {},
            dict(beta_start=0.9),
            dict(beta_end=0.3),
        ]
        for of_file in files:
            trial = study.ask()
            kwargs = sampled(algo, trial, **of_file)
            made = buffer_of(algo, **kwargs)
            if made.scheme.importance_sampling:
                assert made.settings.beta_end == of_file.get("beta_end", 1.0)
                assert kwargs["beta_start"] <= of_file.get("beta_end", 1.0)
            if "epsilon" in of_file and kwargs["scheme"] == "proportional":
                assert kwargs["epsilon"] == of_file["epsilon"]
            assert converted(algo, trial, **of_file) == kwargs
            study.tell(trial, 1.0)


def test_every_setting_is_tuned_if_it_has_an_effect():
    for algo in ALGORITHMS:
        study = study_of()
        seen: set[str] = set()
        for _ in range(40):
            kwargs = sampled(algo, study.ask(), unique=True)
            assert kwargs["unique"]
            buffer = buffer_of(algo, **kwargs)
            assert all(getattr(buffer.settings, name, value) == value for name, value in kwargs.items() if name != "scheme")
            seen |= kwargs.keys()
        assert {"uniform_fraction", "weight_normalization", "initial_priority", "max_priority_interval", "epsilon"} <= seen
        assert ("actor_batch" in seen) == (algo not in DISCRETE)
        assert ("kappa" in seen) == (algo not in ("per_qrdqn", "per_tqc", *RECURRENT))
        assert ("recency" in seen) == (algo not in RECURRENT)
        assert ("eta" in seen) == (algo in RECURRENT)


def test_settings_of_the_file_that_the_scheme_of_a_trial_refuses_are_left_out():
    """Otherwise such a trial would end the study."""
    of_file = dict(weight_normalization="mean", initial_priority="mean", max_priority_interval=250)
    study, kept = study_of(), {}
    for _ in range(20):
        kwargs = sampled("per_sac", study.ask(), **of_file)
        kept[kwargs["scheme"]] = {name for name in of_file if name in kwargs}
        buffer_of("per_sac", **kwargs)
    assert kept == {
        "proportional": set(of_file),
        "rank": {"weight_normalization"},
        "lap": {"initial_priority", "max_priority_interval"},
    }


def test_a_trial_has_no_setting_that_its_scheme_ignores():
    """A trial of LAP has no beta_start, which the user has not asked for."""
    study, schemes = study_of(), set()
    for _ in range(30):
        trial = study.ask()
        kwargs = sampled("per_sac", trial)
        schemes.add(kwargs["scheme"])
        # What the Zoo prints of the best trial are its parameters.
        assert ("epsilon" in trial.params) == (kwargs["scheme"] == "proportional")
        assert ("kappa" in trial.params) == (kwargs["scheme"] == "lap")
        assert ("beta_start" in trial.params) == (kwargs["scheme"] != "lap")
        with warnings.catch_warnings():
            warnings.simplefilter("error", IgnoredSettingWarning)
            buffer_of("per_sac", **kwargs)
    assert schemes == {"proportional", "rank", "lap"}


def test_the_page_lists_the_settings_that_are_tuned():
    tried: set[str] = set()
    for algo in ALGORITHMS:
        for of_file in ({}, dict(n_sampled_goal=4)):
            if not (of_file and algo in RECURRENT):
                study = study_of()
                tried |= {name for _ in range(20) for name in sampled(algo, study.ask(), **of_file)}
    section = (ROOT / "docs" / "zoo.md").read_text().partition("## Tune")[2].partition("\n## ")[0]
    rows = "".join(line.split("|")[1] for line in section.splitlines() if line.startswith("| `"))
    listed = set(re.findall(r"`(\w+)`", rows))
    of_buffer = {*PrioritySettings.names(), *SEQUENCE_ARGUMENTS, "n_sampled_goal", "goal_selection_strategy"}
    assert tried == listed & of_buffer - {"sequence_length", "burn_in"}


def test_tuning_refuses_a_scheme_object():
    trial = study_of().ask()
    with pytest.raises(ValueError, match=r"LAP\(.*kappa=0.3"):
        sampled("per_sac", trial, scheme=LAP(kappa=0.3))
    assert trial.params == {}
