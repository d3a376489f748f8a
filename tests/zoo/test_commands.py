"""RL Zoo's commands work with the prioritized algorithms."""

import shlex
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
import yaml
from stable_baselines3.common.env_util import make_vec_env

pytest.importorskip("rl_zoo3", reason="needs the extra zoo")
import matplotlib
from matplotlib import pyplot as plt

from sb3_per import LAP, PERDQN, PERSAC, PrioritizedHerReplayBuffer
from sb3_per.persistence.buffer_files import load_buffer, save_buffer
from sb3_per.zoo import ALGORITHMS, class_of, config_path, main
from tests.helpers.zoo import env_of, error_of, loaded, saved_buffer, settings, settings_of

matplotlib.use("Agg")

QUICK = ("per_dqn", "per_dqn_lstm")


@pytest.mark.parametrize("algo", [a if a in QUICK else pytest.param(a, marks=pytest.mark.slow) for a in ALGORITHMS])
def test_a_trained_agent_can_be_enjoyed(algo, zoo, capsys):
    entry = settings_of(algo, n_timesteps=120)
    run = zoo("train", algo, "--eval-freq", "60", "--eval-episodes", "1", entry=entry)
    shown = capsys.readouterr().out.splitlines()
    model = loaded(algo, run)
    assert type(model) is class_of(algo)
    assert (model.num_timesteps, model._n_updates > 0) == (120, True)
    assert model.replay_buffer.scheme.alpha == 0.5
    # The buffer class that the algorithm chose is not in the zip, and the file of the run keeps what the user wrote.
    assert "replay_buffer_class" not in yaml.unsafe_load((run / env_of(algo) / "config.yml").read_text())

    # The last line has the result, where it is, and the next command.
    result, _, command = shown[-1].partition(" Next: python -m sb3_per.zoo ")
    with np.load(run / "evaluations.npz") as evaluations:
        last = evaluations["results"][-1].mean()
    assert result == f"Mean return of the last evaluation: {last:.1f}. Saved in {run}."
    assert command == f"enjoy --algo {algo} --env {env_of(algo)} -f logs"
    n_steps = "250" if env_of(algo) == "Pendulum-v1" else "100"  # an episode and more
    for options in ([], ["--load-best"]):
        main([*shlex.split(command), "--no-render", "-n", n_steps, *options])
        played = capsys.readouterr().out
        assert "Mean reward" in played and ("best_model" in played) == bool(options)


def test_training_continues_with_the_saved_buffer(zoo):
    first = zoo("train", "per_sac", "--save-replay-buffer", entry=settings(n_timesteps=100))
    assert not list(first.glob("*.pkl"))
    saved = saved_buffer("per_sac", first)
    model = str(first / "Pendulum-v1.zip")
    second = zoo("train", "per_sac", "--save-replay-buffer", "-i", model, entry=settings(n_timesteps=60, batch_size=4))
    assert second != first
    continued = saved_buffer("per_sac", second)
    assert continued.pos == saved.pos + 60
    np.testing.assert_array_equal(continued.observations[: saved.pos], saved.observations[: saved.pos])
    untouched = saved.priorities[: saved.pos] == continued.priorities[: saved.pos]
    assert 0 < untouched.mean() < 1  # priorities were loaded, and training changed them
    assert loaded("per_sac", second)._n_updates > loaded("per_sac", first)._n_updates


def test_a_checkpoint_continues_with_its_own_buffer_and_not_the_newest(zoo):
    entry, shorter = (settings(n_timesteps=n, learning_starts=140) for n in (150, 60))
    run = zoo("train", "per_sac", "--save-replay-buffer", "--save-freq", "60", entry=entry)
    assert {path.name for path in run.glob("*.buffer")} == {"rl_model_replay_buffer.buffer"}
    for model, n in (("rl_model_120_steps.zip", 119), ("Pendulum-v1.zip", 150)):
        second = zoo("train", "per_sac", "--save-replay-buffer", "-i", str(run / model), entry=shorter)
        assert saved_buffer("per_sac", second).size() == n + 60


