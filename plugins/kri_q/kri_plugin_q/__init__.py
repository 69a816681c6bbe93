"""KRI-Q and Quest: score blocks for one question, by summaries of their keys."""
