"""
Measure the resident memory of a buffer of Atari transitions with every frame stored once. SB3's wrappers and random actions
fill it. A million transitions take a quarter of an hour. SB3's own buffer would take 56.5 GB.

    python benchmarks/frames_memory.py
    python benchmarks/frames_memory.py --slots 20000 --steps 20000
"""

import argparse
import time

import ale_py  # noqa: F401, registers the environments
import psutil
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack

from sb3_per import PERDQN

N_ENVS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=1_010_000, help="transitions, over all environments")
    args = parser.parse_args()

    env = VecFrameStack(make_atari_env("BreakoutNoFrameskip-v4", N_ENVS, seed=0), 4)
    settings = dict(buffer_size=args.slots, learning_starts=args.steps + 1, replay_buffer_kwargs=dict(frames=4))
    model = PERDQN("CnnPolicy", env, device="cpu", **settings)  # acts at random until learning starts
    before, start = psutil.Process().memory_info().rss, time.time()
    shown = [args.slots // 100, args.slots // 10, args.slots // 2, args.slots, args.steps]

    def show(*_: object) -> bool:
        if any(model.num_timesteps - N_ENVS < n <= model.num_timesteps for n in shown):
            model.replay_buffer.sample(32)
            taken, held = psutil.Process().memory_info().rss - before, model.replay_buffer.size() * N_ENVS
            print(
                f"{held:,} transitions of {args.slots:,}: {taken / 1e9:.2f} GB resident, "
                f"{taken / held:.0f} bytes a transition, "
                f"{model.replay_buffer.frames_per_transition:.3f} frames a transition, {time.time() - start:.0f} s",
                flush=True,
            )
        return True

    model.learn(args.steps, callback=show)


if __name__ == "__main__":
    main()
