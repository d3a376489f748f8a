"""
Run the commands of RL Zoo with the prioritized algorithms::

    python -m sb3_per.zoo train --algo per_sac --env Pendulum-v1
    python -m sb3_per.zoo enjoy --algo per_sac --env Pendulum-v1
    python -m sb3_per.zoo train --algo sbx_per_sac --env Pendulum-v1    # compiled, needs the extra sbx

All options are those of the Zoo, except ``--resume``, ``--actors``, ``--demonstrations`` and ``--demonstration-fraction`` of
``train`` (see :mod:`sb3_per.zoo.runs`) and ``-o FILE`` of ``plot``. It needs the extra ``zoo``.
"""

from sb3_per.zoo.commands import main
from sb3_per.zoo.registry import ALGORITHMS, class_of, config_path, register

__all__ = ["ALGORITHMS", "class_of", "config_path", "main", "register"]
