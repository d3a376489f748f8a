"""
Run the recipes of the documentation and the examples in full. Write their scores.

    python benchmarks/recipes.py                                  # run what is missing, and write the table
    python benchmarks/recipes.py --only HER --out runs/recipes    # only recipes whose name contains HER, in another folder

Editing a recipe discards its cached results.
"""

import argparse
import ast
import contextlib
import functools
import hashlib
import json
import os
import runpy
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import yaml
from pages import Block, blocks_of, commands_of, write_named_file
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv, VecMonitor
from targets import target_of

from sb3_per.compare.campaign import Job, read, run_missing
from sb3_per.compare.statistics import mean_interval, paired_p
from sb3_per.integrations import from_vector_env
from sb3_per.zoo import config_path

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))
from pairs_trading_env import PairsTradingEnv
from plane_env import PlaneVecEnv

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "docs" / "benchmarks"

N_EPISODES, SEED = 20, 0
# Seed of the first evaluation environment, far from the training seeds.
EVALUATION_SEED = 1_000_000


class Recipe(NamedTuple):
    """A script or a block of the documentation that trains, whose run must reach its target."""

    place: str  # a script, or a page and the heading above a block of Python that learns or a command of RL Zoo
    # environment of the evaluation, as SB3's ``make_vec_env`` takes it, or a function that makes a VecEnv
    env: str | Callable[[], Any]
    score: str = "return"  # "return", mean of 20 episodes, or "success", share of them that reach the goal
    word: str = ""  # word that identifies the block under the heading, and its command; a script gets it as an argument
    n_seeds: int = 1  # with more than one, the script gets the seed as an argument


def plane() -> VecEnv:
    return VecMonitor(PlaneVecEnv(1, seed=EVALUATION_SEED))


def reacher() -> VecEnv:
    """Make as many environments as there are episodes."""
    import envpool

    settings = dict(num_envs=N_EPISODES, num_threads=1, seed=EVALUATION_SEED, frame_skip=4, max_episode_steps=250)
    return from_vector_env(envpool.make("ReacherHard-v1", env_type="gymnasium", **settings), flatten=True)


PENDULUM, CARTPOLE, BITS = "Pendulum-v1", "CartPole-v1", functools.partial(BitFlippingEnv, n_bits=10)
RECIPES = {
    "HER": Recipe("docs/start.md#Hindsight experience replay", BITS, score="success"),
    "own algorithm": Recipe("examples/own_algorithm.py", CARTPOLE),
    "RL Zoo, own.yml": Recipe("docs/command_line.md#Your own hyperparameters", CARTPOLE, word="own.yml"),
    "RL Zoo, other settings": Recipe("docs/command_line.md#Your own hyperparameters", CARTPOLE, word="-params"),
    "HER, script": Recipe("examples/her_bit_flipping.py", BITS, score="success"),
    "own scheme": Recipe("examples/own_scheme.py", PENDULUM),
    "one import": Recipe("docs/start.md#One import", PENDULUM),
    "RL Zoo, Pendulum": Recipe("docs/command_line.md#Train, watch, plot", PENDULUM, word=PENDULUM),
    "RL Zoo, CartPole": Recipe("docs/command_line.md#Train, watch, plot", CARTPOLE, word=CARTPOLE),
    "from SAC": Recipe("examples/from_sac.py", PENDULUM),
    "continued": Recipe("examples/continue_run.py", PENDULUM),
    "LAP, script": Recipe("examples/lap_td3.py", PENDULUM),
    "Double DQN, script": Recipe("examples/double_dqn.py", CARTPOLE),
    "one import, script": Recipe("examples/swap_import.py", PENDULUM),
    "actors, script": Recipe("examples/actors.py", PENDULUM),
    "many environments, script": Recipe("examples/many_environments.py", plane, score="success"),
    "pairs trading, script": Recipe("examples/pairs_trading.py", PairsTradingEnv),
    "EnvPool, script": Recipe("examples/envpool_reacher.py", reacher, n_seeds=10),
    "EnvPool, script, uniform draws": Recipe("examples/envpool_reacher.py", reacher, word="uniform", n_seeds=10),
}


def source_of(recipe: Recipe) -> tuple[list[Block], Block]:
    """Return the blocks before the one of a recipe on its page, and the block itself."""
    path, heading = recipe.place.split("#")
    blocks = blocks_of(ROOT / path)
    for position, block in enumerate(blocks):
        trains = ".learn(" in block.code if block.language == "python" else "sb3-per train" in block.code
        if block.heading == heading and trains and recipe.word in block.code:
            return blocks[:position], block
    raise ValueError(f"{path} has no recipe under {heading!r}")


