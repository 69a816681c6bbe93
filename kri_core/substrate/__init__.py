"""Where cartridges meet an engine: `hf` is transformers, `vllm` is vLLM."""
