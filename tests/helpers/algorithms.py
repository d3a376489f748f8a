"""Small models of all algorithms, with transitions in their buffers, and what tests compare of them."""

import copy
from typing import Any

import gymnasium as gym
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import FakeImageEnv, SimpleMultiObsEnv
from stable_baselines3.common.logger import KVWriter
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per import (
    PERDDPG,
    PERDQN,
    PERQRDQN,
    PERSAC,
    PERTD3,
    PERTQC,
    PERCrossQ,
    PrioritizedReplayBuffer,
)
from tests.helpers.models import ALGORITHMS

DISCRETE = [cls for cls in ALGORITHMS if not cls.has_actor]
SMALL = dict(net_arch=[16, 16])


def image_env(discrete: bool) -> gym.Env:
    return FakeImageEnv(screen_height=36, screen_width=36, n_channels=1, discrete=discrete)


def normalized(env_id: str) -> VecNormalize:
    return VecNormalize(make_vec_env(env_id, n_envs=2))


# algorithm, policy, environment, keyword arguments
CONFIGURATIONS: dict[str, tuple[Any, str, Any, dict[str, Any]]] = {
    "sac": (PERSAC, "MlpPolicy", lambda: "Pendulum-v1", {}),
    "sac-fixed-entropy": (
        PERSAC,
        "MlpPolicy",
        lambda: "Pendulum-v1",
        dict(ent_coef=0.2, policy_kwargs=dict(net_arch=[8], n_critics=3)),
    ),
    "sac-initial-entropy": (
        PERSAC,
        "MlpPolicy",
        lambda: normalized("Pendulum-v1"),
        dict(ent_coef="auto_0.1", target_entropy=-0.5, target_update_interval=3, tau=0.1),
    ),
    "sac-sde": (
        PERSAC,
        "MlpPolicy",
        lambda: "Pendulum-v1",
        dict(
            use_sde=True,
            sde_sample_freq=4,
            use_sde_at_warmup=True,
            n_steps=3,
            gamma=0.9,
            learning_rate=lambda remaining: 1e-2 * remaining,
        ),
    ),
    "sac-images": (PERSAC, "CnnPolicy", lambda: image_env(False), dict(policy_kwargs=dict(net_arch=[8]))),
    "sac-shared-images": (
        PERSAC,
        "CnnPolicy",
        lambda: image_env(False),
        dict(policy_kwargs=dict(net_arch=[8], share_features_extractor=True)),
    ),
    "sac-dict": (PERSAC, "MultiInputPolicy", lambda: SimpleMultiObsEnv(discrete_actions=False), {}),
    "dqn": (PERDQN, "MlpPolicy", lambda: "CartPole-v1", {}),
    "dqn-normalized": (PERDQN, "MlpPolicy", lambda: normalized("CartPole-v1"), dict(n_steps=5, gamma=0.9)),
    "dqn-images": (
        PERDQN,
        "CnnPolicy",
        lambda: image_env(True),
        dict(max_grad_norm=0.01, tau=0.5, target_update_interval=10),
    ),
    "td3": (PERTD3, "MlpPolicy", lambda: "Pendulum-v1", {}),
    "td3-delay": (
        PERTD3,
        "MlpPolicy",
        lambda: normalized("Pendulum-v1"),
        dict(policy_delay=3, target_noise_clip=0.1, n_steps=3),
    ),
    "td3-shared-images": (
        PERTD3,
        "CnnPolicy",
        lambda: image_env(False),
        dict(policy_kwargs=dict(net_arch=[8], share_features_extractor=True)),
    ),
    "ddpg": (PERDDPG, "MlpPolicy", lambda: "Pendulum-v1", dict(n_steps=3, tau=0.1)),
    "tqc": (PERTQC, "MlpPolicy", lambda: "Pendulum-v1", {}),
    "tqc-sde": (
        PERTQC,
        "MlpPolicy",
        lambda: "Pendulum-v1",
        dict(use_sde=True, ent_coef=0.1, target_update_interval=2, top_quantiles_to_drop_per_net=5, n_steps=2),
    ),
    "tqc-dict": (
        PERTQC,
        "MultiInputPolicy",
        lambda: SimpleMultiObsEnv(discrete_actions=False),
        dict(policy_kwargs=dict(net_arch=[8], n_quantiles=11, n_critics=3)),
    ),
    "crossq": (PERCrossQ, "MlpPolicy", lambda: "Pendulum-v1", {}),
    "crossq-delay": (PERCrossQ, "MlpPolicy", lambda: "Pendulum-v1", dict(policy_delay=1, ent_coef=0.1, n_steps=3)),
    "crossq-sde": (PERCrossQ, "MlpPolicy", lambda: "Pendulum-v1", dict(use_sde=True, policy_delay=2)),
    "crossq-plain": (
        PERCrossQ,
        "MlpPolicy",
        lambda: "Pendulum-v1",
        dict(policy_kwargs=dict(net_arch=[16, 16], batch_norm=False)),
    ),
    "qrdqn": (PERQRDQN, "MlpPolicy", lambda: "CartPole-v1", dict(n_steps=3)),
    "qrdqn-dict": (
        PERQRDQN,
        "MultiInputPolicy",
        lambda: SimpleMultiObsEnv(discrete_actions=True),
        dict(max_grad_norm=0.1, policy_kwargs=dict(net_arch=[8], n_quantiles=7)),
    ),
}


def filled_model(cls: Any, policy: str, env: Any, timesteps: int = 60, **kwargs: Any) -> Any:
    """Make a model with random transitions in its buffer, before its first update. A seed always gives the same model."""
    kwargs = {"buffer_size": 1000, "policy_kwargs": SMALL, "seed": 0, "learning_starts": 10_000, **kwargs}
    model = cls(policy, env, **copy.deepcopy(kwargs))  # SAC writes `use_sde` into the policy_kwargs of its caller
    model.learn(timesteps)
    return model


def recorded(buffer: PrioritizedReplayBuffer) -> list[Any]:
    """Record the batches that the buffer gives from now on."""
    batches: list[Any] = []
    sample = buffer.sample

    def recording(*args: Any, **kwargs: Any) -> Any:
        batches.append(sample(*args, **kwargs))
        return batches[-1]

    buffer.sample = recording  # type: ignore[method-assign]
    return batches


def parameters(model: Any) -> dict[str, th.Tensor]:
    """Collect the parameters that an update changes: networks, target networks, entropy coefficient."""
    found = dict(model.policy.state_dict())
    if getattr(model, "log_ent_coef", None) is not None:
        found["log_ent_coef"] = model.log_ent_coef.detach()
    return found


def optimizers_of(model: Any) -> list[th.optim.Optimizer]:
    """List the optimizers whose learning rate follows the schedule."""
    optimizers = model._optimizers()
    return optimizers if isinstance(optimizers, list) else [optimizers]


# One configuration of each algorithm; CrossQ without batch normalization.
UNBATCHED = [algorithm.configuration for algorithm in ALGORITHMS.values()]


class Records(KVWriter):
    """Keep the values that are logged."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, Any], step: int = 0) -> None:
        self.lines.append(dict(key_values))
