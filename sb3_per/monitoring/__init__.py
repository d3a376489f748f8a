"""Log and plot priorities."""
