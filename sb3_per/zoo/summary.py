"""
Print the result of a run of RL Zoo, and draw its learning curve::

    python -m sb3_per.zoo.summary --algo per_sac --env Pendulum-v1 -f runs

It prints the returns of a random policy, of the newest run and of a solved task, and writes ``learning_curve.png`` to the
folder of the run. It needs the extra ``zoo``, and evaluations: train with ``--eval-freq``.
"""

from collections.abc import Sequence
from pathlib import Path

import gymnasium as gym
import numpy as np
from stable_baselines3.common.env_util import make_vec_env

from sb3_per.utils.arguments import Parser, missing_packages_in_one_line
from sb3_per.utils.colours import BLUE, INK
from sb3_per.zoo.environments import register_environment
from sb3_per.zoo.names import newest_run
from sb3_per.zoo.random_policy import evaluate_random
from sb3_per.zoo.registry import register

RANDOM_EPISODES = 20
RANDOM_SEED = 1_000_000  # episodes that no training run has seen

# Environments for which Gymnasium names no threshold. Trained agents reach about -150 on Pendulum-v1.
_SOLVED = {"Pendulum-v1": -200.0}


def solved_return(env: str) -> float | None:
    """
    Look up the return from which on a task counts as solved.

    :param env: name of the environment
    :return: threshold of Gymnasium or of this module; ``None`` if there is none
    """
    return _SOLVED.get(env, gym.spec(env).reward_threshold)


def draw(steps: np.ndarray, returns: np.ndarray, random: float, solved: float | None, title: str, path: Path) -> None:
    """
    Draw returns over steps, with lines for a random policy and a solved task. Works without a display.

    :param steps: time step of each evaluation, shape (n_evaluations,)
    :param returns: return of each episode, shape (n_evaluations, n_episodes)
    :param random: return of a random policy
    :param solved: return of a solved task, or ``None``
    :param title: title of the picture
    :param path: PNG file to write
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(steps, returns.mean(axis=1), color=BLUE, marker="o", label="this run")
    low, high = returns.min(axis=1), returns.max(axis=1)
    axes.fill_between(steps, low, high, color=BLUE, alpha=0.15, linewidth=0, label="worst to best episode")
    if solved is not None:
        axes.axhline(solved, color=INK, linestyle="--", label="solved")
    axes.axhline(random, color=INK, linestyle=":", label="random policy")
    axes.set(title=title, xlabel="environment steps", ylabel="return")
    axes.legend()
    figure.savefig(path, dpi=150)


def main(arguments: Sequence[str] | None = None) -> None:
    """
    Print the summary of the newest run and draw its learning curve.

    :param arguments: options; ``None``: those of the command line
    """
    parser = Parser("python -m sb3_per.zoo.summary", description="Print the result of a run of RL Zoo")
    parser.add_argument("--algo", required=True, help="algorithm, e.g. per_sac")
    parser.add_argument("--env", required=True, help="environment, e.g. Pendulum-v1")
    parser.add_argument("-f", "--folder", type=Path, default=Path("logs"), help="folder of the runs")
    parser.add_argument("--gym-packages", nargs="+", default=[], metavar="MODULE", help="modules that register environments")
    parser.add_argument("--next", help="command to suggest at the end")
    args = parser.parse_args(arguments)
    with missing_packages_in_one_line(parser.prog):
        register()
    try:
        args.env = register_environment(args.env, args.gym_packages)
        run = newest_run(args.folder, args.algo, args.env)
    except (FileNotFoundError, ValueError) as error:
        parser.error(str(error))
    if not (run / "evaluations.npz").exists():
        parser.error(f"{run} has no evaluations: train with --eval-freq 1000")
    with np.load(run / "evaluations.npz") as evaluations:
        steps, returns = evaluations["timesteps"], evaluations["results"]
    unseen = make_vec_env(lambda: gym.make(args.env), seed=RANDOM_SEED)  # by its name, SB3 would ask for pictures
    random, solved = evaluate_random(unseen, RANDOM_EPISODES)[0], solved_return(args.env)
    curve = run / "learning_curve.png"
    draw(steps, returns, random, solved, f"{args.algo} on {args.env}", curve)

    # Rewards of 0 and 1 need digits, returns of hundreds do not.
    digits = 0 if max(abs(random), np.abs(returns).max()) >= 20.0 else 2
    level = "no agreed level" if solved is None else f"{solved:8.{digits}f}   (or more)"
    print(f"\n{args.algo} on {args.env}, mean return")
    print(f"  random policy  {random:8.{digits}f}   ({RANDOM_EPISODES} episodes)")
    print(f"  this run       {returns[-1].mean():8.{digits}f}   ({returns.shape[1]} episodes after {steps[-1]:,} steps)")
    print(f"  solved task    {level}")
    print(f"Learning curve: {curve}")
    if returns[-1].mean() <= random:
        print('No better than a random policy: see "The agent does not learn at all" in docs/troubleshooting.md')
    if args.next:
        print(f"Try next:       {args.next}")


if __name__ == "__main__":
    main()
