"""Sinusoidal positions: a vector of sines and cosines that is computed for any position.

Vaswani et al. 2017, Attention Is All You Need (arXiv 1706.03762), section 3.5: feature 2i of
position m is sin(m·ωᵢ) and feature 2i + 1 is cos(m·ωᵢ), with ωᵢ = base^(−2i/C). Each pair turns by
the same angle from one position to the next, so a shift by k is one matrix, the same everywhere.

Two choices differ between libraries, and weights trained with one are wrong with another:

- layout `interleaved` (sin, cos, sin, cos, …) is the paper's and DistilBERT's; `half` (all sines,
  then all cosines) is Marian's.
- endpoint=True spaces the exponents from 0 to 1 inclusive, −i/(C/2 − 1): M2M-100 and Whisper, both
  in layout `half`. False is the paper's −2i/C.

Phases are computed in float64: below position 5000 float32 ones are off by up to 4e-4 (C = 512).
There is no table to outgrow and no state. The factor √C that the paper puts on the embeddings
(section 3.4) is left to the caller, and so is dropout.
"""

import torch
from torch import Tensor

from lib.absolute_position import add_positions, check_embeddings, positions_of

LAYOUTS = ("interleaved", "half")


def sinusoidal_frequencies(
    hidden_size: int,
    *,
    base: float = 10_000.0,
    endpoint: bool = False,
    device: torch.device | str | None = None,
) -> Tensor:
    """ωᵢ = base^(−2i/C), i = 0 … ⌈C/2⌉ − 1, in radians per position: (⌈C/2⌉,) float64.

    endpoint: ωᵢ = base^(−i/(C/2 − 1)) instead, so that the last is 1/base itself; C must then be
    even and at least 4. Raises ValueError for a size below 1 and for a base ≤ 1.
    """
    if hidden_size < 1:
        raise ValueError(f"hidden_size: got {hidden_size}, must be at least 1")
    if base <= 1:
        raise ValueError(f"base: got {base}, must be greater than 1 (10 000 in the paper)")
    if endpoint and (hidden_size < 4 or hidden_size % 2):
        raise ValueError(
            f"hidden_size: got {hidden_size}, must be even and at least 4 with endpoint=True"
        )
    last = hidden_size - 2 if endpoint else hidden_size  # 2i of the exponent that would be 1
    exponents = torch.arange(0, hidden_size, 2, dtype=torch.float64, device=device) / last
    return base**-exponents


def sinusoidal_positions(
    positions: Tensor,
    hidden_size: int,
    *,
    base: float = 10_000.0,
    layout: str = "interleaved",
    endpoint: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """p(m) = (sin m·ω₀, cos m·ω₀, sin m·ω₁, cos m·ω₁, …): (..., T, C) of `dtype`.

    positions: integers (T,) or (B, T), of any size. An odd C leaves out the last cosine. layout
    `half` puts all sines before all cosines. Raises TypeError for positions that are not integers,
    ValueError for an unknown layout and what `sinusoidal_frequencies` refuses.
    """
    if positions.is_floating_point() or positions.is_complex() or positions.dtype == torch.bool:
        raise TypeError(
            f"positions: dtype is {positions.dtype}, must be an integer type: torch.arange(T)"
        )
    if layout not in LAYOUTS:
        raise ValueError(f"layout: got {layout!r}, must be one of {', '.join(map(repr, LAYOUTS))}")
    frequencies = sinusoidal_frequencies(
        hidden_size, base=base, endpoint=endpoint, device=positions.device
    )
    phases = positions.unsqueeze(-1).double() * frequencies  # (..., T, ⌈C/2⌉)
    if layout == "interleaved":
        vectors = torch.stack((phases.sin(), phases.cos()), dim=-1).flatten(-2)
    else:
        vectors = torch.cat((phases.sin(), phases.cos()), dim=-1)
    return vectors[..., :hidden_size].to(dtype)  # (..., T, C): an odd C drops the last cosine


def add_sinusoidal_positions(
    x: Tensor,
    *,
    offset: int | Tensor = 0,
    positions: Tensor | None = None,
    base: float = 10_000.0,
    layout: str = "interleaved",
    endpoint: bool = False,
) -> Tensor:
    """x + p(positions), summed in float32 or better: the shape and dtype of x.

    x: embeddings (B, T, C) or (T, C). offset: the tokens cached before x, a number or one for each
    row (B,). positions: integers (T,) or (B, T), instead of an offset.
    """
    check_embeddings(x)
    vectors = sinusoidal_positions(
        positions_of(x, offset, positions),
        x.shape[-1],
        base=base,
        layout=layout,
        endpoint=endpoint,
        dtype=torch.promote_types(x.dtype, torch.float32),
    )
    return add_positions(x, vectors)


def shift_matrix(distance: int, frequencies: Tensor) -> Tensor:
    """The M with p(m + distance) = M p(m) for every m, in layout `interleaved`: (C, C) float64.

    2 × 2 blocks (cos a, sin a; −sin a, cos a) with a = distance·ωᵢ. frequencies: (C/2,), from
    `sinusoidal_frequencies`, of an even C.
    """
    if frequencies.ndim != 1:
        raise ValueError(f"frequencies: shape is {tuple(frequencies.shape)}, must be (C/2,)")
    angles = distance * frequencies.double()
    cos, sin = angles.cos(), angles.sin()
    blocks = torch.stack((cos, sin, -sin, cos), dim=-1).unflatten(-1, (2, 2))  # (C/2, 2, 2)
    return torch.block_diag(*blocks)
