"""Does prioritization pay on a task? Arms, runs, statistics and report of ``sb3-per compare``."""
