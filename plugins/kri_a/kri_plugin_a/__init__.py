"""KRI-A: score a block by the attention the document itself pays to it."""
