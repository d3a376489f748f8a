"""
Check that two checkouts train the same, to the bit. Short runs of every algorithm with every scheme and kind of buffer are
compared by a digest of all parameters, priorities, stored rows and states of the random generators.

    python benchmarks/parity.py --against ../other-checkout

The script prints what differs, and its exit status says whether anything did. It uses only names that ``sb3_per`` exports, so
that the other checkout may be older.
"""

import argparse
import copy
import functools
import hashlib
import itertools
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SCHEMES = ("proportional", "rank", "lap", "pal", "uniform")

# name, keyword arguments of the algorithm, number of environments, VecNormalize
Variants = tuple[tuple[str, dict[str, Any], int, bool], ...]
_MEMORY = dict(optimize_memory_usage=True, replay_buffer_kwargs=dict(handle_timeout_termination=False, beta_anneal_steps=50))
VARIANTS: Variants = (
    ("plain", {}, 1, False),
    ("n-steps", dict(n_steps=3, gamma=0.9), 2, False),
    ("normalized", dict(gradient_steps=2), 2, True),
    ("memory", _MEMORY, 1, False),
    ("independent-draws", dict(replay_buffer_kwargs=dict(stratified=False, td_error_reduction="min")), 3, False),
)
RECURRENT_VARIANTS: Variants = (
    ("burn-in", dict(sequence_length=6, burn_in=3, n_steps=2, train_freq=8, gradient_steps=4), 2, False),
    ("zero state", dict(sequence_length=4, burn_in=0, train_freq=8, replay_buffer_kwargs=dict(store_state=False)), 1, False),
)
ALGORITHMS = ("SAC", "TD3", "DDPG", "DQN", "QRDQN", "TQC", "CrossQ", "RecurrentDQN", "RecurrentSAC")
# These have no scalar TD loss, or refuse such schemes.
WITHOUT_LAP_AND_PAL = ("QRDQN", "TQC", "RecurrentDQN", "RecurrentSAC")


def runs() -> Iterator[tuple[str, Callable[[], Any]]]:
    """List all runs: name, and function that trains a model."""
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.envs import BitFlippingEnv, SimpleMultiObsEnv
    from stable_baselines3.common.vec_env import VecNormalize

    import sb3_per

    def run(cls: Any, policy: str, env_id: Any, variant: tuple[dict[str, Any], int, bool], scheme: str) -> Callable[[], Any]:
        kwargs, n_envs, normalize = variant
        network: dict[str, Any] = dict(net_arch=[8], **(dict(lstm_hidden_size=8) if "Lstm" in policy else {}))
        small: dict[str, Any] = dict(buffer_size=90, learning_starts=30, batch_size=12, policy_kwargs=network, seed=0)
        replay = {**kwargs.get("replay_buffer_kwargs", {}), "scheme": scheme}

        def train() -> Any:
            env = make_vec_env(env_id, n_envs=n_envs)
            env = VecNormalize(env) if normalize else env
            settings = copy.deepcopy({**small, **kwargs, "replay_buffer_kwargs": replay})  # SAC writes into its policy_kwargs
            return cls(policy, env, device="cpu", **settings).learn(160)

        return train

    for algo, scheme in itertools.product(ALGORITHMS, SCHEMES):
        if scheme in ("lap", "pal") and algo in WITHOUT_LAP_AND_PAL:
            continue
        cls, discrete, is_recurrent = getattr(sb3_per, f"PER{algo}"), "DQN" in algo, "Recurrent" in algo
        env_id, policy = "CartPole-v1" if discrete else "Pendulum-v1", "MlpLstmPolicy" if is_recurrent else "MlpPolicy"
        for name, *variant in RECURRENT_VARIANTS if is_recurrent else VARIANTS:
            yield f"{algo} {scheme} {name}", run(cls, policy, env_id, variant, scheme)
        if is_recurrent or algo == "CrossQ":
            continue  # these take vectors only
        multi = functools.partial(SimpleMultiObsEnv, discrete_actions=discrete)
        yield f"{algo} {scheme} dict", run(cls, "MultiInputPolicy", multi, (dict(n_steps=2), 2, False), scheme)
        bits = functools.partial(BitFlippingEnv, 4, continuous=not discrete)
        for n_steps in (1, 3):
            her = dict(n_steps=n_steps, replay_buffer_class=sb3_per.PrioritizedHerReplayBuffer)
            yield f"{algo} {scheme} her-{n_steps}", run(cls, "MultiInputPolicy", bits, (her, 2, False), scheme)


def digest_of(model: Any) -> str:
    import numpy as np
    import torch as th

    buffer = model.replay_buffer
    arrays = [value.cpu().numpy() for value in model.policy.state_dict().values()]
    arrays += [buffer.priorities, buffer.rewards, buffer.actions, np.array([buffer.beta, buffer.max_priority])]
    if getattr(model, "log_ent_coef", None) is not None:
        arrays.append(model.log_ent_coef.detach().numpy())
    arrays += [buffer.transition_ids, buffer.dones, buffer.timeouts, np.random.get_state()[1], th.get_rng_state().numpy()]
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()[:16]


def main() -> None:
    """Print the results, or compare them with those of another checkout."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="another checkout; without it, the results are printed")
    other = parser.parse_args().against
    if other is None:
        from stable_baselines3.common.utils import set_random_seed

        warnings.simplefilter("ignore")
        for name, train in runs():
            set_random_seed(0)  # SimpleMultiObsEnv is made with random numbers
            print(digest_of(train()), name, flush=True)
        return
    found = []
    for checkout in (Path(__file__).resolve().parents[1], other.resolve()):
        environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(Path(__file__).resolve())]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        found.append(set(done.stdout.splitlines()))
    different = sorted({line.partition(" ")[2] for line in found[0] ^ found[1]})
    print(f"{len(found[0])} runs, {len(different)} differ", *different, sep="\n")
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
