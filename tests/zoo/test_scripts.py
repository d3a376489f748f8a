"""RL Zoo's own scripts work with the prioritized algorithms."""

import functools
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import load_results
from stable_baselines3.common.save_util import save_to_pkl
from stable_baselines3.common.vec_env import VecNormalize

pytest.importorskip("rl_zoo3", reason="needs the extra zoo")
import matplotlib

from sb3_per import LAP, PERDQN, PERSAC, PERTD3, PrioritizedHerReplayBuffer, PrioritizedReplayBuffer
from sb3_per.distributed.engines import LocalEngine
from sb3_per.persistence.buffer_files import load_buffer, save_buffer
from sb3_per.zoo import ALGORITHMS, class_of, config_path, main, register
from tests.utils import ROOT

matplotlib.use("Agg")

DISCRETE = ("per_dqn", "per_qrdqn", "per_dqn_lstm")
RECURRENT = ("per_dqn_lstm", "per_sac_lstm")


def settings(**kwargs: Any) -> dict[str, Any]:
    """Make an entry of a hyperparameter file for a run of a second."""
    return {
        "n_timesteps": 300,
        "policy": "MlpPolicy",
        "learning_starts": 50,
        "batch_size": 16,
        "buffer_size": 1000,
        "policy_kwargs": "dict(net_arch=[16])",
        "replay_buffer_kwargs": "dict(alpha=0.5, beta_start=0.3)",
        **kwargs,
    }


def settings_of(algo: str, **kwargs: Any) -> dict[str, Any]:
    """Make an entry for any algorithm, also a recurrent one."""
    if algo not in RECURRENT:
        return settings(**kwargs)
    networks = "dict(net_arch=[16], lstm_hidden_size=8)"
    return settings(
        **{"policy": "MlpLstmPolicy", "policy_kwargs": networks, "sequence_length": 4, "burn_in": 2, "train_freq": 4, **kwargs}
    )


def env_of(algo: str) -> str:
    return "CartPole-v1" if algo in DISCRETE else "Pendulum-v1"


@pytest.fixture
def zoo(tmp_path, monkeypatch):
    """Run a script in an empty folder, with `logs` and, for training, a small hyperparameter file."""
    monkeypatch.chdir(tmp_path)

    def run(script: str, algo: str, *options: str, entry: dict[str, Any] | None = None, env: str | None = None) -> Path:
        env = env or env_of(algo)
        arguments = [script, "--algo", algo, "--env", env, "-f", "logs", *options]
        if script == "train":
            Path("hyperparams.yml").write_text(yaml.safe_dump({env: entry or settings_of(algo)}))
            arguments += ["-conf", "hyperparams.yml", "--seed", "3"]
            arguments += [] if "--eval-freq" in options else ["--eval-freq", "-1"]
        main(arguments)
        runs = sorted(Path("logs", algo).glob(f"{env}_*"))
        return runs[-1] if runs else Path("logs")

    return run


def loaded(algo: str, run: Path, **kwargs: Any) -> Any:
    return class_of(algo).load(run / f"{env_of(algo)}.zip", device="cpu", **kwargs)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_trained_agent_can_be_enjoyed(algo, zoo, capsys):
    run = zoo("train", algo, "--eval-freq", "150", "--eval-episodes", "1")
    model = loaded(algo, run)
    assert type(model) is class_of(algo)
    assert (model.num_timesteps, model._n_updates > 0) == (300, True)
    assert model.replay_buffer.scheme.alpha == 0.5
    # The buffer class that the algorithm chose is not in the zip, and the file of the run keeps what the user wrote.
    assert "replay_buffer_class" not in yaml.unsafe_load((run / env_of(algo) / "config.yml").read_text())
    capsys.readouterr()
    for options in ([], ["--load-best"]):
        zoo("enjoy", algo, "--no-render", "-n", "250", *options)
        assert ("Mean reward" in (shown := capsys.readouterr().out)) and ("best_model" in shown) == bool(options)


