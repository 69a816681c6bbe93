"""Score a block by what a press of NVIDIA's kvpress says of its tokens."""
