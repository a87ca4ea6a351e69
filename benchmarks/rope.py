"""apply_rope beside transformers' apply_rotary_pos_emb and Llama 4's apply_rotary_emb, both on queries and keys."""

import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
from transformers.models.llama4.modeling_llama4 import apply_rotary_emb

from lib.device import device
from lib.rope import apply_rope, rope_angles, rope_frequencies


def cases():
    """Prefill of 2048 tokens and one decode step, 32 heads of 128."""
    for name, tokens in (("prefill 2048", 2048), ("decode 1", 1)):
        for dtype in (torch.float32, torch.bfloat16):
            q, k = (torch.randn(1, 32, tokens, 128, dtype=dtype, device=device) for _ in range(2))
            positions = torch.arange(tokens, device=device)
            frequencies = rope_frequencies(128, device=device)
            cos, sin = rope_angles(positions, frequencies, dtype=torch.float32)
            wide_cos, wide_sin = (torch.cat((t, t), -1)[None].to(dtype) for t in (cos, sin))
            yield (
                f"half, {name}, {str(dtype)[6:]}",
                lambda q=q, k=k, cos=cos, sin=sin: (apply_rope(q, cos, sin), apply_rope(k, cos, sin)),
                lambda q=q, k=k, cos=wide_cos, sin=wide_sin: apply_rotary_pos_emb(q, k, cos, sin),
            )
            swapped_q, swapped_k = q.transpose(1, 2), k.transpose(1, 2)  # Llama 4 wants (B, T, H, D)
            turns = torch.complex(cos, sin)[None]
            yield (
                f"interleaved, {name}, {str(dtype)[6:]}",
                lambda q=q, k=k, cos=cos, sin=sin: (
                    apply_rope(q, cos, sin, layout="interleaved"),
                    apply_rope(k, cos, sin, layout="interleaved"),
                ),
                lambda q=swapped_q, k=swapped_k, turns=turns: apply_rotary_emb(q, k, turns),
            )