def test_enjoying_an_agent_allocates_no_buffer(zoo, monkeypatch):
    zoo("train", "per_sac")
    sizes = []
    init = PrioritizedReplayBuffer.__init__
    monkeypatch.setattr(
        PrioritizedReplayBuffer, "__init__", lambda self, n, *a, **k: (sizes.append(n), init(self, n, *a, **k))[1]
    )
    zoo("enjoy", "per_sac", "--no-render", "-n", "5")
    assert sizes == [1]
    register()
    from rl_zoo3 import ALGOS

    assert all(ALGOS[algo] is class_of(algo) for algo in ALGORITHMS)  # as before


def saved_buffer(algo: str, run: Path) -> PrioritizedReplayBuffer:
    """Load the buffer that a run has saved into a new model."""
    model = loaded(algo, run)
    (path,) = run.glob("*.buffer")
    model.load_replay_buffer(path)
    return model.replay_buffer


def test_training_continues_with_the_saved_buffer(zoo):
    first = zoo("train", "per_sac", "--save-replay-buffer")
    assert not list(first.glob("*.pkl"))
    saved = saved_buffer("per_sac", first)
    assert saved.beta == pytest.approx(1.0, abs=0.01)
    second = zoo(
        "train", "per_sac", "--save-replay-buffer", "-i", str(first / "Pendulum-v1.zip"), entry=settings(n_timesteps=100)
    )
    assert second != first
    continued = saved_buffer("per_sac", second)
    assert continued.pos == saved.pos + 100
    np.testing.assert_array_equal(continued.observations[: saved.pos], saved.observations[: saved.pos])
    assert continued.beta >= saved.beta
    assert continued.max_priority >= saved.max_priority
    untouched = saved.priorities[: saved.pos] == continued.priorities[: saved.pos]
    assert 0 < untouched.mean() < 1  # priorities were loaded, and training changed them
    assert loaded("per_sac", second)._n_updates > loaded("per_sac", first)._n_updates


def test_a_pickled_buffer_is_loaded(zoo):
    run = zoo("train", "per_sac")
    model = PERSAC.load(run / "Pendulum-v1.zip", env=make_vec_env("Pendulum-v1")).learn(50)
    save_to_pkl(run / "replay_buffer.pkl", model.replay_buffer)
    second = zoo(
        "train", "per_sac", "--save-replay-buffer", "-i", str(run / "Pendulum-v1.zip"), entry=settings(n_timesteps=70)
    )
    assert saved_buffer("per_sac", second).size() == 120


def test_a_checkpoint_continues_with_its_own_buffer_and_not_the_newest(zoo):
    run = zoo("train", "per_sac", "--save-replay-buffer", "--save-freq", "120")
    assert {path.name for path in run.glob("*.buffer")} == {"rl_model_replay_buffer.buffer"}
    for model, n in (("rl_model_240_steps.zip", 239), ("Pendulum-v1.zip", 300)):
        second = zoo("train", "per_sac", "--save-replay-buffer", "-i", str(run / model), entry=settings(n_timesteps=60))
        buffer = PERSAC.load(second / "Pendulum-v1.zip", buffer_size=1000).replay_buffer
        assert load_buffer(buffer, second / "replay_buffer.buffer").size() == n + 60


