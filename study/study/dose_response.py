"""
Dose and response: the rarer the reward in the buffer, the more does prioritized replay help? The Blind Cliffwalk of Schaul et
al. (2016), with a network in place of their table.

n states in a row. The right action leads on, and has a reward of 1 in the last state; the wrong one ends the episode with
reward 0. The buffer holds 2^(n + 1) transitions of random actions, in which one episode in 2^n succeeds on average. Both
actions of every state occur, so at least one episode succeeds. Nothing is added later, so exploration plays no part.

Why both actions occur: in a pilot, a seed with two successes at n = 11 was slow for every arm. Such seeds have no wrong action
in one of the last states. Its value is then in no transition, and the endpoint waits for what the network makes of the others.
Of 100 seeds each at n = 6, 8 and 11, 38 to 46 lacked an action, so the transitions are drawn again until none is lacking. Two
successes alone make the task easier, not harder.

What was declared before the first run: declared.md.
"""

from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.logger import Logger

from sb3_per import PERDQN

from .campaign import Campaign, Contrast
from .learning import dqn
from .suites import NO_WEIGHTS

SIZES = (6, 8, 10, 12, 14, 16)
MAX_UPDATES = 50_000
# Updates between two copies of the target network, and between two checks.
PERIOD = 50
N_FEATURES = 16

# Beta reaches its end where the run does.
_ANNEALED: dict[str, Any] = dict(beta_anneal_steps=MAX_UPDATES)
ARMS: dict[str, dict[str, Any]] = {
    "uniform": dict(scheme="uniform"),
    "defaults": _ANNEALED,
    "no weights": NO_WEIGHTS,
    "LAP": dict(scheme="lap", alpha=0.4, kappa=0.01),
    "rank": dict(scheme="rank", **_ANNEALED),
    "shuffled, defaults": dict(scheme="shuffled proportional", **_ANNEALED),
    "shuffled, no weights": dict(scheme="shuffled proportional", **NO_WEIGHTS),
}


class Cliffwalk(gym.Env):
    """The task that belongs to a seed: its spaces and its transitions, with this number of states in a row."""

    observation_space = spaces.Box(-np.inf, np.inf, (N_FEATURES,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, n_states: int, seed: int):
        rng = np.random.default_rng((n_states, seed))
        self.n_states, self.gamma = n_states, 1 - 1 / n_states
        self.observations = rng.standard_normal((n_states + 1, N_FEATURES), dtype=np.float32)
        self.right_actions = rng.integers(2, size=n_states)
        self.true_values = self.gamma ** np.arange(n_states - 1, -1, -1.0)
        n_kinds = 0
        while n_kinds < 2 * n_states:
            self.states, self.is_right = self._walk(rng)
            n_kinds = len(np.unique(2 * self.states + self.is_right))
        self.rewards = self.is_right & (self.states == n_states - 1)

    def _walk(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Walk with a random policy. Return its states, and whether its action in each state is right."""
        is_right = rng.integers(2, size=2 ** (self.n_states + 1)).astype(bool)
        states, state = np.empty(len(is_right), np.int64), 0
        for i, leads_on in enumerate(is_right.tolist()):
            states[i] = state
            state = (state + 1) % self.n_states if leads_on else 0
        return states, is_right

    def fill(self, model: PERDQN) -> None:
        right = self.right_actions[self.states]
        model.replay_buffer.extend(
            self.observations[self.states][:, None],
            self.observations[self.states + 1][:, None],
            np.where(self.is_right, right, 1 - right)[:, None, None],
            self.rewards.astype(np.float32)[:, None],
            (~self.is_right | self.rewards)[:, None],
            [[{}]] * len(self.states),
        )

    def is_solved(self, model: PERDQN) -> bool:
        """Check that the network knows the value of every right action, and prefers this action."""
        with th.no_grad():
            values = model.q_net(th.as_tensor(self.observations[:-1])).numpy()
        states = np.arange(self.n_states)
        right, wrong = values[states, self.right_actions], values[states, 1 - self.right_actions]
        is_close = np.abs(right - self.true_values) <= 0.25 * self.true_values
        return bool(np.all(is_close & (right - wrong >= 0.5 * self.true_values)))


def train(n_states: int, arm: str, option: str, rate: float, seed: int) -> dict[str, Any]:
    """Train until the task is solved. Return ``updates``, whether they ``solved`` it, and ``successes`` in the buffer."""
    task = Cliffwalk(n_states, seed)
    settings: dict[str, Any] = dict(
        learning_rate=rate,
        buffer_size=len(task.states),
        batch_size=32,
        gamma=task.gamma,
        max_grad_norm=None,  # not clipped, which takes a fifth of the time
        policy_kwargs=dict(net_arch=[64, 64], optimizer_kwargs=dict(fused=True)),
    )
    model = dqn(ARMS, arm, task, seed=seed, **settings)
    model.set_logger(Logger(None, []))
    task.fill(model)
    updates, is_solved = 0, False
    while not is_solved and updates < MAX_UPDATES:
        model.train(PERIOD)
        updates += PERIOD
        model.q_net_target.load_state_dict(model.q_net.state_dict())
        is_solved = task.is_solved(model)
    return {"updates": updates, "solved": int(is_solved), "successes": int(task.rewards.sum())}


def floor_of(n_states: int) -> int:
    """Compute the fewest updates of a run: a value has to pass through one copy of the target network for each state."""
    return PERIOD * n_states


_OTHERS = [arm for arm in ARMS if arm != "uniform"]
CAMPAIGN = Campaign(
    name="dose-response",
    endpoint=f"Updates until solved, at most {MAX_UPDATES:,}.",
    unit="states",
    tasks=SIZES,
    arms=dict.fromkeys(ARMS, ("",)),
    rates=(3e-4, 1e-3, 3e-3),
    choosing={n: range(100, 102 if n == 14 else 105) for n in SIZES[:-1]},
    reporting=range(200, 215),
    train=train,
    score=lambda row: -float(np.log(float(row["updates"]))),
    primary=(
        *(Contrast(arm, "uniform", "slope") for arm in _OTHERS),
        *(Contrast(arm, f"shuffled, {arm}", "slope") for arm in ("defaults", "no weights")),
    ),
    by_task=tuple(Contrast(arm, "uniform", "each") for arm in _OTHERS),
    undeclared=(Contrast("defaults", "uniform", "slope", 10), Contrast("no weights", "defaults", "slope")),
    growth=0,
    is_log=True,
    digits=(0, 3),
    name_of=lambda n, arm, option, rate, seed: dict(n_states=n, arm=arm, learning_rate=rate, seed=seed),
    figure="updates",
    cap=MAX_UPDATES,
    floor=floor_of,
)
