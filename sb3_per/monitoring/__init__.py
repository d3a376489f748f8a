"""Statistics and plots of priorities."""
