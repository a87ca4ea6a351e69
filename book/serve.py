"""Serve the built site on this machine: `python -m book.serve [--port 8000]`."""

import argparse
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

from book.project import BUILD

SITE = BUILD / "html"


class Handler(SimpleHTTPRequestHandler):
    """Files as a static host serves them: text in UTF-8, nothing kept by the browser, no log."""

    def guess_type(self, path: str) -> str:
        """The type of a file, with its encoding where it is text."""
        kind = super().guess_type(path)
        return f"{kind}; charset=utf-8" if kind.startswith("text/") else kind

    def end_headers(self) -> None:
        """Always show the site as it is on disk."""
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()

    def log_message(self, *_: object) -> None:
        """Stay quiet."""


class Server(ThreadingHTTPServer):
    """A server that does not share its port with another one."""

    allow_reuse_port = False
    daemon_threads = True


def serve(port: int) -> str | None:
    """Serve until interrupted; the reason, where that is not possible."""
    if not (SITE / "index.html").is_file():
        return "there is no site yet: run make book"
    try:
        server = Server(("127.0.0.1", port), partial(Handler, directory=str(SITE)))
    except OSError:
        return f"port {port} is in use: choose another, such as make serve PORT={port + 1}"
    print(f"http://127.0.0.1:{port}/  (stop with Ctrl-C)", flush=True)
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    return None


def main() -> int:
    """Read the port, serve, turn a reason into one line."""
    parser = argparse.ArgumentParser(description="Serve the built site on this machine.")
    parser.add_argument("--port", type=int, default=8000)
    if reason := serve(parser.parse_args().port):
        print(f"error: {reason}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
