"""
Prioritized experience replay for SBX (Stable Baselines Jax), whose updates are compiled.

The classes take the arguments of SBX's classes, and the buffers, settings and files of ``sb3_per``::

    from sb3_per.sbx import PERSAC

    model = PERSAC("MlpPolicy", "Pendulum-v1", replay_buffer_kwargs=dict(scheme="lap"))
    model.learn(10_000)
"""

from sb3_per.utils.extras import require

require("sbx", "sbx", "sb3_per.sbx")

from sb3_per.sbx.base import PrioritizedJaxMixin  # noqa: E402
from sb3_per.sbx.crossq import PERCrossQ  # noqa: E402
from sb3_per.sbx.dqn import PERDQN  # noqa: E402
from sb3_per.sbx.sac import PERSAC  # noqa: E402
from sb3_per.sbx.td3 import PERDDPG, PERTD3  # noqa: E402
from sb3_per.sbx.tqc import PERTQC  # noqa: E402

__all__ = ["PERDDPG", "PERDQN", "PERSAC", "PERTD3", "PERTQC", "PERCrossQ", "PrioritizedJaxMixin"]
