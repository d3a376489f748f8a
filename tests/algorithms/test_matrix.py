"""Every algorithm trains with every scheme, or refuses the combination with an error that names it."""

import itertools
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

from sb3_per import PERQRDQN, PERTQC
from sb3_per.sampling.schemes import SCHEMES, make_scheme
from tests.helpers.models import STOCK

ALGORITHMS = tuple(STOCK)


def diagonal() -> list[tuple[Any, str]]:
    """Pair every algorithm and every scheme at least once. Schemes with their own loss need scalar TD errors."""
    schemes, pairs = itertools.cycle(SCHEMES), []
    for cls in ALGORITHMS:
        allowed = (name for name in schemes if cls.has_scalar_td_loss or not make_scheme(name).replaces_loss)
        pairs.append((cls, next(allowed)))
    missing = set(SCHEMES) - {name for _, name in pairs}
    scalar = [cls for cls in ALGORITHMS if cls.has_scalar_td_loss]
    return pairs + list(zip(itertools.cycle(scalar), sorted(missing), strict=False))


COMBINATIONS = diagonal()
POLICIES = {"box": "MlpPolicy", "dict": "MultiInputPolicy", "image": "CnnPolicy"}


class RandomEnv(gym.Env):
    """Give random observations, in episodes of four steps, every second of which is truncated."""

    def __init__(self, kind: str, discrete: bool):
        image = spaces.Box(0, 255, (8, 8, 1), np.uint8)
        vector = spaces.Box(-1, 1, (2,), np.float32)
        self.observation_space = {"box": vector, "image": image, "dict": spaces.Dict({"image": image, "vector": vector})}[kind]
        self.action_space = spaces.Discrete(2) if discrete else spaces.Box(-1, 1, (1,), np.float32)
        self.n_steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        self.n_steps += 1
        over = self.n_steps % 4 == 0
        cut_off = over and self.n_steps % 8 == 0
        return self.observation_space.sample(), 1.0, over and not cut_off, cut_off, {}


class TinyExtractor(BaseFeaturesExtractor):
    """Flatten any observation, because a CNN would be slow and test nothing more."""

    def __init__(self, observation_space: spaces.Space):
        super().__init__(observation_space, spaces.utils.flatdim(observation_space))

    def forward(self, observations: Any) -> th.Tensor:
        parts = observations.values() if isinstance(observations, dict) else [observations]
        return th.cat([part.flatten(start_dim=1).float() for part in parts], dim=1)


@pytest.mark.parametrize("cls, scheme", COMBINATIONS)
def test_algorithms_train_with_every_scheme(cls, scheme):
    th.set_num_threads(1)
    discrete = not cls.has_actor
    for n_steps, kind, n_envs in ((1, "box", 3), (3, "box", 1), (3, "dict", 3), (1, "image", 1)):
        if POLICIES[kind] not in cls.policy_aliases:
            continue  # as upstream: CrossQ has an MlpPolicy only
        env = make_vec_env(lambda kind=kind: RandomEnv(kind, discrete), n_envs=n_envs)

        def build(env=env, n_steps=n_steps, kind=kind) -> Any:
            return cls(
                POLICIES[kind],
                env,
                n_steps=n_steps,
                buffer_size=24,
                learning_starts=6,
                batch_size=4,
                train_freq=3,
                policy_kwargs=dict(net_arch=[4], features_extractor_class=TinyExtractor),
                replay_buffer_kwargs=dict(scheme=scheme),
                seed=0,
            )

        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*n_steps.*")
            model = build()
        model.learn(36)
        assert model._n_updates > 0
        buffer = model.replay_buffer
        assert (buffer.n_steps, buffer.n_envs) == (n_steps, n_envs)
        assert buffer.full
        assert (buffer.masses > 0).all()
        batch = buffer.sample(6)
        assert (batch.discounts is None) == (n_steps == 1)
        if not buffer.scheme.importance_sampling:
            assert (batch.weights == 1).all()
        if buffer.scheme.draws_uniformly:
            assert (buffer.masses == 1).all()


def test_quantiles_refuse_schemes_with_a_loss_of_their_own():
    for cls, env, scheme in ((PERQRDQN, "CartPole-v1", "pal"), (PERTQC, "Pendulum-v1", "pal"), (PERTQC, "Pendulum-v1", "lap")):
        with pytest.raises(NotImplementedError, match=f"{cls.__name__} with {scheme.upper()}"):
            cls("MlpPolicy", env, buffer_size=24, replay_buffer_kwargs=dict(scheme=scheme))
