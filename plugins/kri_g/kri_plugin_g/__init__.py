"""KRI-G: score blocks by the gradient of a loss. Not upstream's `kri_g`, which is kmeans-keys."""
