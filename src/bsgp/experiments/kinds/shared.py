"""Constants that several kinds of runs share."""

INTERVAL = (0.05, 0.95)
"""Quantile levels of the 90% intervals whose coverage is recorded."""
MIN_RHAT_DRAWS = 8
"""R-hat is recorded only for chains of at least this many draws."""
