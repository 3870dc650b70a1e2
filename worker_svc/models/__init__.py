"""Model modules, their configurations, and the registry that finds them by architecture name."""
