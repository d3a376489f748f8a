"""Read the required options of RL Zoo's scripts and our own, and show help without a wait for PyTorch."""

import argparse

from sb3_per.utils.arguments import Parser, count, share

# Purpose of each script, by its name.
SCRIPTS: dict[str, str] = {
    "train": "train an agent with RL Zoo",
    "tune": "search for hyperparameters with RL Zoo and Optuna",
    "enjoy": "watch a trained agent",
    "record-video": "record a video of a trained agent",
    "plot": "plot the returns of training episodes",
}

# The Zoo's module that runs a script, where it has another name.
MODULES = {"tune": "train", "record-video": "record_video", "plot": "plots.plot_train"}

# Options that only the Zoo reads, for the help.
_OF_ANY_RUN = """
  -conf FILE              your own hyperparameter file
  -params NAME:VALUE ...  replace hyperparameters of the file
  --env-kwargs NAME:VALUE ...  arguments of the environment
"""
_OF_PLAYERS = """
  -n N                    number of steps; default: 1000
  --exp-id N              number of the run; default: the newest
  --load-best             load the best model instead of the last
  --load-checkpoint N     load the checkpoint after N steps
  --load-last-checkpoint  load the last checkpoint
"""
_OF_ZOO = {
    "train": f"""
  -n N                    number of environment steps; default: of the file{_OF_ANY_RUN.rstrip()}
  --seed N                seed of the run; default: a random one
  --num-threads N         threads of PyTorch; default: OMP_NUM_THREADS, or 1, with images PyTorch's own number
  --eval-freq N           evaluate every N steps; default: 25000, -1: never
  --save-freq N           save a checkpoint every N steps
  --save-replay-buffer    save the replay buffer too
  -tb FOLDER              folder of logs for TensorBoard
""",
    "tune": f"""
  -n N                    number of environment steps of a trial; default: of the file{_OF_ANY_RUN.rstrip()}
  --seed N                seed of the search; default: a random one
  --n-trials N            number of trials; default: 500
  --n-jobs N              number of trials at a time; default: 1
  --n-startup-trials N    random trials at the beginning; default: 10
  --n-evaluations N       evaluations of a trial; default: one for 100,000 steps
  --eval-episodes N       episodes of an evaluation; default: 5
  --sampler {{random,tpe,auto}}  default: tpe
  --pruner {{halving,median,none}}  default: median
  --no-optim-plots        draw no plots of the search
""",
    "enjoy": f"{_OF_PLAYERS}  --no-render             open no window\n",
    "record-video": _OF_PLAYERS,
    "plot": """
  -x {steps,episodes,time}  default: steps
  -y {success,reward,length}  default: reward
  -w N                    average over N episodes; default: 100
  -max N                  plot the first N steps only
""",
}


def parser_of(script: str, prog: str) -> argparse.ArgumentParser:
    """
    Make a parser for the options that we read. It leaves the others to the Zoo.

    :param script: name of the script
    :param prog: program name shown in usage and errors
    :return: the parser
    """
    epilog = f"options of RL Zoo; python -m rl_zoo3.{MODULES.get(script, script)} --help lists all of them:{_OF_ZOO[script]}"
    usage = "%(prog)s --algo ALGO --env ENV [options]"
    form = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog, usage, SCRIPTS[script], epilog, formatter_class=form, allow_abbrev=False)
    add = parser.add_argument
    add("-a", "--algo", required=True, metavar="ALGO", help="algorithm, e.g. per_sac, or one of the Zoo's, e.g. sac")
    n_envs = "+" if script == "plot" else 1
    what = "id of the environment, e.g. Pendulum-v1 or module:Name-v0"
    add("-e", "--env", required=True, nargs=n_envs, metavar="ENV", help=what)
    if script != "plot":
        add("--gym-packages", nargs="+", default=[], metavar="MODULE", help="modules that register environments")
    names = ("-f", "--folder", "--log-folder", "--exp-folder")  # all of the Zoo's scripts
    add(*names, default="logs", metavar="FOLDER", help="folder of the runs; default: logs")
    if script == "train":
        add("--resume", action="store_true", help="go on with the newest run, up to the number of steps")
        add("--demonstrations", metavar="PATH", help="draw a share of each batch from a .buffer directory or a Minari dataset")
        what = "this share, above 0 and at most 1; default: of the hyperparameter file, or 0.25"
        add("--demonstration-fraction", type=share, metavar="SHARE", help=what)
        add("--actors", type=count, default=0, metavar="N", help="let N processes collect while one learns")
    elif script == "tune":
        what = "file of the study: a search continues from it, and several share it; default: tune.log beside the runs"
        add("--storage", metavar="PATH", help=what)
        add("--study-name", metavar="NAME", help="name of the study in the storage; default: environment and time")
        parser.set_defaults(resume=False, demonstrations=None, demonstration_fraction=None, actors=0)
    elif script == "plot":
        add("-o", "--output", metavar="FILE", help="write a picture, e.g. plot.png, and open no window")
    return parser
