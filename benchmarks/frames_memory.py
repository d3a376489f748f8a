"""
Measure the resident memory of a buffer of a million Atari transitions with every frame stored once. SB3's wrappers and random
actions fill it, which takes a quarter of an hour. SB3's own buffer would take 56.5 GB.

    python benchmarks/frames_memory.py
    python benchmarks/frames_memory.py 20000    # a smaller buffer
"""

import sys

import ale_py  # noqa: F401, registers the environments
import psutil
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack

from sb3_per import PERDQN

N_ENVS = 8


def main(n_slots: int) -> None:
    env = VecFrameStack(make_atari_env("BreakoutNoFrameskip-v4", N_ENVS, seed=0), 4)
    settings = dict(buffer_size=n_slots, learning_starts=n_slots + 10_001, replay_buffer_kwargs=dict(frames=4))
    model = PERDQN("CnnPolicy", env, device="cpu", **settings)  # acts at random until learning starts
    before = psutil.Process().memory_info().rss
    for n_steps in (n_slots // 100, n_slots // 10, n_slots // 2, n_slots, n_slots + 10_000):
        model.learn(n_steps - model.num_timesteps, reset_num_timesteps=False)
        model.replay_buffer.sample(32)
        taken, held = psutil.Process().memory_info().rss - before, model.replay_buffer.size() * N_ENVS
        frames = f"{model.replay_buffer.frames_per_transition:.3f} frames a transition"
        print(f"{held:,} of {n_slots:,}: {taken / 1e9:.2f} GB, {taken / held:.0f} bytes and {frames}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
