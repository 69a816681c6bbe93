"""Routed requests in an unmodified vLLM, through its official extension points alone (ADR 8).

The scheduler's process plans (`planning`), places blocks (`placement`) and answers for each request
(`scheduling`); the worker's process loads KV (`loading`) and drops the absent blocks from every
attention call (`compaction`). Between the two go plain integers (`orders`). `connector` is what
vLLM sees of all this, `plugin` how it finds it.
"""
