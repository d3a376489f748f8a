"""
Check that two checkouts train the same. Short runs of every algorithm with every scheme and kind of buffer are compared by a
digest of all parameters, priorities, stored rows and states of the random generators. Recurrent agents may differ by rounding:
what they compute is compared with a tolerance, and the rest by a digest.

    python benchmarks/parity.py --against ../other-checkout
    python benchmarks/parity.py --against ../other-checkout --only compiled    # runs whose name contains this

The script prints what differs, and its exit status says whether anything did. It uses only names that ``sb3_per`` exports, so
that the other checkout may be older.
"""

import argparse
import copy
import functools
import hashlib
import itertools
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Largest difference of two numbers of a recurrent agent, in units of the largest number of their array. First parameters that
# differ by 1e-7 of their size, as by rounding, move the runs below by at most 1.4e-6; 1% more learning rate by at least 8e-5.
TOLERANCE = 1e-5
SCHEMES = ("proportional", "rank", "lap", "pal", "uniform")

# name, keyword arguments of the algorithm, number of environments, VecNormalize
VARIANTS: tuple[tuple[str, dict[str, Any], int, bool], ...] = (
    ("plain", {}, 1, False),
    ("n-steps", dict(n_steps=3, gamma=0.9), 2, False),
    ("normalized", dict(gradient_steps=2), 2, True),
    (
        "memory",
        dict(optimize_memory_usage=True, replay_buffer_kwargs=dict(handle_timeout_termination=False, beta_anneal_steps=50)),
        1,
        False,
    ),
    ("independent-draws", dict(replay_buffer_kwargs=dict(stratified=False, td_error_reduction="min")), 3, False),
)

# name, keyword arguments of the algorithm, number of environments
RECURRENT_VARIANTS: tuple[tuple[str, dict[str, Any], int], ...] = (
    ("burn-in", dict(sequence_length=6, burn_in=3, n_steps=2, train_freq=8, gradient_steps=4), 2),
    ("zero state", dict(sequence_length=4, burn_in=0, train_freq=8, replay_buffer_kwargs=dict(store_state=False)), 1),
)

# Gradient steps of a call, and number of environments, of compiled agents. Two loops make 33 steps.
COMPILED_VARIANTS = (*itertools.product((1, 3, 8, 13), (1, 4)), (33, 1))


def runs() -> Iterator[tuple[str, Callable[[], Any]]]:
    """List all runs: name, and function that trains a model."""
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.envs import BitFlippingEnv, SimpleMultiObsEnv
    from stable_baselines3.common.vec_env import VecNormalize

    import sb3_per

    small: dict[str, Any] = dict(
        buffer_size=90, learning_starts=30, batch_size=12, policy_kwargs=dict(net_arch=[8]), seed=0, device="cpu"
    )

    def with_scheme(kwargs: dict[str, Any], scheme: str) -> dict[str, Any]:
        return {**small, **kwargs, "replay_buffer_kwargs": {**kwargs.get("replay_buffer_kwargs", {}), "scheme": scheme}}

    def run(cls: Any, policy: str, env_id: Any, n_envs: int, normalize: bool, **kwargs: Any) -> Callable[[], Any]:
        def train() -> Any:
            env = make_vec_env(env_id, n_envs=n_envs)
            env = VecNormalize(env) if normalize else env
            return cls(policy, env, **copy.deepcopy(kwargs)).learn(160)  # SAC writes into its policy_kwargs

        return train

    for algo, scheme in itertools.product(("SAC", "TD3", "DDPG", "DQN", "QRDQN", "TQC", "CrossQ"), SCHEMES):
        if scheme in ("lap", "pal") and algo in ("QRDQN", "TQC"):
            continue
        cls, discrete = getattr(sb3_per, f"PER{algo}"), algo in ("DQN", "QRDQN")
        env_id = "CartPole-v1" if discrete else "Pendulum-v1"
        for name, kwargs, n_envs, normalize in VARIANTS:
            yield f"{algo} {scheme} {name}", run(cls, "MlpPolicy", env_id, n_envs, normalize, **with_scheme(kwargs, scheme))
        if algo == "CrossQ":
            continue  # CrossQ takes vectors only, as upstream
        multi = functools.partial(SimpleMultiObsEnv, discrete_actions=discrete)
        yield f"{algo} {scheme} dict", run(cls, "MultiInputPolicy", multi, 2, False, **with_scheme(dict(n_steps=2), scheme))
        bits = functools.partial(BitFlippingEnv, 4, continuous=not discrete)
        for n_steps in (1, 3):
            her = dict(n_steps=n_steps, replay_buffer_class=sb3_per.PrioritizedHerReplayBuffer)
            yield f"{algo} {scheme} her-{n_steps}", run(cls, "MultiInputPolicy", bits, 2, False, **with_scheme(her, scheme))

    for algo, scheme in itertools.product(("RecurrentDQN", "RecurrentSAC"), ("proportional", "rank", "uniform")):
        cls, env_id = getattr(sb3_per, f"PER{algo}"), "CartPole-v1" if algo == "RecurrentDQN" else "Pendulum-v1"
        for name, kwargs, n_envs in RECURRENT_VARIANTS:
            lstm = {**kwargs, "policy_kwargs": dict(lstm_hidden_size=8, net_arch=[8])}
            yield f"{algo} {scheme} {name}", run(cls, "MlpLstmPolicy", env_id, n_envs, False, **with_scheme(lstm, scheme))

    yield from compiled_runs(small)


