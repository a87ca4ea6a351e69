"""The mathematics of large language models, written by hand in PyTorch: one module a topic."""
