"""How good a stack is: task → items → records → statistics → board. Nothing here runs a model."""
