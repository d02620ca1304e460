"""Preloaded before ranks are forked: torch's work at first use, done once for all."""

from contextlib import suppress

import torch

# torch.load imports it, and reads its source.
with suppress(ImportError):
    import torch.utils.serialization.config
# Seeding keeps tracebacks, for which the source of every frame is read.
torch.manual_seed(0)
