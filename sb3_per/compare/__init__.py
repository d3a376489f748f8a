"""
Does prioritization pay on a task? What ``sb3-per compare`` does after ``cli/compare.py`` has read its options.

In the order in which they are used:

- ``command.py``: the whole comparison: plan, time, runs and report
- ``task.py``: the task, its arms, and the list of runs; ``literals.py``: settings from the command line; ``controls.py``: the
  shuffled control of a setting
- ``runs.py``: one run, in RL Zoo
- ``campaign.py``: all runs in several processes, and the file of their results
- ``report.py``: table, sentence and picture; ``statistics.py``: tests and intervals; ``figures.py``: style of the pictures
"""