KILLED = """
import os, signal, sys
from stable_baselines3.common.callbacks import BaseCallback
from sb3_per.persistence import checkpoint_callback
from sb3_per.zoo import main

save = checkpoint_callback.BufferCheckpointCallback.save
def save_and_die(self):
    save(self)
    if self.num_timesteps >= 200:
        os.kill(os.getpid(), signal.SIGKILL)
checkpoint_callback.BufferCheckpointCallback.save = save_and_die
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_a_killed_run_is_resumed_by_the_same_command(zoo, tmp_path, capsys):
    """
    The run continues in its folder from the checkpoint to the given number of steps. It keeps the statistics of VecNormalize,
    the episodes and the evaluations. A run that has ended is not resumed.
    """
    algo, env = "per_sac", "Pendulum-v1"
    options = ["--save-replay-buffer", "--save-freq", "100", "--resume", "--eval-freq", "50", "--eval-episodes", "2"]
    entry = settings(n_timesteps=450, normalize=True)
    Path("hyperparams.yml").write_text(yaml.safe_dump({env: entry}))
    command = ["train", "--algo", algo, "--env", env, "-f", "logs", "-conf", "hyperparams.yml", "--seed", "3", *options]
    killed = subprocess.run([sys.executable, "-c", KILLED, *command], capture_output=True, text=True)
    assert killed.returncode == -9, killed.stderr
    (run,) = Path("logs", algo).iterdir()
    statistics = VecNormalize.load(str(run / "rl_model_vecnormalize_200_steps.pkl"), make_vec_env(env))
    assert not (run / f"{env}.zip").exists()

    assert zoo("train", algo, *options, entry=entry) == run
    assert "at 200 of 450 steps" in capsys.readouterr().out
    model = loaded(algo, run)
    assert model.num_timesteps == 450
    # The last of 200 steps was not stored yet at the checkpoint.
    buffer = saved_buffer(algo, run)
    assert buffer.size() == 199 + 250
    assert buffer.dones[198] == 1 and buffer.timeouts[198] == 1
    final = VecNormalize.load(str(run / env / "vecnormalize.pkl"), make_vec_env(env))
    assert final.obs_rms.count == pytest.approx(statistics.obs_rms.count + 251, abs=2)
    assert load_results(str(run))["l"].tolist() == [200, 200]
    with np.load(run / "evaluations.npz") as evaluations:
        assert evaluations["timesteps"].tolist() == list(range(50, 451, 50))
        assert evaluations["results"].shape == (9, 2)

    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        zoo("train", algo, *options, entry=entry)
    assert ended.value.code == 0
    assert "has come to its end" in capsys.readouterr().out
    assert loaded(algo, run).num_timesteps == 450
    assert list(Path("logs", algo).iterdir()) == [run]
    assert zoo("train", algo, *options[:3], entry=entry) != run  # without --resume, another one


def test_training_with_actors_keeps_environments_and_wrappers(zoo, monkeypatch, capsys):
    """Each actor has the number of environments of the file, with the wrappers of the Zoo."""
    made, engine = [], LocalEngine()
    monkeypatch.setattr("sb3_per.distributed.make._engine", lambda *args: made.append(args) or engine)
    entry = settings(n_envs=2, normalize=True, n_timesteps=400)
    run = zoo("train", "per_sac", "--actors", "3", "--eval-freq", "120", "--eval-episodes", "1", entry=entry)
    assert len(made) == 1
    model = loaded("per_sac", run)
    assert model.num_timesteps == 400 and model.n_envs == 6
    with np.load(run / "evaluations.npz") as evaluations:
        assert evaluations["timesteps"].tolist() == [120, 240, 360]
    assert (run / "Pendulum-v1" / "vecnormalize.pkl").is_file()
    assert len(list(run.glob("*.monitor.csv"))) == 6
    assert "-bound: " in capsys.readouterr().out


def test_resume_without_a_complete_checkpoint_begins_a_new_run(zoo):
    """A folder without a complete checkpoint is not changed."""
    first = zoo("train", "per_dqn", "--resume")
    (first / "CartPole-v1.zip").unlink()
    assert zoo("train", "per_dqn", "--resume") != first


def test_the_buffer_stores_unnormalized_observations_with_vecnormalize(zoo, capsys):
    entry = settings(n_envs=2, normalize=True, gradient_steps=2, n_timesteps=400)
    run = zoo("train", "per_td3", "--save-replay-buffer", entry=entry)
    buffer = PERTD3.load(run / "Pendulum-v1.zip", env=make_vec_env("Pendulum-v1", 2)).replay_buffer
    buffer = load_buffer(buffer, run / "replay_buffer.buffer")
    assert buffer.n_envs == 2
    assert (buffer.priorities[: buffer.pos] > 0).all()
    assert len(np.unique(buffer.priorities[:, 0])) > 2 and len(np.unique(buffer.priorities[:, 1])) > 2
    assert (run / "Pendulum-v1" / "vecnormalize.pkl").is_file()
    assert np.abs(buffer.rewards[: buffer.pos]).max() > 5
    capsys.readouterr()
    zoo("enjoy", "per_td3", "--no-render", "-n", "250")
    assert "Mean reward" in capsys.readouterr().out


def test_hyperparameter_files_may_name_our_buffer_classes(zoo, monkeypatch):
    """The file of the run keeps these names."""
    import gymnasium as gym
    from stable_baselines3.common.envs import BitFlippingEnv

    name = "BitFlipping-v0"
    monkeypatch.setitem(
        gym.registry, name, gym.envs.registration.EnvSpec(name, lambda **_: BitFlippingEnv(n_bits=4, max_steps=4))
    )
    entry = settings(
        policy="MultiInputPolicy",
        replay_buffer_class="PrioritizedHerReplayBuffer",
        replay_buffer_kwargs="dict(goal_selection_strategy='future', n_sampled_goal=4, scheme=LAP(kappa=0.7))",
    )
    register()
    monkeypatch.setattr("rl_zoo3.exp_manager.ExperimentManager.entry_point", staticmethod(lambda env_id: "BitFlipping"))
    run = zoo("train", "per_dqn", "--save-replay-buffer", entry=entry, env=name)
    env = make_vec_env(lambda: BitFlippingEnv(n_bits=4, max_steps=4))
    buffer = PERDQN.load(run / f"{name}.zip", env=env).replay_buffer
    assert load_buffer(buffer, run / "replay_buffer.buffer").size() == 300
    assert isinstance(buffer, PrioritizedHerReplayBuffer)
    assert isinstance(buffer.scheme, LAP) and buffer.scheme.kappa == 0.7
    written = yaml.unsafe_load((run / name / "config.yml").read_text())
    assert written["replay_buffer_class"] == "PrioritizedHerReplayBuffer"
    zoo("enjoy", "per_dqn", "--no-render", "-n", "20", env=name)


def test_the_setting_frames_works_from_a_hyperparameter_file(zoo, monkeypatch):
    """The saved model can be loaded and plays."""
    entry = settings(frame_stack=3, replay_buffer_kwargs=dict(frames=3))
    run = zoo("train", "per_sac", "--save-replay-buffer", entry=entry)
    buffer = saved_buffer("per_sac", run)
    assert buffer.settings.frames == 3 and buffer.frames_per_transition < 1.1
    assert loaded("per_sac", run).replay_buffer.settings.frames == 3
    zoo("enjoy", "per_sac", "--no-render", "-n", "20")


def test_plot_scripts_draw_figures(zoo, monkeypatch):
    import matplotlib.pyplot as plt

    zoo("train", "per_dqn", entry=settings(n_timesteps=2500, learning_starts=2400))
    main(["plot", "-a", "per_dqn", "-e", "CartPole-v1", "-f", "logs", "-w", "10"])
    lines = [line for axis in plt.gcf().axes for line in axis.get_lines()]
    assert lines and all(len(line.get_xdata()) > 0 for line in lines)
    plt.close("all")
    main(["plot", "--algo", "per_dqn", "--env", "CartPole-v1", "-w", "10", "-o", "plot.png"])
    assert plt.imread("plot.png").std() > 0
    plt.close("all")
    with pytest.raises(SystemExit):
        main(["plot", "--algo", "per_dqn", "--env", "CartPole-v1", "-w", "100000"])
    plt.close("all")


def test_record_video_writes_a_video(zoo):
    run = zoo("train", "per_sac", entry=settings(n_timesteps=60))
    main(["record-video", "--algo", "per_sac", "--env", "Pendulum-v1", "-f", "logs", "-n", "10"])
    assert [path.stat().st_size > 0 for path in (run / "videos").glob("*.mp4")] == [True]


def test_options_of_the_zoo_work(zoo, capsys):
    for arguments, message in (
        (["train", "--algo", "per_sac", "--env", "Pendulum-v1", "--no-such-option"], "--no-such-option"),
        (["train", "--algo", "per_ppo", "--env", "Pendulum-v1"], "per_ppo"),
        (["no_such_script"], "no_such_script"),
        ([], "script"),
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        assert message in capsys.readouterr().err
    # Options of the command line win over the file.
    run = zoo("train", "per_sac", "-n", "80", "-params", "learning_rate:0.01", "replay_buffer_kwargs:dict(scheme='lap')")
    model = loaded("per_sac", run)
    assert (model.num_timesteps, model.lr_schedule(1.0)) == (80, 0.01)
    assert isinstance(model.replay_buffer.scheme, LAP)
    main(["train", "--algo", "sac", "--env", "Pendulum-v1", "-n", "120", "-f", "logs", "--eval-freq", "-1"])  # the Zoo's own
    assert list(Path("logs/sac").glob("Pendulum-v1_1/*.zip"))


@pytest.mark.parametrize("form", [["--algo", "per_sac"], ["--algo=per_sac"]])
def test_our_hyperparameter_file_is_the_default(form, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = ["--env", "Pendulum-v1", "-n", "20", "-f", "logs", "--eval-freq", "-1"]
    main(["train", *form, *options])
    assert str(config_path("per_sac")) in capsys.readouterr().out
    Path("own.yml").write_text(yaml.safe_dump({"Pendulum-v1": settings()}))
    for own in (["-conf", "own.yml"], ["--conf-file=own.yml"]):
        main(["train", *form, *options, *own])
        assert "own.yml" in capsys.readouterr().out


def test_hyperparameter_files_are_in_the_wheel(tmp_path):
    source = tmp_path / "source"
    for folder in ("sb3_per", "zoo_configs"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(source)]
    subprocess.run(build, check=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path / "site")
    program = "import sb3_per.zoo, sys; print(*(sb3_per.zoo.config_path(a) for a in sb3_per.zoo.ALGORITHMS), sep='\\n')"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path / "site", capture_output=True, text=True, check=True)
    paths = [Path(line) for line in done.stdout.split()]
    assert len(paths) == len(ALGORITHMS)
    for path, algo in zip(paths, ALGORITHMS, strict=True):
        assert tmp_path in path.parents
        assert path.read_text() == config_path(algo).read_text()


SHARES = {
    "default": ("", (), 0.25),
    "of the file": ("demonstration_fraction=0.5", (), 0.5),
    "of the command line": ("demonstration_fraction=0.5", ("--demonstration-fraction", "0.4"), 0.4),
}


@pytest.mark.parametrize("share", SHARES)
def test_a_run_takes_demonstrations_from_a_directory(share, zoo, capsys):
    """Other settings of the hyperparameter file stay. The saved buffer has the demonstrations."""
    of_file, options, expected = SHARES[share]
    model = PERSAC("MlpPolicy", "Pendulum-v1", buffer_size=50, learning_starts=100).learn(40)
    save_buffer(model.replay_buffer, "demonstrations.buffer")
    options += ("--demonstrations", "demonstrations.buffer", "--save-freq", "100", "--save-replay-buffer")
    folder = zoo("train", "per_sac", *options, entry=settings(replay_buffer_kwargs=f"dict(alpha=0.5, {of_file})"))
    assert f"Added 40 demonstrations from demonstrations.buffer: {expected:.0%} of each batch" in capsys.readouterr().out
    trained = loaded("per_sac", folder)
    assert trained.replay_buffer_kwargs["alpha"] == 0.5
    assert trained.replay_buffer_kwargs["demonstration_fraction"] == expected
    like = PrioritizedReplayBuffer(1000, model.observation_space, model.action_space, alpha=0.5)
    (saved,) = folder.glob("*.buffer")
    assert len(load_buffer(like, saved).demonstrations) == 40


def error_of(capsys: Any, zoo: Any, *arguments: str) -> str:
    """Run a script that exits with status 2, and return the line that it writes to stderr."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as caught:
        zoo(*arguments)
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    ("algo", "options", "said"),
    [
        ("per_sac", "--demonstrations empty.buffer", "There is no saved buffer at empty.buffer"),
        ("per_sac", "--demonstrations none.buffer", "no saved buffer at none.buffer, and no Minari dataset"),
        ("per_sac", "--demonstration-fraction 0.5", "--demonstration-fraction 0.5 needs --demonstrations PATH"),
        ("sac", "--demonstrations x.buffer", "--demonstrations x.buffer needs an algorithm of this package, e.g. per_sac"),
        ("per_dqn_lstm", "--demonstrations x.buffer", "--demonstrations x.buffer needs an algorithm without LSTM"),
        ("per_sac", "--demonstrations x.buffer -optimize", "--demonstrations x.buffer cannot be tuned"),
        ("sac", "--actors 2", "--actors 2 needs an algorithm of this package, e.g. per_sac, not sac"),
        ("per_sac", "--actors 2 -optimize", "--actors 2 cannot be tuned"),
        ("per_sac", "--actors -2", "--actors: '-2' is not an integer of at least 1"),
        *(
            ("per_sac", f"--demonstration-fraction={share}", f"'{share}' is not a share above 0 and at most 1")
            for share in ("0", "1.5", "-0.1", "nan", "half")
        ),
    ],
)
def test_options_that_cannot_be_used_are_one_line_before_anything_is_made(algo, options, said, zoo, capsys):
    Path("empty.buffer").mkdir()
    assert said in error_of(capsys, zoo, "train", algo, *options.split())
    assert not Path("logs").exists()


