"""specbench: which speculative-decoding method pays on your model, data and GPU."""

__version__ = "0.1.0"
