"""The prioritized algorithms: one file per algorithm, each only its targets and losses."""
