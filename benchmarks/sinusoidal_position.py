"""The learned and the sinusoidal sum beside nn.Embedding and Marian's module from transformers."""

import torch
from torch import nn
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

from lib.absolute_position import LearnedPosition
from lib.device import device
from lib.sinusoidal_position import add_sinusoidal_positions


def cases():
    """Prefill of 1024 tokens in 8 rows and one decode step, 768 features."""
    learned = LearnedPosition(1024, 768, device=device).requires_grad_(False)
    embedding = nn.Embedding(1024, 768, device=device).requires_grad_(False)
    marian = MarianSinusoidalPositionalEmbedding(1024, 768).to(device)
    for name, tokens, offset in (("prefill 1024", 1024, 0), ("decode 1", 1, 1023)):
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(8, tokens, 768, dtype=dtype, device=device)
            positions = torch.arange(offset, offset + tokens, device=device)
            yield (
                f"learned, {name}, {str(dtype)[6:]}",
                lambda x=x, offset=offset: learned(x, offset=offset),
                lambda x=x, positions=positions: x + embedding(positions).to(x.dtype),
            )
            yield (
                f"sinusoidal, {name}, {str(dtype)[6:]}",
                lambda x=x, offset=offset: add_sinusoidal_positions(x, offset=offset, layout="half"),
                lambda x=x, offset=offset: x + marian(x.shape, cache_length=offset).to(x.dtype),
            )
