"""Where transitions are kept."""
