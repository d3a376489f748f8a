"""The return of a random policy, with which runs are compared."""

import numpy as np
from stable_baselines3.common.vec_env import VecEnv


def evaluate_random(env: VecEnv, n_episodes: int, n_evaluations: int = 1) -> list[float]:
    """
    Evaluate a random policy, and close the environment.

    :param env: one environment, which has a seed
    :param n_episodes: number of episodes of an evaluation
    :param n_evaluations: number of evaluations
    :return: mean undiscounted return of each evaluation
    """
    means = []
    for _ in range(n_evaluations):
        returns: list[float] = []
        env.reset()
        while len(returns) < n_episodes:
            _, _, _, infos = env.step(np.array([env.action_space.sample()]))
            if "episode" in infos[0]:  # from Monitor
                returns.append(infos[0]["episode"]["r"])
        means.append(float(np.mean(returns)))
    env.close()
    return means
