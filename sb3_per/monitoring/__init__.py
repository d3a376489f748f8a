"""
Log and plot priorities.

- ``monitor.py``: a callback that counts draws and logs statistics during a run
- ``plots.py``: plots of a buffer
"""
