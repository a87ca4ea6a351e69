"""Ours beside what a user would take instead, one module a topic: `make bench`, or `make bench TOPIC=rope`."""
