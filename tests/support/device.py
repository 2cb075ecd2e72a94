"""Where the kernels' tests run."""

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
