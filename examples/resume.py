"""
Kill a run with SIGKILL, and continue it from its newest complete checkpoint: runs/resume.png.

    python examples/resume.py
"""

import os
import shutil
import subprocess
import sys
import time

import matplotlib.pyplot as plt
import numpy as np
import torch as th
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per import PERSAC, BufferCheckpointCallback, latest_checkpoint

if "OMP_NUM_THREADS" not in os.environ:
    th.set_num_threads(1)  # more would wait for each other, see docs/troubleshooting.md

STEPS, EVERY = (300, 50) if os.environ.get("SB3_PER_SHORT") else (6_000, 500)
FOLDER = "runs/resume"


def train() -> None:
    """Train from the newest checkpoint, or from the start: call this at first, and after every kill."""
    if checkpoint := latest_checkpoint(FOLDER):
        model = PERSAC.load(checkpoint.model, VecNormalize.load(str(checkpoint.vec_normalize), make_vec_env("Pendulum-v1")))
        model.load_replay_buffer(checkpoint.buffer)
    else:
        model = PERSAC("MlpPolicy", VecNormalize(make_vec_env("Pendulum-v1"), norm_reward=False), learning_rate=1e-3, seed=0)
    eval_env = VecNormalize(make_vec_env("Pendulum-v1"), training=False, norm_reward=False)
    evaluate = EvalCallback(eval_env, eval_freq=EVERY, log_path=f"{FOLDER}/from_{model.num_timesteps:06}", verbose=0)
    callbacks = [evaluate, BufferCheckpointCallback(EVERY, FOLDER, save_vecnormalize=True)]
    model.learn(STEPS - model.num_timesteps, callback=callbacks, reset_num_timesteps=False)


def n_safe_steps() -> int:
    """Return the number of steps in the newest complete checkpoint, 1234 for rl_model_1234_steps.zip."""
    return int(checkpoint.model.stem.split("_")[-2]) if (checkpoint := latest_checkpoint(FOLDER)) else 0


if "--train" in sys.argv:
    sys.exit(train())  # type: ignore[func-returns-value]
shutil.rmtree(FOLDER, ignore_errors=True)
process = subprocess.Popen(command := [sys.executable, __file__, "--train"])
while n_safe_steps() < STEPS / 2 and process.poll() is None:
    time.sleep(0.02)
process.kill()
print(f"ended with {process.wait()}, continues at {n_safe_steps()} of {STEPS} steps")
subprocess.run(command, check=True)
parts = [np.load(f"{FOLDER}/{name}/evaluations.npz") for name in sorted(os.listdir(FOLDER)) if name.startswith("from_")]
plt.style.use("sb3_per.compare.figures")
for part, line, label in zip(parts, ("C0s-", "C0o:"), ("until it was killed", "from the checkpoint on"), strict=True):
    plt.plot(part["timesteps"], part["results"].mean(axis=1), line, label=label)
plt.gca().set(xlabel="steps of the environment", ylabel="mean return of 5 episodes")
plt.legend()
plt.savefig("runs/resume.png")
print(f"end: {n_safe_steps()} steps, mean return {parts[-1]['results'][-1].mean():.0f}; runs/resume.png")
