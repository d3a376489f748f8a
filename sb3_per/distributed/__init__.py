"""
Collect with actors on many cores and machines (Ape-X, Horgan et al. 2018, arXiv 1803.00933): write ``make_actors`` in place of
``make_vec_env``.

Ray is imported only when it is used.
"""

from sb3_per.distributed.actor_pool import NoActorAliveError
from sb3_per.distributed.loop import exploration_ladder
from sb3_per.distributed.make import make_actors
from sb3_per.distributed.vec_env import ActorVecEnv

__all__ = ["ActorVecEnv", "NoActorAliveError", "exploration_ladder", "make_actors"]