def zoo_command(recipe: Recipe, block: Block) -> list[str]:
    """Return the words of the first training command that contains the recipe's word, without the name of the program."""
    return next(words[1:] for words in commands_of(block.code) if "train" in words and recipe.word in " ".join(words))


def command_of(name: str) -> str:
    place = RECIPES[name].place
    if "#" not in place:
        return f"python {place} {RECIPES[name].word}".strip()
    _, block = source_of(RECIPES[name])
    if block.language == "python":
        return f'python benchmarks/recipes.py --only "{name}"'
    return shlex.join(["sb3-per", *zoo_command(RECIPES[name], block)])


def fingerprint(name: str) -> str:
    """Hash everything that a recipe runs. The docstring of a script, which names its score, does not count."""
    recipe = RECIPES[name]
    if "#" not in recipe.place:
        _, _, text = (ROOT / recipe.place).read_text().split('"""', 2)
        text += recipe.word
    else:
        before, block = source_of(recipe)
        text = block.code
        if block.language == "bash":
            command = zoo_command(recipe, block)
            algo, env = command[command.index("--algo") + 1], command[command.index("--env") + 1]
            files = [other for other in before if other.file_name and Path(other.file_name).stem in text]
            config = {} if "-conf" in command else yaml.safe_load(config_path(algo).read_text())[env]
            text = "".join([" ".join(command), json.dumps(config, sort_keys=True), *(other.code for other in files)])
    return hashlib.sha256(text.encode()).hexdigest()[:8]


@contextlib.contextmanager
def watched(keeps_seeds: bool) -> Iterator[list[tuple[Any, float]]]:
    """
    Record the models that learn within the context, and their seconds.

    :param keeps_seeds: leave the models their own seeds; otherwise all get the same one
    """
    runs = []
    set_random_seed, learn = BaseAlgorithm.set_random_seed, OffPolicyAlgorithm.learn

    def learn_timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        result = learn(self, *args, **kwargs)
        runs.append((self, time.perf_counter() - start))
        return result

    seeded = mock.patch.object(BaseAlgorithm, "set_random_seed", lambda self, _=None: set_random_seed(self, SEED))
    with contextlib.nullcontext() if keeps_seeds else seeded, mock.patch.object(OffPolicyAlgorithm, "learn", learn_timed):
        yield runs


@contextlib.contextmanager
def elsewhere() -> Iterator[None]:
    """Work in an empty folder, and import modules from there, not from this one, whose sbx.py would hide the package."""
    before, others = Path.cwd(), [path for path in sys.path if Path(path).resolve() != ROOT / "benchmarks"]
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(sys, "path", [folder, *others]):
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def run(recipe: Recipe, seed: int) -> None:
    if "#" not in recipe.place:
        arguments = [str(seed), recipe.word] if recipe.n_seeds > 1 else []
        with mock.patch.object(sys, "argv", [recipe.place, *arguments]):
            runpy.run_path(str(ROOT / recipe.place), run_name="__main__")
        return
    before, block = source_of(recipe)
    if block.language == "bash":
        from sb3_per.zoo import main

        for other in before:
            write_named_file(other)
        main([*zoo_command(recipe, block), "--seed", str(SEED)])
        return
    # The block needs the imports of the blocks before it, not their runs.
    script = ModuleType("__main__")
    for other in (other for other in before if other.language == "python"):
        tree = ast.parse(other.code)
        tree.body = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        exec(compile(tree, recipe.place, "exec"), vars(script))
    exec(compile(block.code, recipe.place, "exec"), vars(script))


def evaluation_env(env: str | Callable[[], Any]) -> VecEnv:
    """Make the environment of the evaluation, with the same episodes every time."""
    if callable(env) and isinstance(made := env(), VecEnv):
        return made
    return make_vec_env(env, seed=EVALUATION_SEED)


@functools.cache
def random_score(env: str | Callable[[], Any], score: str) -> float:
    envs = evaluation_env(env)
    envs.action_space.seed(EVALUATION_SEED)

    class RandomPolicy:
        def predict(self, *_: Any, **__: Any) -> tuple[np.ndarray, None]:
            return np.array([envs.action_space.sample() for _ in range(envs.num_envs)]), None

    return score_of(RandomPolicy(), envs, score)


