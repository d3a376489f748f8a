"""
Train a prioritized agent, evaluate it before and after, save it and draw its learning curve.

    python examples/train.py --algo per_sac --env Pendulum-v1 --steps 5000
"""

import argparse
from pathlib import Path
from typing import Any

import gymnasium as gym
import matplotlib
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.results_plotter import load_results, ts2xy

from sb3_per import PERDQN, PERSAC

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ALGORITHMS: dict[str, Any] = {"per_sac": PERSAC, "per_dqn": PERDQN}

# RL Zoo's tuned settings for Pendulum-v1 and CartPole-v1.
HYPERPARAMETERS: dict[str, dict[str, Any]] = {
    "per_sac": dict(learning_rate=1e-3),
    "per_dqn": dict(
        learning_rate=2.3e-3,
        batch_size=64,
        learning_starts=1000,
        target_update_interval=10,
        train_freq=256,
        gradient_steps=128,
        exploration_fraction=0.16,
        exploration_final_eps=0.04,
        policy_kwargs=dict(net_arch=[256, 256]),
    ),
}


def evaluate(model: Any, env_id: str, n_episodes: int) -> str:
    """Mean and standard deviation of the return of the deterministic policy, in an environment of its own."""
    env = Monitor(gym.make(env_id))
    env.reset(seed=1_000)
    mean, deviation = evaluate_policy(model, env, n_eval_episodes=n_episodes)
    return f"{mean:.1f} +/- {deviation:.1f} (mean return over {n_episodes} episodes)"


def plot(folder: Path, title: str) -> Path:
    """Return of every training episode, with a moving average, as a PNG."""
    steps, returns = ts2xy(load_results(str(folder)), "timesteps")
    fig, ax = plt.subplots(figsize=(7, 4), layout="constrained")
    ax.plot(steps, returns, ".", alpha=0.5, label="episode")
    window = max(1, min(10, len(returns) // 3))
    means = [returns[max(0, i + 1 - window) : i + 1].mean() for i in range(len(returns))]
    ax.plot(steps, means, label=f"mean of {window} episodes")
    ax.set(title=title, xlabel="environment steps", ylabel="return")
    ax.legend()
    fig.savefig(folder / "learning_curve.png", dpi=150)
    return folder / "learning_curve.png"


def main() -> None:
    """Run with the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algo", choices=sorted(ALGORITHMS), default="per_sac")
    parser.add_argument("--env", default="Pendulum-v1", help="id of a Gymnasium environment")
    parser.add_argument("--steps", type=int, default=5_000, help="environment steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--episodes", type=int, default=10, help="evaluation episodes, before and after")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder of the results")
    args = parser.parse_args()

    folder = args.out / f"{args.algo}_{args.env.replace('/', '_')}"
    folder.mkdir(parents=True, exist_ok=True)
    env = Monitor(gym.make(args.env), str(folder / "monitor.csv"))
    model = ALGORITHMS[args.algo]("MlpPolicy", env, seed=args.seed, **HYPERPARAMETERS[args.algo])

    before = evaluate(model, args.env, args.episodes)
    model.learn(args.steps, progress_bar=True)
    after = evaluate(model, args.env, args.episodes)
    model.save(folder / "model.zip")

    print(f"before:         {before}")
    print(f"after:          {after}")
    print(f"model:          {folder / 'model.zip'}")
    print(f"episodes:       {folder / 'monitor.csv'}")
    print(f"learning curve: {plot(folder, f'{args.algo} on {args.env}')}")


if __name__ == "__main__":
    main()
