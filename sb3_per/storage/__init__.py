"""
Where transitions are kept.

- ``ring.py``: which transition is in which slot
- ``storage.py``: what is in a slot; ``make.py`` makes a storage; ``n_step.py``: which steps a return adds up
- ``store.py``: the base class of stores of observations; ``array_store.py``: in SB3's arrays; ``frames.py`` with
  ``frame_pool.py`` and ``frame_kernels.py``: each frame once
- ``mapped.py``: arrays in files; ``nested.py``: arrays, and dictionaries of them
"""
