"""
Run the commands of RL Zoo with the prioritized algorithms::

    python -m sb3_per.zoo train --algo per_sac --env Pendulum-v1
    python -m sb3_per.zoo enjoy --algo per_sac --env Pendulum-v1
    python -m sb3_per.zoo train --algo sbx_per_sac --env Pendulum-v1    # compiled, needs the extra sbx

All options are those of the Zoo, except ``--resume``, ``--actors``, ``--demonstrations`` and ``--demonstration-fraction`` of
``train`` (see :mod:`sb3_per.zoo.runs`) and ``-o FILE`` of ``plot``. It needs the extra ``zoo``.

- ``commands.py``: the commands; ``names.py``: names on the command line, folders of runs, and the command that comes next
- ``registry.py``: the algorithms in RL Zoo; ``environments.py``: modules that register environments
- ``runs.py``: RL Zoo's manager of a run, extended; ``hyperparameters.py``: numbers in its files; ``resume.py``: what a
  stopped run continues from; ``tuning.py``: search spaces
- ``upstream.py``: what is used of RL Zoo without being public
- ``summary.py``: the result of a run, for ``make train``; ``random_policy.py``: that of a random policy
"""

from sb3_per.zoo.commands import main
from sb3_per.zoo.registry import ALGORITHMS, class_of, config_path, register

__all__ = ["ALGORITHMS", "class_of", "config_path", "main", "register"]