def compiled_runs(kwargs: dict[str, Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """
    List the runs of compiled agents.

    :param kwargs: arguments of the algorithms
    """
    from stable_baselines3.common.env_util import make_vec_env

    def run(algo: str, n_steps: int, n_envs: int) -> Callable[[], Any]:
        def train() -> Any:
            import sb3_per.sbx

            env = make_vec_env("CartPole-v1" if algo == "DQN" else "Pendulum-v1", n_envs=n_envs)
            delay = dict(policy_delay=2) if algo in ("TD3", "CrossQ") else {}
            arguments = {**copy.deepcopy(kwargs), **delay, "train_freq": 8, "gradient_steps": n_steps}
            model = getattr(sb3_per.sbx, f"PER{algo}")("MlpPolicy", env, **arguments).learn(160)
            for _ in range(3):
                model.train(n_steps, 12)
            return model

        return train

    for algo in ("SAC", "TD3", "DDPG", "DQN", "TQC", "CrossQ"):
        for n_steps, n_envs in COMPILED_VARIANTS:
            yield f"compiled {algo} {n_steps} steps, {n_envs} environments", run(algo, n_steps, n_envs)


def results_of(model: Any) -> dict[str, Any]:
    """Collect a ``digest`` of all that must be equal to the bit, and as ``near``, arrays that may differ by rounding."""
    import numpy as np
    import torch as th

    buffer = model.replay_buffer
    is_compiled = hasattr(model, "key")
    computed = arrays_of(model) if is_compiled else [value.cpu().numpy() for value in model.policy.state_dict().values()]
    computed += [buffer.priorities, buffer.rewards, buffer.actions, np.array([buffer.beta, buffer.max_priority])]
    if not is_compiled and getattr(model, "log_ent_coef", None) is not None:
        computed.append(model.log_ent_coef.detach().numpy())
    exact = [buffer.transition_ids, buffer.dones, buffer.timeouts, np.random.get_state()[1], th.get_rng_state().numpy()]
    if "Recurrent" not in type(model).__name__:
        exact, computed = exact + computed, []
    digest = hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in exact)).hexdigest()[:16]
    return {"digest": digest, "near": [array.ravel().astype(float).tolist() for array in computed]}


def arrays_of(model: Any) -> list[Any]:
    """Collect the train states of a compiled agent, with those of the optimizers, and its random key."""
    import jax
    import numpy as np

    states = [getattr(model.policy, f"{name}_state", None) for name in ("actor", "qf", "qf1", "qf2")]
    states += [getattr(model, "ent_coef_state", None), model.key]
    return [np.asarray(leaf) for leaf in jax.tree.leaves(states)]


def are_alike(x: dict[str, Any], y: dict[str, Any]) -> bool:
    """Compare what two runs have produced, see :func:`results_of`."""
    import numpy as np

    if (x["digest"], [len(array) for array in x["near"]]) != (y["digest"], [len(array) for array in y["near"]]):
        return False
    pairs = [(np.array(a), np.array(b)) for a, b in zip(x["near"], y["near"], strict=True)]
    relative = [np.abs(a - b).max(initial=0) / max(np.abs(a).max(initial=0), 1e-12) for a, b in pairs]
    return bool(np.max(relative, initial=0.0) <= TOLERANCE)  # False if a number is NaN in one of them


def main() -> None:
    """Print the results, or compare them with those of another checkout."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="another checkout; without it, the results are printed")
    parser.add_argument("--only", default="", help="runs whose name contains this")
    args = parser.parse_args()
    other = args.against
    if other is None:
        from stable_baselines3.common.utils import set_random_seed

        warnings.simplefilter("ignore")
        for name, train in runs():
            if args.only not in name:
                continue
            set_random_seed(0)  # SimpleMultiObsEnv is made with random numbers
            print(json.dumps({"name": name, **results_of(train())}), flush=True)
        return
    found = []
    for checkout in (Path(__file__).resolve().parents[1], other.resolve()):
        environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(Path(__file__).resolve()), "--only", args.only]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        found.append({line["name"]: line for line in map(json.loads, done.stdout.splitlines())})
    here, there = found
    different = [name for name in here.keys() & there.keys() if not are_alike(here[name], there[name])]
    different = sorted([*different, *(here.keys() ^ there.keys())])
    print(f"{len(here)} runs, {len(different)} differ", *different, sep="\n")
    sys.exit(bool(different))


if __name__ == "__main__":
    sys.path.append(sys.path.pop(0))  # the folder of this file has an sbx.py, which must not hide the package
    main()
