"""Absolute positions: add to the embedding of each token a vector that belongs to its position.

hₜ = xₜ + pₜ, once, before the first layer. Here p is learned, one row of a table for each position:
Gehring et al. 2017 (arXiv 1705.03122), then GPT, BERT, GPT-2 and OPT. Topic sinusoidal_position
computes p instead and adds it with the same `add_positions`.

The positions are always an argument: with a KV cache the first new token stands at `offset`, and in
a left-padded batch each row counts from its own first real token. Left out: dropout after the sum,
token-type vectors (BERT), and OPT's two rows in front of position 0: to load them, drop them.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def position_ids(
    num_tokens: int, *, offset: int | Tensor = 0, device: torch.device | str | None = None
) -> Tensor:
    """offset, offset + 1, …, offset + T − 1: int64 (T,), or (B, T) for a tensor of offsets (B,).

    num_tokens: T, the tokens of this call. offset: how many tokens are cached already, a number or
    one for each row. A tensor of offsets decides the device. Raises ValueError for a negative
    num_tokens or offset (of a tensor's values in eager mode only).
    """
    if num_tokens < 0:
        raise ValueError(f"num_tokens: got {num_tokens}, must be at least 0")
    if isinstance(offset, Tensor):
        _check_integers("offset", offset)
        if offset.ndim != 1:
            raise ValueError(f"offset: shape is {tuple(offset.shape)}, must be (B,) or a number")
        _check_range("offset", offset, None)
        return offset.long().unsqueeze(-1) + torch.arange(num_tokens, device=offset.device)
    if offset < 0:
        raise ValueError(f"offset: got {offset}, must be at least 0, the number of cached tokens")
    return torch.arange(num_tokens, device=device) + offset


def positions_from_mask(mask: Tensor) -> Tensor:
    """The place of each real token among the real tokens of its row: int64 (B, T).

    mask: bool (B, T), True = real, over all tokens so far, the cached ones too: a decoding step
    takes the last columns of the result. Padding gets 0; its embeddings are masked later.
    """
    if mask.dtype != torch.bool:
        raise TypeError(f"mask: dtype is {mask.dtype}, must be torch.bool (True = a real token)")
    return (mask.long().cumsum(-1) - 1).clamp(min=0)


def learned_positions(positions: Tensor, weight: Tensor) -> Tensor:
    """pₜ = weight[positionₜ]: (..., T, C) of weight's dtype.

    positions: integers (T,) or (B, T). weight: (P, C), a row for each of the positions 0 … P − 1.
    A position below 0, which indexing would count from the end, or from P on raises ValueError
    (read in eager mode only).
    """
    _check_integers("positions", positions)
    if weight.ndim != 2:
        raise ValueError(f"weight: shape is {tuple(weight.shape)}, must be (P, C)")
    _check_range("positions", positions, weight.shape[0])
    return F.embedding(positions.long(), weight)


def add_positions(x: Tensor, vectors: Tensor) -> Tensor:
    """hₜ = xₜ + pₜ: (..., T, C), summed in float32 or better, returned in x's dtype.

    x: embeddings (B, T, C) or (T, C), not token ids. vectors: (T, C) for all rows alike, or
    (B, T, C). Any other shape raises ValueError: it would be broadcast in silence.
    """
    check_embeddings(x)
    if vectors.shape not in (x.shape[-2:], x.shape):
        raise ValueError(
            f"vectors: shape is {tuple(vectors.shape)}, must be (T, C) or (B, T, C) of x, "
            f"here {tuple(x.shape)}"
        )
    compute = torch.promote_types(torch.promote_types(x.dtype, vectors.dtype), torch.float32)
    return (x + vectors.to(compute)).to(x.dtype)  # x is promoted in the sum, without a copy


class LearnedPosition(nn.Module):
    """x + weight[positions]: a trainable vector for each of `max_positions` positions.

    weight: (P, C), as GPT-2 stores `wpe.weight`; normal with standard deviation `std` (0.02 in
    GPT-2). There is no row beyond P − 1, and a row that no training sequence reached stays random.
    """

    def __init__(
        self,
        max_positions: int,
        hidden_size: int,
        *,
        std: float = 0.02,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for name, value in (("max_positions", max_positions), ("hidden_size", hidden_size)):
            if value <= 0:
                raise ValueError(f"{name}: got {value}, must be at least 1")
        self.weight = nn.Parameter(
            torch.empty(max_positions, hidden_size, device=device, dtype=dtype)
        )
        nn.init.normal_(self.weight, std=std)

    def forward(
        self, x: Tensor, *, offset: int | Tensor = 0, positions: Tensor | None = None
    ) -> Tensor:
        """x: (B, T, C) or (T, C). offset: the tokens cached before x, a number or (B,).

        positions: integers (T,) or (B, T), instead of an offset. Returns the shape and dtype of x.
        Raises ValueError where a position has no row.
        """
        check_embeddings(x)
        positions = positions_of(x, offset, positions)
        return add_positions(x, learned_positions(positions, self.weight))


def check_embeddings(x: Tensor) -> None:
    """An error where x holds token ids, or has no axis of tokens."""
    if not x.is_floating_point():
        raise TypeError(
            f"x: dtype is {x.dtype}, must be floating point: token ids must be embedded first"
        )
    if x.ndim not in (2, 3):
        raise ValueError(f"x: shape is {tuple(x.shape)}, must be (B, T, C) or (T, C)")


def positions_of(x: Tensor, offset: int | Tensor, positions: Tensor | None) -> Tensor:
    """The positions given, or those that follow `offset`; not both."""
    if positions is None:
        return position_ids(x.shape[-2], offset=offset, device=x.device)
    if isinstance(offset, Tensor) or offset != 0:
        raise ValueError(f"offset: got {offset} beside positions; give one of the two")
    return positions


def _check_integers(name: str, values: Tensor) -> None:
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise TypeError(f"{name}: dtype is {values.dtype}, must be an integer type")


def _check_range(name: str, values: Tensor, size: int | None) -> None:
    """0 ≤ values < size; not read while compiling."""
    if torch.compiler.is_compiling() or not values.numel():
        return
    lowest, highest = values.min().item(), values.max().item()
    if lowest < 0 or (size is not None and highest >= size):
        allowed = "at least 0" if size is None else f"in the table, 0 to {size - 1}"
        raise ValueError(f"{name}: got {lowest} to {highest}, must be {allowed}")