def test_training_with_actors_keeps_environments_and_wrappers(zoo, monkeypatch):
    """Each actor has the number of environments of the file, with the wrappers of the Zoo."""
    import sb3_per.distributed

    made = []

    def make_here(*args: Any, **kwargs: Any) -> Any:
        made.append(kwargs)
        return make_actors(*args, **kwargs, engine="local")

    make_actors = sb3_per.distributed.make_actors
    monkeypatch.setattr(sb3_per.distributed, "make_actors", make_here)
    entry = settings(n_envs=2, normalize=True, n_timesteps=400, learning_starts=380)
    run = zoo("train", "per_sac", "--actors", "3", "--eval-freq", "120", "--eval-episodes", "1", entry=entry)
    assert [(each["n_actors"], each["n_envs"]) for each in made] == [(3, 2)]
    model = loaded("per_sac", run)
    assert model.num_timesteps == 400 and model.n_envs == 6
    with np.load(run / "evaluations.npz") as evaluations:
        assert evaluations["timesteps"].tolist() == [120, 240, 360]
    assert (run / "Pendulum-v1" / "vecnormalize.pkl").is_file()
    assert len(list(run.glob("*.monitor.csv"))) == 6


FLIPPING = """
import gymnasium as gym

gym.register("FlippingGoals-v0", entry_point="stable_baselines3.common.envs:BitFlippingEnv", kwargs=dict(n_bits=4))
"""


@pytest.mark.filterwarnings("ignore:.*The environment is being initialised with render_mode")
def test_hyperparameter_files_may_name_buffer_classes(zoo):
    """Ours with its module, and SB3's as the Zoo does, which becomes prioritized. The file of the run keeps the name."""
    Path("flipping_goals.py").write_text(FLIPPING)
    goals = dict(goal_selection_strategy="future", n_sampled_goal=4, scheme="lap", kappa=0.7)
    for name, kwargs in (("sb3_per.PrioritizedHerReplayBuffer", goals), ("HerReplayBuffer", f"dict(**{goals})")):
        entry = settings(policy="MultiInputPolicy", replay_buffer_class=name, replay_buffer_kwargs=kwargs, n_timesteps=100)
        run = zoo("train", "per_dqn", "--gym-packages", "flipping_goals", entry=entry, env="FlippingGoals-v0")
        buffer = PERDQN.load(run / "FlippingGoals-v0.zip", env=make_vec_env("FlippingGoals-v0")).replay_buffer
        assert isinstance(buffer, PrioritizedHerReplayBuffer)
        assert isinstance(buffer.scheme, LAP) and buffer.scheme.kappa == 0.7
        assert yaml.unsafe_load((run / "FlippingGoals-v0" / "config.yml").read_text())["replay_buffer_class"] == name
        zoo("enjoy", "per_dqn", "--no-render", "-n", "20", "--gym-packages", "flipping_goals", env="FlippingGoals-v0")


def test_objects_in_a_file_are_refused_with_what_to_write(zoo, capsys):
    for entry, named in (
        (dict(replay_buffer_kwargs="dict(scheme=LAP(kappa=0.1))"), "name 'LAP' is not defined"),
        (dict(replay_buffer_class="PrioritizedHerReplayBuffer"), "name 'PrioritizedHerReplayBuffer' is not defined"),
        (dict(replay_buffer_class="sb3_per.HerBuffer"), "no attribute 'HerBuffer'"),
    ):
        error = error_of(capsys, zoo, "train", "per_dqn", entry=settings(**entry))
        assert "-conf hyperparams.yml: " in error and named in error
        assert "scheme: lap" in error and "replay_buffer_class: sb3_per.PrioritizedHerReplayBuffer" in error


def test_plots_are_drawn_and_saved(zoo, capsys):
    zoo("train", "per_dqn", entry=settings(n_timesteps=400, learning_starts=390))
    task = ["plot", "-a", "per_dqn", "-e", "CartPole-v1"]
    main([*task, "-w", "5"])
    assert plt.imread(Path("logs", "per_dqn", "plot.png")).std() > 0
    main([*task, "-w", "5", "-o", "plot.png"])
    assert plt.imread("plot.png").std() > 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("Saved plot.png. Next: ")
    assert "average over fewer with -w" in error_of(capsys, main, [*task, "-w", "100000"])
    main([*task, "-o", "short.png"])  # fewer episodes than the Zoo averages over
    assert plt.imread("short.png").std() > 0 and "means of 10" in capsys.readouterr().out
    plt.close("all")


def test_a_video_of_a_run_is_recorded_with_its_environment(zoo, capsys):
    """Arguments of the environment are kept, and an earlier run can be named."""
    first = zoo("train", "per_dqn", entry=settings(n_timesteps=60))
    zoo("train", "per_dqn", entry=settings(n_timesteps=60))
    zoo("record-video", "per_dqn", "-n", "5", "--exp-id", "1", "--env-kwargs", "sutton_barto_reward:True")
    (video,) = (first / "videos").glob("*.mp4")
    assert video.stat().st_size > 0
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"Saved {video}. Next: ")


