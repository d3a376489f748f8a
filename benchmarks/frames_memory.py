"""
Measure the resident memory of a buffer of Atari transitions with every frame stored once. SB3's wrappers and random actions
fill it. A million transitions take a quarter of an hour. SB3's own buffer would take 56.5 GB.

    python benchmarks/frames_memory.py
    python benchmarks/frames_memory.py --slots 20000 --steps 20000
"""

import argparse
import time

import ale_py  # noqa: F401, registers the environments
import numpy as np
import psutil
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack, VecTransposeImage

from sb3_per import PrioritizedReplayBuffer


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    return int(psutil.Process().memory_info().rss)


def main() -> None:
    """Fill the buffer, and print its memory on the way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="BreakoutNoFrameskip-v4")
    parser.add_argument("--slots", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=1_010_000, help="transitions, over all environments")
    parser.add_argument("--n-envs", type=int, default=8)
    args = parser.parse_args()

    env = VecTransposeImage(VecFrameStack(make_atari_env(args.env, n_envs=args.n_envs, seed=0), 4))
    obs = env.reset()
    before, start = resident(), time.time()
    buffer = PrioritizedReplayBuffer(args.slots, env.observation_space, env.action_space, "cpu", args.n_envs, frames=4)
    shown = {args.slots // 100, args.slots // 10, args.slots // 2, args.slots, args.steps}
    for n_added in range(args.n_envs, args.steps + 1, args.n_envs):
        actions = np.array([env.action_space.sample() for _ in range(args.n_envs)])
        new_obs, rewards, dones, infos = env.step(actions)
        next_obs = new_obs.copy()
        for i in np.flatnonzero(dones):
            next_obs[i] = infos[i]["terminal_observation"]
        buffer.add(obs, next_obs, actions, rewards, dones, infos)
        obs = new_obs
        if any(n_added - args.n_envs < n <= n_added for n in shown):
            buffer.sample(32)
            taken, held = resident() - before, buffer.size() * args.n_envs
            print(
                f"{held:,} transitions of {args.slots:,}: {taken / 1e9:.2f} GB resident, "
                f"{taken / held:.0f} bytes a transition, "
                f"{buffer.frames_per_transition:.3f} frames a transition, {time.time() - start:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
