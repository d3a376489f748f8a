"""
Draw slots in proportion to their mass.

- ``schemes.py``: from a TD error to a priority and a mass, and the loss that belongs to them; ``shuffled.py``: a control;
  ``beta.py``: the exponent of the weights
- ``sampler.py``: one mass for each slot that can be drawn; ``transition_ids.py``: which transition is in which slot;
  ``subsets.py``: draws from the newest, and without repeats
- ``mass_tree.py``: the base class of trees; ``sum_tree.py``: in proportion to the mass; ``rank_tree.py`` with
  ``rank_kernels.py``: by rank; ``aged_tree.py`` and ``age_draw.py``: recent ones more often
"""
