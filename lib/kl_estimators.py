"""Three estimates of KL(π‖π_ref) from the log-probabilities of tokens that π sampled.

Schulman 2020, Approximating KL divergence (joschu.net/blog/kl-approx.html); k3 is the penalty of
DeepSeekMath (arXiv 2402.03300). The samples come from π, the policy in the first argument, and r =
π_ref(x)/π(x):

    k1 = −log r              unbiased, noisy, often negative
    k2 = (log r)² / 2        biased, little noise, never negative
    k3 = (r − 1) − log r     unbiased, little noise, never negative; the penalty of GRPO

The direction is the usual trap: r is reference over policy. With r turned round, k3 estimates
another quantity, χ²(π‖π_ref) − KL(π‖π_ref).

As a *loss* the three differ again, because differentiating one sample's estimate is not
differentiating its mean: the expected gradient of k1 is 0, that of k2 is ∇KL(π‖π_ref), that of k3
is ∇KL(π_ref‖π).

Log-ratios are held within ±20 nats (as in verl), so that exp() stays finite; a token beyond that
counts as 20 nats and sends no gradient. Half-precision input is computed and returned in float32.
"""

import torch
from torch import Tensor

from lib.masking import masked_log_ratio, masked_mean


def kl_k1(logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor | None = None) -> Tensor:
    """log π − log π_ref for each token, in nats; 0 where masked. logprobs, ref_logprobs, mask:
    (..., T).
    """
    return masked_log_ratio(logprobs, ref_logprobs, mask)


def kl_k2(logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor | None = None) -> Tensor:
    """½·(log π − log π_ref)² for each token, in nats; 0 where masked. logprobs, ref_logprobs, mask:
    (..., T).
    """
    return 0.5 * masked_log_ratio(logprobs, ref_logprobs, mask).square()


def kl_k3(logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor | None = None) -> Tensor:
    """(r − 1) − log r with r = π_ref/π, for each token, in nats; 0 where masked. logprobs,
    ref_logprobs, mask: (..., T).

    expm1 keeps the digits where r is close to 1 (in float32 down to |log r| = 1e-5), which is where
    training spends its time.
    """
    log_r = -masked_log_ratio(logprobs, ref_logprobs, mask)
    return torch.expm1(log_r) - log_r


ESTIMATORS = {"k1": kl_k1, "k2": kl_k2, "k3": kl_k3}


def kl_estimate(
    logprobs: Tensor,
    ref_logprobs: Tensor,
    mask: Tensor | None = None,
    *,
    estimator: str = "k3",
) -> Tensor:
    """The mean estimate over the valid tokens: a scalar, in nats per token. estimator: 'k1', 'k2'
    or 'k3'.
    """
    if estimator not in ESTIMATORS:
        raise ValueError(
            f"estimator: got {estimator!r}, must be one of {', '.join(map(repr, ESTIMATORS))}"
        )
    return masked_mean(ESTIMATORS[estimator](logprobs, ref_logprobs, mask), mask)
