"""The order of ``VecNormalize`` and the wrappers that change observations."""

from gymnasium import spaces
from stable_baselines3.common.preprocessing import get_obs_shape
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecNormalize


def require_normalized_last(env: VecEnv | None, normalize: VecNormalize | None, space: spaces.Space) -> None:
    """
    Check that observations before normalization are those of the model. SB3 stores them, and normalizes them in each batch.

    :param env: environments of a model
    :param normalize: the ``VecNormalize`` in it; ``None``: there is none
    :param space: observation space of the model
    :raises ValueError: if a wrapper around ``VecNormalize`` changes their shape; the message gives the right order
    """
    if normalize is None:
        return
    before = get_obs_shape(normalize.observation_space)
    if before == get_obs_shape(space):
        return
    outside = []
    while isinstance(env, VecEnvWrapper) and env is not normalize:
        if env.observation_space != env.venv.observation_space:
            outside.append(type(env).__name__)
        env = env.venv
    right_order = "(".join(["VecNormalize", *outside, "env"]) + ")" * (1 + len(outside))
    raise ValueError(
        f"VecNormalize is inside of {' and '.join(outside)}, and gives observations of shape {before} where the model needs "
        f"{get_obs_shape(space)}: the buffer stores observations before normalization. Put VecNormalize on the outside: "
        f"{right_order}"
    )
