"""
Collect with actors on many cores and machines (Ape-X, Horgan et al. 2018, arXiv 1803.00933): write ``make_actors`` in place of
``make_vec_env``.

Ray is imported only when it is used.

- ``make.py``: ``make_actors``; ``vec_env.py``: the environments of all actors as one ``VecEnv``
- on the side of the learner: ``loop.py`` takes transitions and counts them; ``actor_pool.py`` lets actors act and restarts
  them; ``chunks.py`` stores what they send
- on the side of an actor: ``worker.py`` acts; ``environments.py`` makes its environments
- between them: ``engines.py`` and ``ray_engine.py`` start and call actors, in this process or with Ray
- ``algorithm.py``: what actors need of the learner's algorithm; ``random_state.py``: random generators
"""

from sb3_per.distributed.actor_pool import NoActorAliveError
from sb3_per.distributed.loop import exploration_ladder
from sb3_per.distributed.make import make_actors
from sb3_per.distributed.vec_env import ActorVecEnv

__all__ = ["ActorVecEnv", "NoActorAliveError", "exploration_ladder", "make_actors"]
