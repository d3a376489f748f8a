"""Run RL Zoo's functions with the prioritized algorithms. What they print is theirs; the last line names the next command."""

import argparse
import functools
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sb3_per.utils.arguments import Parser, count, missing_packages_in_one_line, share
from sb3_per.zoo.names import nearest, newest_run, next_command, runs_of, split_env, uses_sbx
from sb3_per.zoo.registry import config_path, register

#: Purpose of each command, by its name.
COMMANDS: dict[str, str] = {
    "train": "train an agent with RL Zoo",
    "tune": "search for hyperparameters with RL Zoo and Optuna",
    "enjoy": "watch a trained agent",
    "record-video": "record a video of a trained agent",
    "plot": "plot the returns of training episodes",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """
    Run one of the Zoo's commands with the prioritized algorithms.

    :param arguments: name of the command and its options; ``None``: those of the process
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = Parser("python -m sb3_per.zoo", description="RL Zoo with prioritized experience replay")
    parser.add_argument("command", choices=COMMANDS, help="the Zoo's command; its options follow, see COMMAND --help")
    command = parser.parse_args(arguments[:1]).command
    prog = f"{parser.prog} {command}"
    with missing_packages_in_one_line(prog):
        run(command, arguments[1:], prog)


def run(command: str, words: list[str], prog: str) -> None:
    """
    Run one of the Zoo's commands with the prioritized algorithms.

    :param command: name of the command
    :param words: its options
    :param prog: program name shown in usage and errors
    :raises SystemExit: after ``--help``, for options that cannot be used, and if there is nothing to play or to plot
    """
    parser = parser_of(command, prog)
    if "-h" in words or "--help" in words:
        _show_help(parser, command)
    options, others = parser.parse_known_args(words)
    register(uses_sbx(options.algo))
    from rl_zoo3 import ALGOS

    from sb3_per.zoo.environments import register_environment

    is_known = options.algo in ALGOS or (command == "plot" and Path(options.folder, options.algo).is_dir())
    if not is_known:
        parser.error(f"there is no algorithm {options.algo!r}: {nearest(options.algo, ALGOS)}")
    names = [split_env(env)[1] for env in options.env]
    options.env, env = options.env[0], names[0]
    try:
        if command in ("enjoy", "record-video", "plot"):
            runs_of(options.folder, options.algo, env)  # the Zoo would look for them on a hub
        if command != "plot":
            register_environment(options.env, options.gym_packages)
    except (FileNotFoundError, ValueError) as error:
        parser.error(str(error))
    required = ["--algo", options.algo, "--env", *names, "-f", options.folder]
    if command == "plot":
        _plot(parser, options, [*required, *others])
        return
    if options.gym_packages:
        required += ["--gym-packages", *options.gym_packages]
    if command == "train":
        _train(parser, options, [*required, "--conf-file", str(config_path(options.algo)), *others])
    elif command == "tune":
        # A study of its own, unless the user names one: the command at the end reads the best trial from there.
        storage = str(Path(options.folder, options.algo, "tune.log"))
        study = f"{env}_{time.strftime('%Y-%m-%d_%H-%M-%S')}"
        of_study = ["--storage", storage, "--study-name", study]
        options.words = _options_after_search(others, storage, study)
        _train(parser, options, [*required, "--conf-file", str(config_path(options.algo)), "-optimize", *of_study, *others])
    elif command == "enjoy":
        _enjoy(parser, options, [*required, *others])
        print(f"Next: {next_command(prog, 'record-video', options)}")
    else:
        _record_video(parser, options, [*required, *others])


def _options_after_search(words: list[str], storage: str, study: str) -> list[str]:
    """
    List the options of the command that trains with the best trial of a search.

    :param words: options of the search
    :param storage: where its trials are, unless the options say it
    :param study: name of the study, unless the options say it
    :return: the study, and the options that do not belong to a search alone
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-n", "--n-timesteps")  # of a trial, which is short
    for name in ("n-trials", "max-total-trials", "n-jobs", "n-startup-trials", "n-evaluations", "sampler", "pruner"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--storage", default=storage)
    parser.add_argument("--study-name", default=study)
    known, others = parser.parse_known_args(words)
    return ["--storage", known.storage, "--study-name", known.study_name, *others]


def parser_of(command: str, prog: str) -> argparse.ArgumentParser:
    """
    Make a parser for the options that we read. It leaves the others to the Zoo.

    :param command: name of the command
    :param prog: program name shown in usage and errors
    :return: the parser
    """
    usage = "%(prog)s --algo ALGO --env ENV [options]"
    parser = Parser(prog, usage, COMMANDS[command], allow_abbrev=False, add_help=False)
    add = parser.add_argument
    add("-a", "--algo", required=True, metavar="ALGO", help="algorithm, e.g. per_sac, or one of the Zoo's, e.g. sac")
    n_envs = "+" if command == "plot" else 1
    what = "id of the environment, e.g. Pendulum-v1 or module:Name-v0"
    add("-e", "--env", required=True, nargs=n_envs, metavar="ENV", help=what)
    names = ("-f", "--folder", "--log-folder", "--exp-folder")  # of all functions of the Zoo
    add(*names, dest="folder", default="logs", metavar="FOLDER", help="folder of the runs; default: logs")
    add("--gym-packages", nargs="+", default=[], metavar="MODULE", help="modules that register environments")
    if command == "train":
        add("--resume", action="store_true", help="go on with the newest run, up to the number of steps")
        add("--demonstrations", metavar="PATH", help="draw a share of each batch from a .buffer directory or a Minari dataset")
        what = "this share, above 0 and at most 1; default: of the hyperparameter file, or 0.25"
        add("--demonstration-fraction", type=share, metavar="SHARE", help=what)
        add("--actors", type=count, default=0, metavar="N", help="let N processes collect while one learns")
    elif command == "tune":
        parser.set_defaults(resume=False, demonstrations=None, demonstration_fraction=None, actors=0)
    elif command == "record-video":
        add("-n", "--n-timesteps", type=count, default=1000, metavar="N", help="number of frames; default: 1000")
        add("--env-kwargs", nargs="+", default=[], metavar="NAME:VALUE", help="arguments of the environment")
        add("--exp-id", type=int, default=0, metavar="N", help="number of the run; default: the newest")
        add("-o", "--output-folder", type=Path, metavar="FOLDER", help="default: videos, in the folder of the run")
    elif command == "plot":
        add("-o", "--output", metavar="FILE", help="write a picture, e.g. plot.png, and open no window")
    return parser


def _show_help(parser: argparse.ArgumentParser, command: str) -> None:
    """Show our options, then the Zoo's."""
    parser.print_help()
    print("\nRL Zoo's options:\n", flush=True)
    register()
    from sb3_per.zoo import upstream

    upstream.run(command, parser.prog, ["--help"])


def _train(parser: argparse.ArgumentParser, options: argparse.Namespace, words: list[str]) -> None:
    from sb3_per.zoo import upstream
    from sb3_per.zoo.runs import RunManager

    with upstream.training_with(functools.partial(RunManager, parser=parser, options=options)):
        upstream.run("train", parser.prog, words)


def _enjoy(parser: argparse.ArgumentParser, options: argparse.Namespace, words: list[str]) -> None:
    """Play an agent. Exit if there is no such model, or if its environment cannot be drawn."""
    from sb3_per.zoo import upstream

    try:
        upstream.run("enjoy", parser.prog, words)
    except Exception as error:
        if upstream.has_no_model(error):
            parser.error(f"{error}.{_hint(str(error), options)}")
        if not upstream.cannot_be_drawn(error):
            raise
        parser.error(
            f"{options.env} cannot be drawn, because its class takes no render_mode: docs/own_environment.md has one that "
            "does. sb3-per enjoy --no-render plays it without pictures"
        )


def _hint(error: str, options: argparse.Namespace) -> str:
    """Say what can be played if there is no such model."""
    if "best_model" in error:
        return " Train with --eval-freq to get a best model"
    env = split_env(options.env)[1]
    run = newest_run(options.folder, options.algo, env)
    if (run / "best_model.zip").exists():
        return " The newest run has a best model: add --load-best"
    if any(run.glob("rl_model_*_steps.zip")):
        return " The newest run has checkpoints: add --load-last-checkpoint"
    name = env.replace("/", "-")
    complete = [int(path.parent.name.rpartition("_")[2]) for path in run.parent.glob(f"{name}_*/{name}.zip")]
    return f" Run {max(complete)} has one: add --exp-id {max(complete)}" if complete else ""


def _record_video(parser: argparse.ArgumentParser, options: argparse.Namespace, words: list[str]) -> None:
    """Play an agent with its environment in a recorder, through the class of environments that the Zoo lets one choose."""
    from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecVideoRecorder

    from sb3_per.zoo import upstream

    env = split_env(options.env)[1].replace("/", "-")
    run = newest_run(options.folder, options.algo, env)
    if options.exp_id > 0:
        run = run.with_name(f"{env}_{options.exp_id}")
    folder = options.output_folder or run / "videos"
    name = f"{options.algo}-{env}_{time.strftime('%Y-%m-%d_%H-%M-%S')}"

    def recorded(env_fns: Any, **kwargs: Any) -> VecEnv:
        return VecVideoRecorder(DummyVecEnv(env_fns), str(folder), lambda step: step == 0, options.n_timesteps, name)

    length = ["--exp-id", str(options.exp_id), "--no-render", "-n", str(options.n_timesteps)]
    with upstream.environments_made_by(recorded):
        _enjoy(parser, options, [*words, *length, "--env-kwargs", "render_mode:'rgb_array'", *options.env_kwargs])
    (video,) = folder.glob(f"{name}-*.mp4")
    print(f"Saved {video}. Next: {next_command(parser.prog, 'plot', options)}")


def _has_lines(figure: Any) -> bool:
    """Tell whether a figure of the Zoo shows any run."""
    return any(axes.lines for axes in figure.axes)


def _plot(parser: argparse.ArgumentParser, options: argparse.Namespace, words: list[str]) -> None:
    """Plot returns. Save the plot if a file is named, or if there is no display."""
    from matplotlib import pyplot as plt

    from sb3_per.zoo import upstream

    if options.output is not None:
        plt.switch_backend("agg")  # needs no display

    def draw(*more: str) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "FigureCanvasAgg is non-interactive|No artists with labels")
            upstream.run("plot", parser.prog, [*words, *more])

    draw()
    if plt.get_backend().lower() != "agg":  # the window has been shown
        return
    if not _has_lines(plt.gcf()) and not any(word.startswith(("-w", "--ep")) for word in words):
        plt.close()
        print("No run has the Zoo's 100 episodes for a mean: means of 10, as with -w 10")
        draw("-w", "10")
    if not _has_lines(plt.gcf()):
        parser.error("no run has enough episodes: average over fewer with -w, e.g. -w 2")
    output = options.output or Path(options.folder, options.algo, "plot.png")
    plt.savefig(output)
    plt.close()
    print(f"Saved {output}. Next: {next_command(parser.prog, 'enjoy', options)}")
