"""Baselines that need no model and no bake: what every scorer has to beat."""