def test_options_of_the_command_line_win_over_the_file(zoo):
    run = zoo("train", "per_sac", "-n", "80", "-params", "learning_rate:0.01", "replay_buffer_kwargs:dict(scheme='lap')")
    model = loaded("per_sac", run)
    assert (model.num_timesteps, model.lr_schedule(1.0)) == (80, 0.01)
    assert isinstance(model.replay_buffer.scheme, LAP)


def test_our_hyperparameter_file_is_the_default(tmp_path, monkeypatch, capsys):
    """The Zoo's own algorithms keep theirs."""
    monkeypatch.chdir(tmp_path)
    for algo in ("per_sac", "sac"):
        main(["train", f"--algo={algo}", "--env", "Pendulum-v1", "-n", "20", "--eval-freq", "-1"])
        assert f"Loading hyperparameters from: {config_path(algo)}" in capsys.readouterr().out.splitlines()
        assert Path("logs", algo, "Pendulum-v1_1", "Pendulum-v1.zip").exists()


def test_a_run_takes_demonstrations_from_a_directory(zoo, capsys):
    """Other settings of the hyperparameter file stay. The saved buffer has the demonstrations."""
    model = PERSAC("MlpPolicy", "Pendulum-v1", buffer_size=50, learning_starts=100).learn(40)
    save_buffer(model.replay_buffer, "demonstrations.buffer")
    given: tuple[str, ...] = ("--demonstrations", "demonstrations.buffer", "--save-replay-buffer")
    by_option = ("--demonstration-fraction", "0.4")
    half = dict(demonstration_fraction=0.5)
    for options, of_file, expected in (((), {}, 0.25), ((), half, 0.5), (by_option, half, 0.4)):
        entry = settings(n_timesteps=55, replay_buffer_kwargs=dict(alpha=0.5, **of_file))
        run = zoo("train", "per_sac", *given, *options, entry=entry)
        assert f"Added 40 demonstrations from demonstrations.buffer: {expected:.0%} of each batch" in capsys.readouterr().out
        trained = loaded("per_sac", run)
        assert trained.replay_buffer_kwargs == dict(alpha=0.5, demonstration_fraction=expected)
        written = yaml.unsafe_load((run / "Pendulum-v1" / "config.yml").read_text())
        assert written["replay_buffer_kwargs"] == trained.replay_buffer_kwargs
    (saved,) = run.glob("*.buffer")
    assert len(load_buffer(trained.replay_buffer, saved).demonstrations) == 40
    entry = settings(n_timesteps=55, replay_buffer_kwargs=dict(demonstration_fraction=0.0))
    with pytest.warns(UserWarning, match="demonstration_fraction=0.0 draws none"):
        zoo("train", "per_sac", *given, entry=entry)


REFUSED = (
    ("per_sac", "--demonstrations empty.buffer", "There is no saved buffer at empty.buffer"),
    ("per_sac", "--demonstration-fraction 0.5", "--demonstration-fraction 0.5 needs --demonstrations PATH"),
    ("per_sac", "--demonstration-fraction=1.5", "'1.5' is not a share above 0 and at most 1"),
    ("sac", "--demonstrations x.buffer", "need an algorithm of this package, e.g. per_sac, not sac"),
    ("sac", "--actors 2", "need an algorithm of this package, e.g. per_sac, not sac"),
    ("per_sac", "--actors 2 -optimize", "are for training, not for a search"),
    ("per_sac", "--resume -optimize", "are for training, not for a search"),
    ("per_sac", "--actors -2", "--actors: '-2' is not an integer of at least 1"),
    ("per_sac", "--trial-id 3", "--trial-id 3 needs the study of the trial"),
    ("per_sac", "--trial-id 3 --storage none.log --study-name some", "there is no --trial-id 3 of --study-name some"),
    ("PERSAC", "", "there is no algorithm 'PERSAC': did you mean per_sac?"),
)


def test_options_that_cannot_be_used_are_one_line_before_anything_is_made(zoo, capsys):
    Path("empty.buffer").mkdir()
    for algo, options, said in REFUSED:
        assert said in error_of(capsys, zoo, "train", algo, *options.split())
    assert not Path("logs").exists()


