"""Time the cases of each topic: ours and the peer in turn, in one run, so that a noisy machine disturbs both alike."""

import argparse
import importlib
import platform
import statistics
import sys
from pathlib import Path

import torch
from torch.utils.benchmark import Timer

from lib.device import device

ROUNDS = 15
TOPICS = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))


def seconds(function) -> float:
    """One measurement: the mean of enough calls to last 20 ms, CUDA synchronised."""
    return (
        Timer("function()", globals={"function": function})
        .adaptive_autorange(min_run_time=0.02, max_run_time=0.2)
        .median
    )


def compare(ours, theirs) -> tuple[float, float, list[float]]:
    """The medians of ours and of theirs in seconds, and the ratio ours / theirs of each round."""
    ours(), theirs()
    rounds = [(seconds(ours), seconds(theirs)) for _ in range(ROUNDS)]
    ratios = sorted(a / b for a, b in rounds)
    return statistics.median(a for a, _ in rounds), statistics.median(b for _, b in rounds), ratios


def main() -> None:
    """A table: microseconds, and the ratio of each round as its quartiles. Below 1, ours is faster."""
    parser = argparse.ArgumentParser(prog="make bench", description=main.__doc__)
    parser.add_argument("topics", nargs="*", default=TOPICS)
    topics = parser.parse_args().topics or TOPICS
    if unknown := set(topics) - set(TOPICS):
        sys.exit(f"error: no benchmark named {', '.join(sorted(unknown))}; there are {', '.join(TOPICS)}")
    machine = torch.cuda.get_device_name() if device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    print(f"torch {torch.__version__}, {platform.machine()}, {machine}, {ROUNDS} rounds\n")
    print(f"{'case':58} {'ours':>10} {'peer':>10} {'ours / peer':>20}")
    for topic in topics:
        for name, ours, theirs in importlib.import_module(f"benchmarks.{topic}").cases():
            mine, peer, ratios = compare(ours, theirs)
            low, middle, high = (ratios[int(q * (len(ratios) - 1))] for q in (0.25, 0.5, 0.75))
            spread = f"{middle:.2f} ({low:.2f} to {high:.2f})"
            print(f"{topic + ': ' + name:58} {mine * 1e6:7.0f} µs {peer * 1e6:7.0f} µs {spread:>20}", flush=True)


if __name__ == "__main__":
    main()
