"""Blocks chosen by their keys alone: no forward of the model, no probe text, no question."""
