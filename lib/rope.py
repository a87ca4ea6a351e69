"""Rotary position embedding: turn each pair of a query's and a key's features by an angle
proportional to the position.

Su et al. 2021, RoFormer (arXiv 2104.09864). A pair at position m turns by m·θᵢ with θᵢ =
base^(−2i/D), so the dot product of two rotated vectors depends on the distance of their positions
alone.

Two layouts of the same idea are in use, and weights trained with one are wrong with the other:

- `half` pairs feature i with i + D/2: Hugging Face's Llama, Qwen, Mistral and GPT-NeoX. The default
  here.
- `interleaved` pairs 2i with 2i + 1: the paper, Meta's own Llama code, Llama 4 and GPT-J.

Phases are computed in float64 whatever the model's dtype: in float32 the angles near position 131
000 are off by up to 7.8e-3, and in bfloat16 neighbouring positions collide. Left out: the rules
that stretch the frequencies to longer contexts (topic rope_scaling), and a table of angles: like
Hugging Face, compute those of the positions at hand.
"""

import torch
from torch import Tensor

LAYOUTS = ("half", "interleaved")


def rope_frequencies(
    head_dim: int,
    *,
    base: float = 10_000.0,
    rotary_dim: int | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """θᵢ = base^(−2i/D), i = 0 … D/2 − 1, in radians per position: (D/2,) float64.

    rotary_dim: how many features rotate (partial rotary); None means all head_dim. It takes the
    place of D in the exponent. Raises ValueError for an odd or too large size and for a base ≤ 1.
    """
    if rotary_dim is None:
        rotary_dim = head_dim
    if rotary_dim <= 0 or rotary_dim % 2:
        raise ValueError(
            f"rotary_dim: got {rotary_dim}, must be even and positive: features turn in pairs"
        )
    if rotary_dim > head_dim:
        raise ValueError(f"rotary_dim: got {rotary_dim}, must be at most head_dim, {head_dim}")
    if base <= 1:
        raise ValueError(f"base: got {base}, must be greater than 1 (10 000 in the paper)")
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float64, device=device) / rotary_dim
    return base**-exponents


def rope_angles(
    positions: Tensor,
    frequencies: Tensor,
    *,
    max_positions: int | None = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor]:
    """cos(m·θᵢ) and sin(m·θᵢ) for each position m: two tensors (..., T, D/2) of `dtype`.

    positions: integers (T,), or (B, T) with a row of its own for each sequence (left padding,
    packed sequences, one cache length a row). frequencies: (D/2,), from `rope_frequencies`.
    max_positions: the model's context length; a position at or beyond it, or below 0, raises
    ValueError (read in eager mode only).
    """
    if positions.is_floating_point() or positions.is_complex() or positions.dtype == torch.bool:
        raise TypeError(
            f"positions: dtype is {positions.dtype}, must be an integer type: torch.arange(T)"
        )
    if frequencies.ndim != 1:
        raise ValueError(
            f"frequencies: shape is {tuple(frequencies.shape)}, must be (D/2,) of rope_frequencies"
        )
    if max_positions is not None and not torch.compiler.is_compiling() and positions.numel():
        lowest, highest = positions.min().item(), positions.max().item()
        if lowest < 0 or highest >= max_positions:
            raise ValueError(
                f"positions: {lowest} to {highest} do not all lie in the context, 0 to "
                f"{max_positions - 1}; shorten the sequence or raise max_positions"
            )
    phases = positions.unsqueeze(-1).double() * frequencies.double()  # (..., T, D/2)
    return phases.cos().to(dtype), phases.sin().to(dtype)


