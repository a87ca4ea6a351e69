"""Run a check in a process of its own, which may loop, print, crash or change torch as it likes: the session stays whole.

A spare process waits with torch imported, so that a check need not; it ends with the session. `python -m
lib.practice.isolation` is that process. Jobs and answers are pickled: a length of eight bytes, then the bytes.
"""

import contextlib
import inspect
import io
import linecache
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lib.practice.drill import verdict_on
from lib.practice.exercise import load
from lib.practice.judge import Verdict
from lib.practice.language import Text

ROOT = Path(__file__).resolve().parents[2]
MEMORY = 4 * 2**30  # bytes that a submission may take (where the system can limit it)
PRINTED = 2_000  # characters of what a submission prints that are shown
START = 120  # seconds in which a fresh process must be ready

_spare: subprocess.Popen | None = None
_lock = threading.Lock()


def _start() -> subprocess.Popen:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    return subprocess.Popen(
        [sys.executable, "-m", "lib.practice.isolation"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=os.name == "posix",  # so that it can be killed with all that it started
    )


def prepare() -> None:
    """Start the spare process, if there is none."""
    global _spare
    with _lock:
        if _spare is None or _spare.poll() is not None:
            _spare = _start()


def _take() -> subprocess.Popen:
    global _spare
    with _lock:
        worker, _spare = _spare, None
    return worker if worker and worker.poll() is None else _start()


def _send(stream, thing: Any) -> None:
    data = pickle.dumps(thing)
    stream.write(len(data).to_bytes(8, "big") + data)
    stream.flush()


def _receive(stream) -> Any:
    """The next message; EOFError where the other side has gone."""
    head = stream.read(8)
    size = int.from_bytes(head, "big")
    data = stream.read(size) if len(head) == 8 else b""
    if len(head) < 8 or len(data) < size:
        raise EOFError
    return pickle.loads(data)


def _kill(worker: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if os.name == "posix":
            os.killpg(worker.pid, signal.SIGKILL)
        else:
            worker.kill()
    worker.wait()
    for stream in (worker.stdin, worker.stdout):
        with contextlib.suppress(OSError):
            stream.close()


def packed(program: Callable) -> bytes:
    """A submission as bytes; ValueError naming what cannot be sent."""
    import cloudpickle

    try:
        return cloudpickle.dumps(program)
    except Exception as error:  # pickling runs the reader's objects, which may raise anything
        told = " ".join(str(error).split())[:200]
        message = Text(
            f"your function uses something that cannot be copied into the judge's process: {told}; "
            "pass it as an argument, or make it inside the function",
            f"函数里用到的某个对象无法复制到判题进程：{told}；请改为参数传入，或在函数内部创建",
        )
        raise ValueError(str(message)) from None


def _source(program: Callable) -> list[str]:
    """The lines of a submission, at their places in its file or cell, for its error messages."""
    try:
        lines, start = inspect.getsourcelines(program)
    except (OSError, TypeError):
        return []
    return [""] * (start - 1) + lines


def run_isolated(name: str, program: Callable, *, seconds: float | None = None) -> Verdict:
    """The verdict on a submission, judged in a process of its own within the exercise's time."""
    job = {"name": name, "program": packed(program), "source": _source(program), "path": sys.path, "cwd": os.getcwd()}
    limit = seconds or load(name).seconds
    worker, last = _take(), Text("starting", "启动")
    killed = threading.Event()

    def kill():
        killed.set()
        _kill(worker)

    timer = threading.Timer(START, kill)
    timer.start()
    try:
        _receive(worker.stdout)  # ready
        timer.cancel()
        timer = threading.Timer(limit, kill)
        timer.start()
        _send(worker.stdin, job)
        while isinstance(answer := _receive(worker.stdout), Text):
            last = answer
        return answer
    except (EOFError, OSError, ValueError, pickle.UnpicklingError):
        return Verdict(name, broken=_why(worker, killed.is_set(), limit, last))
    finally:
        timer.cancel()
        _kill(worker)
        prepare()


def _why(worker: subprocess.Popen, late: bool, limit: float, last: Text) -> Text:
    if late:
        return Text(
            f"stopped after {limit:g} s, in the case '{last.en}': an endless loop, or far too slow",
            f"运行 {limit:g} 秒仍未结束，已终止（停在用例“{last.zh}”）：是死循环，或者实在太慢",
        )
    with contextlib.suppress(subprocess.TimeoutExpired):
        worker.wait(5)
    return Text(
        f"the process ended in the case '{last.en}' (exit status {worker.returncode}): it crashed, called exit, or ran "
        "out of memory",
        f"进程在用例“{last.zh}”中退出（状态 {worker.returncode}）：崩溃、调用了 exit，或内存不够",
    )


class _Printed(io.StringIO):
    """What a submission prints, up to a limit."""

    def write(self, text: str) -> int:
        if (room := PRINTED - self.tell()) > 0:
            super().write(text[:room])
        return len(text)


def _limit_memory() -> None:
    try:
        import resource

        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, resource.RLIM_INFINITY))
    except (ImportError, OSError, ValueError):
        return  # no such limit on this system


def _judge_job(job: dict[str, Any], answer: Callable[[Any], None]) -> Verdict:
    sys.path[:] = job["path"] + [p for p in sys.path if p not in job["path"]]
    os.chdir(job["cwd"])
    exercise = load(job["name"])
    sys.stdin = open(os.devnull)  # noqa: SIM115  (input() must not wait for ever)
    printed = _Printed()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        program = pickle.loads(job["program"])
        if code := getattr(program, "__code__", None):  # cloudpickle forgets the name of a notebook's cell
            linecache.cache[code.co_filename] = (1, None, job["source"], code.co_filename)
        _limit_memory()
        verdict = verdict_on(exercise, program, tell=answer)
    verdict.printed = printed.getvalue()
    return verdict


def main() -> None:
    """Wait for one job, judge it, answer, end."""
    out = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    import torch

    torch.set_num_threads(1)
    _send(out, "ready")
    try:
        job = _receive(sys.stdin.buffer)
    except EOFError:
        return
    try:
        verdict = _judge_job(job, lambda name: _send(out, name))
    except BaseException as error:  # a submission may raise SystemExit, or break what the judge stands on
        told = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        verdict = Verdict(job["name"], broken=Text(f"the check was ended by {told}", f"判题被中断：{told}"))
    _send(out, verdict)
    out.close()
    os._exit(0)  # whatever threads a submission has left


if __name__ == "__main__":
    main()
