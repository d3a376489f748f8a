"""
Prioritized experience replay for SBX (Stable Baselines Jax), whose updates are compiled.

The classes take the arguments of SBX's classes, and the buffers, settings and files of ``sb3_per``::

    from sb3_per.sbx import PERSAC

    model = PERSAC("MlpPolicy", "Pendulum-v1", replay_buffer_kwargs=dict(scheme="lap"))
    model.learn(10_000)

- ``sac.py``, ``td3.py`` (with DDPG), ``dqn.py``, ``tqc.py``, ``crossq.py``: the algorithms
- ``jax_loop.py``: what they share: the training loop; ``batches.py``: what goes to the device, and comes back
"""

try:
    import sbx  # noqa: F401
except ImportError as error:
    command = 'pip install "sbx-rl", or pip install ".[sbx]" in a clone of this package'
    raise ImportError(f"sb3_per.sbx needs sbx: {command}") from error

from sb3_per.sbx.crossq import PERCrossQ
from sb3_per.sbx.dqn import PERDQN
from sb3_per.sbx.jax_loop import PrioritizedJaxMixin
from sb3_per.sbx.sac import PERSAC
from sb3_per.sbx.td3 import PERDDPG, PERTD3
from sb3_per.sbx.tqc import PERTQC

__all__ = ["PERDDPG", "PERDQN", "PERSAC", "PERTD3", "PERTQC", "PERCrossQ", "PrioritizedJaxMixin"]
