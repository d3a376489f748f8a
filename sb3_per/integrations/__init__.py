"""
Data of other libraries, and of earlier runs.

- ``minari.py``: datasets of Minari
- ``saved_demonstrations.py``: demonstrations from a buffer directory or a Minari dataset
"""