def test_demonstrations_with_other_spaces_are_one_line(zoo, capsys):
    model = PERDQN("MlpPolicy", "CartPole-v1", buffer_size=50, learning_starts=100).learn(10)
    save_buffer(model.replay_buffer, "cart.buffer")
    error = error_of(capsys, zoo, "train", "per_sac", "--demonstrations", "cart.buffer")
    assert "train: --demonstrations cart.buffer: " in error and "observation_space" in error


@pytest.mark.parametrize("script", ["train", "enjoy", "plot"])
@pytest.mark.parametrize("algo, meant", [("perdqn", "per_dqn"), ("PERSAC", "per_sac"), ("per-tqc", "per_tqc")])
def test_an_unknown_algorithm_gets_the_nearest_name(script, algo, meant, zoo, capsys):
    error = error_of(capsys, functools.partial(zoo, env="Pendulum-v1"), script, algo)
    assert f"there is no algorithm '{algo}': did you mean {meant}?" in error


def test_a_missing_model_is_named_in_one_line(zoo, capsys):
    """No evaluation has saved a best model, and there is no checkpoint after 7 steps."""
    run = zoo("train", "per_sac", entry=settings(n_timesteps=20))
    for options, file, hint in (
        (["--load-best"], "best_model.zip", "Train with --eval-freq"),
        (["--load-checkpoint", "7"], "rl_model_7_steps.zip", ""),
        (["--load-last-checkpoint"], "", ""),
    ):
        error = error_of(capsys, zoo, "enjoy", "per_sac", "--no-render", *options)
        assert f"{run / file}" in error and hint in error
