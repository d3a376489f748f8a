"""
Data and environments of other libraries, and data of earlier runs.

- ``minari.py``: datasets of Minari
- ``saved_demonstrations.py``: demonstrations from a buffer directory or a Minari dataset
- ``vector_env.py``: vector environments of Gymnasium and EnvPool; ``vector_sources.py``: what differs between their kinds
"""

from sb3_per.integrations.vector_env import from_vector_env

__all__ = ["from_vector_env"]
