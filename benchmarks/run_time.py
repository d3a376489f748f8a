"""
Measure what prioritization adds to the run time of TD3, as in table 3 of Fujimoto et al. (2020).

    python benchmarks/run_time.py                         # on an otherwise idle machine
    python benchmarks/run_time.py --quick --out runs/try  # to try it

The variants train in turn, 1,000 steps each time, with a buffer that is full from the start, as late in a long run. The time
includes steps of the environment and of the gradient. The cheaper those are, the larger the percentages.
"""

from typing import Any

import numpy as np
import torch as th
from baselines import PerSample
from campaign import options
from stable_baselines3 import TD3
from timing import filled, machine, seconds

from sb3_per import PERTD3

N_ROUNDS = 9
N_THREADS = 1
# Percent over uniform replay in the paper: trees of the authors, of Dopamine, and of OpenAI Baselines.
PAPER = "+14%, +75% and +229%"

VARIANTS: dict[str, tuple[Any, dict[str, Any] | None]] = {
    "TD3": (TD3, None),
    "PERTD3, uniform": (PERTD3, dict(scheme="uniform")),
    "PERTD3": (PERTD3, {}),
    "PERTD3, per-sample Python tree": (PERTD3, dict(scheme=PerSample())),
}


def make_model(variant: str, buffer_size: int) -> Any:
    cls, buffer_kwargs = VARIANTS[variant]
    settings = dict(policy_kwargs=dict(net_arch=[256, 256]), learning_rate=3e-4, batch_size=256, learning_starts=0, seed=0)
    model = cls("MlpPolicy", "HalfCheetah-v5", buffer_size=buffer_size, replay_buffer_kwargs=buffer_kwargs, **settings)
    filled(model.replay_buffer)
    return model


def measure(n_steps: int, buffer_size: int) -> np.ndarray:
    """Time the variants in turn. Return seconds per 1,000 steps, shape (rounds, variants)."""
    models = [make_model(variant, buffer_size).learn(n_steps // 10) for variant in VARIANTS]
    times = [[seconds(lambda: model.learn(n_steps, reset_num_timesteps=False)) for model in models] for _ in range(N_ROUNDS)]  # noqa: B023
    return np.array(times) * 1_000 / n_steps


def report(times: np.ndarray) -> str:
    """Write the medians over the rounds, of the seconds and of the ratios within a round."""
    lines = [f"{machine()}, one thread; HalfCheetah-v5, a million transitions, batch 256; {N_ROUNDS} rounds.", ""]
    lines += ["| | seconds per 1,000 steps | over TD3 (quartiles) |", "|---|---|---|"]
    for variant, values in zip(VARIANTS, times.T, strict=True):
        low, median, high = np.percentile(100 * (values / times[:, 0] - 1), [25, 50, 75])
        over = "" if variant == "TD3" else f"{median:+.0f}% ({low:+.0f} to {high:+.0f})"
        lines.append(f"| {variant} | {np.median(values):.2f} | {over} |")
    return "\n".join([*lines, "", f"In the paper, on a GPU, three trees of others: {PAPER}.", ""])


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--quick", action="store_true", help="small buffers and few steps")
    args = parser.parse_args()
    th.set_num_threads(N_THREADS)
    times = measure(*((100, 10_000) if args.quick else (1_000, 1_000_000)))
    args.out.mkdir(parents=True, exist_ok=True)
    heading = ",".join(f'"{variant}"' for variant in VARIANTS)
    np.savetxt(args.out / "run_time.csv", times, "%.3f", ",", header=heading, comments="")
    (args.out / "run_time.md").write_text(report(times))
    print(report(times))


if __name__ == "__main__":
    main()
