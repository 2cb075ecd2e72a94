"""Stock vLLM as an arm: real vLLM in a process of its own, on the same tokens as every arm."""
