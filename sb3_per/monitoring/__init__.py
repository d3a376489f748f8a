"""What a run shows of its priorities."""
