"""
Tune PERDQN with Optuna through RL Zoo: the scheme, alpha and beta_start of the buffer, beside what the Zoo tunes for DQN.

    python examples/tune_with_zoo.py

It is the command line `python -m sb3_per.zoo tune --algo per_dqn --env CartPole-v1 ...`, which takes all options of
the Zoo; 10 short trials show how, a search needs more and longer ones. Needs RL Zoo: pip install "rl_zoo3[plots]" "requests"
"""

import os

import torch as th

from sb3_per.zoo import main

if "OMP_NUM_THREADS" not in os.environ:
    th.set_num_threads(1)  # more would wait for each other, see docs/troubleshooting.md

STEPS, TRIALS = (500, 2) if os.environ.get("SB3_PER_SHORT") else (10_000, 10)

main(
    [
        *("tune", "--algo", "per_dqn", "--env", "CartPole-v1"),
        *("--n-timesteps", str(STEPS)),
        *("--n-trials", str(TRIALS)),
        # The pruner needs an evaluation before the last; the first trials are random, and tell it what is bad.
        *("--n-evaluations", "4", "--n-startup-trials", "3"),
        *("--log-folder", "runs/zoo", "--no-optim-plots"),
        *("--seed", "0"),
    ]
)
print("all trials: runs/zoo/per_dqn/report_*.csv")