def rotate_half(x: Tensor) -> Tensor:
    """(x₁, x₂) → (−x₂, x₁), x₁ and x₂ the halves of the last axis: a quarter turn of every pair."""
    if x.shape[-1] % 2:
        raise ValueError(f"x: its last axis has {x.shape[-1]} features, must be even")
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def rotate_interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """(x₂ᵢ + j·x₂ᵢ₊₁)·(cos + j·sin): a rotation in the plane is a complex product.

    x: (..., T, D) float32 or float64. cos, sin: (..., T, D/2), of x's dtype.
    """
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())  # (..., T, D/2) complex
    return torch.view_as_real(pairs * torch.complex(cos, sin)).flatten(-2)  # (..., T, D)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor, *, layout: str = "half") -> Tensor:
    """Turn each pair of x by its angle: x·cos + rotate_half(x)·sin in layout `half`.

    x: (..., T, D), as a rule queries or keys (B, H, T, D). cos, sin: (T, D/2) for all rows alike,
    or (B, T, D/2) with x of four axes: every head of row b turns by the positions of row b. Fewer
    angles than D/2 rotate the first features only and leave the rest (partial rotary). Computed in
    float32 or better, returned in x's dtype.
    """
    _check_arguments(x, cos, sin, layout)
    if cos.ndim == 3:
        # (B, 1, T, D/2): the heads share their row's angles
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    compute = torch.promote_types(x.dtype, torch.float32)
    cos, sin = cos.to(compute), sin.to(compute)
    rotary_dim = 2 * cos.shape[-1]
    turned, rest = x[..., :rotary_dim].to(compute), x[..., rotary_dim:]
    if layout == "interleaved":
        turned = rotate_interleaved(turned, cos, sin)
    else:
        cos, sin = torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1)
        turned = turned * cos + rotate_half(turned) * sin
    turned = turned.to(x.dtype)
    return torch.cat((turned, rest), dim=-1) if rest.shape[-1] else turned


def _check_arguments(x: Tensor, cos: Tensor, sin: Tensor, layout: str) -> None:
    """An error where shapes would broadcast in silence or the layout has no such name."""
    if layout not in LAYOUTS:
        raise ValueError(f"layout: got {layout!r}, must be one of {', '.join(map(repr, LAYOUTS))}")
    if not x.is_floating_point():
        raise TypeError(f"x: dtype is {x.dtype}, must be floating point")
    if cos.shape != sin.shape:
        raise ValueError(
            f"sin: shape is {tuple(sin.shape)}, must equal that of cos, {tuple(cos.shape)}"
        )
    if x.ndim < 2 or cos.ndim not in (2, 3) or cos.shape[-2] != x.shape[-2]:
        raise ValueError(
            f"cos: shape is {tuple(cos.shape)}, must be (T, D/2) or (B, T, D/2) with the T of x, "
            f"here {tuple(x.shape)}"
        )
    if cos.ndim == 3 and (x.ndim != 4 or cos.shape[0] != x.shape[0]):
        raise ValueError(
            f"cos: shape is {tuple(cos.shape)}; angles with a row a sequence need x of shape "
            f"({cos.shape[0]}, H, T, D), and x is {tuple(x.shape)}"
        )
    if 2 * cos.shape[-1] > x.shape[-1]:
        raise ValueError(
            f"cos: {cos.shape[-1]} angles turn {2 * cos.shape[-1]} features, x has {x.shape[-1]}"
        )


def interleaved_to_half(weight: Tensor, num_heads: int, *, rotary_dim: int | None = None) -> Tensor:
    """Reorder the rows of q_proj or k_proj from layout `interleaved` to layout `half`.

    In each head the even features come first, then the odd ones: 0 2 4 … 1 3 5 …; features beyond
    rotary_dim stay. weight: (H·D, C) as nn.Linear stores it, or its bias (H·D,). Queries and keys
    must both be reordered; their dot products then do not change. `half_to_interleaved` undoes it.
    """
    order = _even_then_odd(weight, num_heads, rotary_dim)
    return weight.unflatten(0, (num_heads, -1))[:, order].flatten(0, 1)


def half_to_interleaved(weight: Tensor, num_heads: int, *, rotary_dim: int | None = None) -> Tensor:
    """The inverse of `interleaved_to_half`: 0 D/2 1 D/2+1 … in each head."""
    order = _even_then_odd(weight, num_heads, rotary_dim).argsort()
    return weight.unflatten(0, (num_heads, -1))[:, order].flatten(0, 1)


def _even_then_odd(weight: Tensor, num_heads: int, rotary_dim: int | None) -> Tensor:
    """The feature order 0 2 4 … 1 3 5 … of one head; unrotated features stay last: (D,)."""
    if num_heads <= 0 or weight.shape[0] % num_heads:
        raise ValueError(
            f"num_heads: got {num_heads}, must divide the {weight.shape[0]} rows of weight"
        )
    head_dim = weight.shape[0] // num_heads
    rotary_dim = head_dim if rotary_dim is None else rotary_dim
    if rotary_dim <= 0 or rotary_dim % 2 or rotary_dim > head_dim:
        raise ValueError(
            f"rotary_dim: got {rotary_dim}, must be even, positive and at most head_dim, {head_dim}"
        )
    features = torch.arange(head_dim, device=weight.device)
    return torch.cat((features[0:rotary_dim:2], features[1:rotary_dim:2], features[rotary_dim:]))