def score_of(policy: Any, env: Any, score: str) -> float:
    """Play the same ``N_EPISODES`` episodes every time. Return the mean return, or the share of successful episodes."""
    successes = []

    def note(of_evaluation: dict[str, Any], _: dict[str, Any]) -> None:
        if of_evaluation["done"]:
            successes.append(of_evaluation["info"].get("is_success", False))

    mean_return, _ = evaluate_policy(policy, env, N_EPISODES, callback=note)
    return float(np.mean(successes) if score == "success" else mean_return)


def train(name: str, seed: int = SEED) -> dict[str, Any]:
    """Run a recipe once. Return the steps of its last model, seconds of learning of all, and the score."""
    recipe = RECIPES[name]
    with (
        elsewhere(),
        watched(recipe.n_seeds > 1) as runs,
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
    ):
        run(recipe, seed)
        model = runs[-1][0]
        envs = model._wrap_env(evaluation_env(recipe.env), verbose=0)
        score = score_of(model, envs, recipe.score)
    return dict(steps=model.num_timesteps, learning=round(sum(seconds for _, seconds in runs)), score=round(score, 2))


def jobs_of(names: list[str]) -> list[Job]:
    seeds = [(name, SEED + i) for name in names for i in range(RECIPES[name].n_seeds)]
    return [(dict(recipe=name, seed=seed, source=fingerprint(name)), (name, seed)) for name, seed in seeds]


def rows_of(name: str, rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Find the runs of a recipe that are there, in the order of their seeds."""
    source = fingerprint(name)
    found = {row["seed"]: row for row in rows if (row["recipe"], row["source"]) == (name, source)}
    return [found[seed] for seed in (str(SEED + i) for i in range(RECIPES[name].n_seeds)) if seed in found]


def scores_of(rows: list[dict[str, str]]) -> np.ndarray:
    return np.array([float(row["score"]) for row in rows])


def with_interval(values: np.ndarray, digits: int) -> str:
    """Write a value, or the mean of several with its 95% interval."""
    middle, low, high = mean_interval(values)
    return f"{middle:.{digits}f}" + (f" [{low:.{digits}f}, {high:.{digits}f}]" if len(values) > 1 else "")


def report(rows: list[dict[str, str]]) -> list[str]:
    cells, missing = [], []
    for name, recipe in RECIPES.items():
        found, digits = rows_of(name, rows), 2 if recipe.score == "success" else 0
        if not found:
            missing.append(name)
            continue
        path, _, heading = recipe.place.partition("#")
        anchor = heading.lower().replace(",", "").replace(" ", "-")
        link = f"[{name}](../{path.removeprefix('docs/')}#{anchor})" if heading else name
        of_random = f"{random_score(recipe.env, recipe.score):.{digits}f}"
        seconds = np.mean([int(row["learning"]) for row in found])
        result = f"{recipe.score} {with_interval(scores_of(found), digits)}"
        what = [f"{int(found[0]['steps']):,}", f"{seconds:.0f}", result, of_random]
        cells.append([link, f"`{command_of(name)}`", *what, f"{target_of('recipes', name):g}"])
    heading = ["recipe", "command", "steps", "seconds", "result", "random policy", "promised"]
    lines = [f"| {' | '.join(row)} |" for row in [heading, *cells]]
    lines.insert(1, "|---" * len(heading) + "|")
    arms = [rows_of(name, rows) for name in ("EnvPool, script", "EnvPool, script, uniform draws")]
    if all(arms):
        pairs = list(zip(*arms, strict=False))  # in both arms, the first seeds come first
        differences = scores_of([ours for ours, _ in pairs]) - scores_of([theirs for _, theirs in pairs])
        lines += [
            "",
            f"EnvPool: means over {len(arms[0])} and {len(arms[1])} of 10 seeds, which are the first argument of the script, "
            "with Student's 95% intervals. Other work ran on the machine, so seconds are too many. Priorities without weights "
            f"minus uniform draws, paired by {len(pairs)} seeds: {with_interval(differences, 0)}, "
            f"p = {paired_p(differences):.3f}.",
        ]
    return [*lines, "", f"Not run in full yet: {'; '.join(missing)}."] if missing else lines


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT, help="folder of recipes.csv and recipes.md")
    parser.add_argument("--only", default="", help=f"one of these, or a part of several names: {', '.join(RECIPES)}")
    parser.add_argument("--workers", type=int, default=1, help="runs at a time, one core each")
    args = parser.parse_args(arguments)
    names = [args.only] if args.only in RECIPES else [name for name in RECIPES if args.only in name]
    if not names:
        parser.error(f"{args.only!r} is none of {', '.join(RECIPES)}")
    path = args.out / "recipes.csv"
    run_missing(path, jobs_of(names), train, args.workers)
    lines = report(read(path))
    (args.out / "recipes.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
