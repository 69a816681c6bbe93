"""Selectors that do not pay twice for the same passage."""
