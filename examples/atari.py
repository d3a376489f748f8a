"""
Prioritized DQN on Atari's Breakout, from pixels.

    python examples/atari.py

The 20,000 steps take minutes on a CPU and show that it runs. RL Zoo trains DQN for 10 million with a buffer of 100,000: for
that, take a GPU. Needs ale-py and opencv-python: pip install "ale-py" "opencv-python"
"""

import os
import sys

from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack

from sb3_per import PERDQN

try:
    import ale_py  # noqa: F401  (registers the games)
    import cv2  # noqa: F401  (scales the images)
except ImportError as error:
    sys.exit(f'Atari needs ale-py and opencv-python: pip install "ale-py" "opencv-python" ({error})')

STEPS = 200 if os.environ.get("SB3_PER_SHORT") else 20_000
os.makedirs("runs", exist_ok=True)

env = VecFrameStack(make_atari_env("BreakoutNoFrameskip-v4", seed=0), n_stack=4)
model = PERDQN(
    "CnnPolicy",
    env,
    # Every frame is stored once: 7 kB for a transition, not 56 kB.
    buffer_size=100_000,
    replay_buffer_kwargs=dict(scheme="lap", alpha=0.6, kappa=0.01, frames="auto"),
    learning_starts=STEPS // 20,
    # RL Zoo's settings for DQN.
    learning_rate=1e-4,
    double_q=True,
    batch_size=32,
    train_freq=4,
    target_update_interval=1_000,
    exploration_fraction=0.1,
    exploration_final_eps=0.01,
    verbose=1,
    seed=0,
)
model.learn(STEPS)
model.save("runs/atari")
