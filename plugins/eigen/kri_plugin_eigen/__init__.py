"""Eigenvector centrality: score a block by its place in the graph of who attends to whom."""
