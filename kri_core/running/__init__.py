"""Runs an evaluation: every row of a board answers every item, on the hf substrate."""
