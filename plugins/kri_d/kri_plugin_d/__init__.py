"""KRI-D: score a block by what changes when it is left out."""
