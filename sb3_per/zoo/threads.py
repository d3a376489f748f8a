"""Choose the number of PyTorch's threads for a command, unless the user has."""

import os

import torch as th
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space


def default_threads() -> int:
    """
    Count the threads that PyTorch takes by itself.

    :return: number of threads; 0 if the user has chosen it with ``OMP_NUM_THREADS`` or ``MKL_NUM_THREADS``
    """
    is_chosen = "OMP_NUM_THREADS" in os.environ or "MKL_NUM_THREADS" in os.environ
    return 0 if is_chosen else th.get_num_threads()


def has_images(space: spaces.Space) -> bool:
    """
    Say whether observations have images, whose networks are large enough for several threads.

    :param space: observation space
    :return: whether there is an image
    """
    parts = space.spaces.values() if isinstance(space, spaces.Dict) else [space]
    return any(is_image_space(part) for part in parts)
