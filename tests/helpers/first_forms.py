"""
Every command of `sb3-per` as a user types it first, without optional arguments, and then each option alone.

Python's own library is enough: `newcomer.py` runs this list from a wheel, without this project.
"""

from typing import NamedTuple

_RUN = ("--algo", "per_dqn", "--env", "CartPole-v1")
_PLAYERS = ("-n 20", "--exp-id 1", "--no-render", "-f logs")


class Command(NamedTuple):
    """
    A command of `sb3-per`.

    :param required: arguments without which it does nothing
    :param short: options that let it end soon where the task is not short
    :param options: each of these alone is added to `required`
    """

    required: tuple[str, ...] = ()
    short: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


# In the order in which they are tried: `enjoy`, `plot` and `record-video` find what `train` has made.
COMMANDS = {
    "doctor": Command(options=("--no-test",)),
    "train": Command(
        _RUN,
        ("-n", "1200", "--eval-freq", "600", "--eval-episodes", "2"),
        (
            "-n 120",
            "--seed 1",
            "--eval-freq 100",
            "--save-freq 100",
            "--save-replay-buffer",
            "--resume",
            "--gym-packages gymnasium",
            "--env-kwargs sutton_barto_reward:True",
            "-params batch_size:8",
            "-tb tensorboard",
            "-f elsewhere",
            "--vec-env subproc",
            "--device cpu",
        ),
    ),
    "enjoy": Command(_RUN, ("-n", "100", "--no-render"), _PLAYERS),
    "plot": Command(_RUN, ("-w", "10"), ("-w 2", "-o plot.png", "-x episodes", "-y length", "-max 2000", "-f logs")),
    "record-video": Command(_RUN, ("-n", "20"), ("-n 10", "--exp-id 1", "-o videos", "-f logs")),
    "tune": Command(
        (*_RUN, "--n-trials", "1"),  # the Zoo's default are 500
        ("-n", "500", "--n-startup-trials", "1", "--n-evaluations", "1", "--no-optim-plots"),
        (
            "-n 120",
            "--storage study.log --study-name first",
            "--n-jobs 2",
            "--n-startup-trials 1",
            "--n-evaluations 2",
            "--sampler random",
            "--pruner none",
            "--no-optim-plots",
            "--seed 1",
            "-f elsewhere",
        ),
    ),
    "compare": Command(
        _RUN,
        ("--dry-run",),
        (
            "--quick",
            "--dry-run",
            "--setting scheme='lap'",
            "--setting scheme='uniform',age_decay=3",
            "-n 2000",
            "--n-envs 2",
            "--seeds 2",
            "--rates 1/2",
            "--eval-episodes 1",
            "--workers 2",
            "-params batch_size:8",
            "--env-kwargs sutton_barto_reward:True",
            "--gym-packages gymnasium",
            "--vec-env subproc",
            "--device cpu",
            "-f elsewhere",
        ),
    ),
    "convert": Command(("old.pkl", "new.buffer", "--trust")),
}

# What `convert` reads.
PICKLE = """
from sb3_per import PERDQN

model = PERDQN("MlpPolicy", "CartPole-v1", buffer_size=1_000)
model.learn(200)
model.save_replay_buffer("old.pkl")
"""
