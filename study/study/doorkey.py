"""
MiniGrid-DoorKey with flat observations of the whole grid, 100 steps an episode, and episodes of a planner.

The grid of 5x5 has 48 starts: where the key, the agent and the door are, and where the agent looks.
"""

from collections import deque
from typing import Any

import gymnasium as gym
import minigrid  # noqa: F401  registers the environments
import numpy as np
from gymnasium.wrappers import TransformObservation
from minigrid.core.constants import DIR_TO_VEC, OBJECT_TO_IDX
from minigrid.wrappers import FullyObsWrapper

from sb3_per import PrioritizedReplayBuffer

MAX_STEPS = 100
DQN_SETTINGS = dict(gamma=0.9, batch_size=64, train_freq=2, target_update_interval=200, exploration_fraction=0.4)
N_OBJECTS, N_STATES = len(OBJECT_TO_IDX), 4
OBJECTS, STATES = np.eye(N_OBJECTS, dtype=np.uint8), np.eye(N_STATES, dtype=np.uint8)
LEFT, RIGHT, FORWARD, PICK_UP, TOGGLE = 0, 1, 2, 3, 5
# Position, direction, whether the agent has the key, whether the door is open.
State = tuple[tuple[int, int], int, bool, bool]


def make_env(size: int = 5) -> gym.Env:
    """Make an environment that shows the cells within the walls, as one-hot object and state: 135 numbers in 5x5."""
    # What the agent sees is not used: a small view takes less time.
    name = f"MiniGrid-DoorKey-{size}x{size}-v0"
    env = FullyObsWrapper(gym.make(name, max_steps=MAX_STEPS, agent_view_size=3, see_through_walls=True))
    n_numbers = (size - 2) ** 2 * (N_OBJECTS + N_STATES)
    return TransformObservation(env, encode, gym.spaces.Box(0, 1, (n_numbers,), np.uint8))


def encode(obs: dict[str, Any]) -> np.ndarray:
    """Encode the cells within the walls. The state of the agent's cell is its direction."""
    cells = obs["image"][1:-1, 1:-1].reshape(-1, 3)
    return np.concatenate([OBJECTS[cells[:, 0]].ravel(), STATES[cells[:, 2]].ravel()])


def success_rate(returns: list[float]) -> float:
    """Compute the share of episodes that reach the goal. Only the goal has a reward."""
    return float(np.mean(np.array(returns) > 0.0))


def after(grid: Any, state: State, action: int) -> State:
    """Return the state after an action of the planner."""
    (x, y), direction, has_key, is_open = state
    if action in (LEFT, RIGHT):
        return (x, y), (direction + (1 if action == RIGHT else -1)) % 4, has_key, is_open
    ahead = (x + int(DIR_TO_VEC[direction][0]), y + int(DIR_TO_VEC[direction][1]))
    kind = getattr(grid.get(*ahead), "type", "empty")
    if action == FORWARD:
        free = {"empty", "goal", *(["key"] if has_key else []), *(["door"] if is_open else [])}
        return ahead if kind in free else (x, y), direction, has_key, is_open
    if action == PICK_UP:
        return (x, y), direction, has_key or kind == "key", is_open
    return (x, y), direction, has_key, is_open or (kind == "door" and has_key)


def plan(grid: Any, start: State) -> list[int]:
    """Find the shortest way to the goal by breadth-first search."""
    queue: deque[tuple[State, list[int]]] = deque([(start, [])])
    seen = {start}
    while True:
        state, actions = queue.popleft()
        if getattr(grid.get(*state[0]), "type", "empty") == "goal":
            return actions
        for action in (LEFT, RIGHT, FORWARD, PICK_UP, TOGGLE):
            following = after(grid, state, action)
            if following not in seen:
                seen.add(following)
                queue.append((following, [*actions, action]))


def expert_episodes(n_episodes: int = 10) -> PrioritizedReplayBuffer:
    env = make_env()
    buffer = PrioritizedReplayBuffer(1_000, env.observation_space, env.action_space, device="cpu")
    for seed in range(n_episodes):
        obs, _ = env.reset(seed=seed)
        world: Any = env.unwrapped
        x, y = world.agent_pos
        for action in plan(world.grid, ((int(x), int(y)), int(world.agent_dir), False, False)):
            next_obs, reward, done, _, _ = env.step(action)
            buffer.add(obs[None], next_obs[None], np.array([action]), np.array([reward]), np.array([done]), [{}])
            obs = next_obs
    return buffer
