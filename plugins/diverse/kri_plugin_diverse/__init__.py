"""Selectors that weigh what a block adds to others: mostly not to pay twice for one passage."""