@pytest.mark.parametrize(
    "params, said",
    [
        ("replay_buffer_kwargs:dict(kapa=0.1)", "has no setting 'kapa': did you mean 'kappa'?"),
        ("replay_buffer_kwargs:dict(scheme='lab')", "Unknown scheme 'lab': did you mean 'lap'?"),
        ("lerning_rate:0.1", "got an unexpected keyword argument 'lerning_rate'"),
        ("alpha:0.7", '-params: alpha is a setting of the buffer: write -params replay_buffer_kwargs:"dict(alpha=0.7)"'),
    ],
)
def test_an_argument_that_the_model_refuses_is_one_line(zoo, capsys, params, said):
    assert said in error_of(capsys, zoo, "train", "per_sac", "-params", params)
    assert not list(Path("logs").glob("*/*"))  # nothing is left of a run that never began


def test_a_missing_hyperparameter_file_is_named(zoo, capsys):
    assert "-conf own.yml: No such file or directory" in error_of(capsys, zoo, "train", "per_sac", "-conf", "own.yml")


def test_an_error_of_the_environment_keeps_its_traceback(zoo):
    gym.register("Faulty-v0", entry_point=faulty)
    try:
        with pytest.raises(ValueError, match="no such robot"):
            zoo("train", "per_sac", env="Faulty-v0")
    finally:
        gym.registry.pop("Faulty-v0")


def faulty(**kwargs: Any) -> Any:
    raise ValueError("no such robot")


def test_demonstrations_with_other_spaces_are_one_line(zoo, capsys):
    model = PERDQN("MlpPolicy", "CartPole-v1", buffer_size=50, learning_starts=100).learn(10)
    save_buffer(model.replay_buffer, "cart.buffer")
    error = error_of(capsys, zoo, "train", "per_sac", "--demonstrations", "cart.buffer")
    assert "train: --demonstrations cart.buffer: " in error and "observation_space" in error


def test_a_missing_model_is_named_in_one_line(zoo, capsys):
    """No evaluation has saved a best model, there is no checkpoint after 7 steps, and only one run."""
    run = zoo("train", "per_sac", entry=settings(n_timesteps=20))
    for options, named in (
        (["--load-best"], f"{run / 'best_model.zip'}. Train with --eval-freq"),
        (["--load-checkpoint", "7"], str(run / "rl_model_7_steps.zip")),
        (["--load-last-checkpoint"], str(run)),
        (["--exp-id", "9"], "Pendulum-v1_9"),
    ):
        assert named in error_of(capsys, zoo, "enjoy", "per_sac", "--no-render", *options)
    # A later run that was killed has no model; then it has a checkpoint.
    killed = run.with_name("Pendulum-v1_2")
    killed.mkdir()
    assert "Run 1 has one: add --exp-id 1" in error_of(capsys, zoo, "enjoy", "per_sac", "--no-render")
    (killed / "best_model.zip").touch()
    assert "has a best model: add --load-best" in error_of(capsys, zoo, "enjoy", "per_sac", "--no-render")
    (killed / "best_model.zip").unlink()
    (killed / "rl_model_10_steps.zip").touch()
    assert "has checkpoints: add --load-last-checkpoint" in error_of(capsys, zoo, "enjoy", "per_sac", "--no-render")


def test_a_command_without_a_run_says_where_it_looked(zoo, monkeypatch, capsys):
    """It does not use the network."""
    monkeypatch.setattr("socket.socket.connect", None)
    for command in ("enjoy", "record-video", "plot"):
        assert "no runs of per_dqn on CartPole-v1 in logs/per_dqn" in error_of(capsys, zoo, command, "per_dqn")


IMAGES = """
import gymnasium as gym

gym.register("Images-v0", entry_point="stable_baselines3.common.envs:FakeImageEnv")
"""


def test_small_networks_train_with_one_thread_unless_the_user_chooses(zoo, monkeypatch):
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    Path("images.py").write_text(IMAGES)
    train = partial(zoo, "train", "per_dqn", entry=settings(n_timesteps=20))
    images = settings(policy="CnnPolicy", policy_kwargs="dict()", n_timesteps=20)
    before = th.get_num_threads()
    try:
        for run, expected in (
            (train, 1),
            (partial(train, "--num-threads", "2"), 2),
            (partial(zoo, "train", "per_dqn", "--gym-packages", "images", entry=images, env="Images-v0"), 2),
        ):
            th.set_num_threads(2)
            run()
            assert th.get_num_threads() == expected
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        train()
        assert th.get_num_threads() == 2
    finally:
        th.set_num_threads(before)
