"""Run a check in a process of its own, which may loop, print, crash or change torch as it likes: the session stays whole.

A spare process waits with torch imported, so that a check need not; it ends with the session. `python -m
lib.practice.isolation` is that process. Jobs and answers are pickled: a length of eight bytes, then the bytes.
"""

import contextlib
import functools
import io
import linecache
import marshal
import os
import pickle
import signal
import subprocess
import sys
import threading
import types
import warnings
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
        cwd=ROOT,
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
    """A process that is ready: the spare one, or else a new one."""
    global _spare
    with _lock:
        worker, _spare = _spare, None
    if worker is not None and _is_ready(worker):
        return worker
    if _is_ready(worker := _start()):
        return worker
    raise RuntimeError(str(Text("the judge's process does not start", "判题进程无法启动")))


def _is_ready(worker: subprocess.Popen) -> bool:
    timer = threading.Timer(START, _kill, [worker])
    timer.start()
    try:
        return _receive(worker.stdout) == "ready"
    except (EOFError, OSError, ValueError):
        _kill(worker)
        return False
    finally:
        timer.cancel()


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


def _same(thing: Any) -> Any:
    return thing


def _cached(function: Callable, parameters: dict[str, Any]) -> Callable:
    return functools.lru_cache(**parameters)(function)


def _code(data: bytes) -> types.CodeType:
    return marshal.loads(data)


def packed(program: Callable) -> tuple[bytes, dict[str, list[str]]]:
    """A submission as bytes, and the lines of the files and cells it comes from; ValueError naming what cannot be sent."""
    import cloudpickle

    files: set[str] = set()

    class Packer(cloudpickle.Pickler):
        """cloudpickle, which forgets the files of code, and takes cached and compiled functions for importable ones."""

        def reducer_override(self, thing):
            if isinstance(thing, types.CodeType):
                files.add(thing.co_filename)
                return _code, (marshal.dumps(thing),)
            if isinstance(thing, functools._lru_cache_wrapper):
                return _cached, (thing.__wrapped__, thing.cache_parameters())
            if isinstance(thing, types.FunctionType) and hasattr(thing, "_torchdynamo_orig_callable"):
                return _same, (thing._torchdynamo_orig_callable,)
            return super().reducer_override(thing)

    data = io.BytesIO()
    try:
        Packer(data).dump(program)
    except Exception as error:  # pickling runs the reader's objects, which may raise anything
        raise _not_sent(error) from None
    return data.getvalue(), {file: lines for file in files if (lines := linecache.getlines(file))}


def _not_sent(error: Exception | str) -> ValueError:
    told = " ".join(str(error).split())[:200]
    message = Text(
        f"your function uses something that cannot be copied into the judge's process: {told}; "
        "pass it as an argument, or make it inside the function",
        f"函数里用到的某个对象无法复制到判题进程：{told}；请改为参数传入，或在函数内部创建",
    )
    return ValueError(str(message))


def _folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # deleted under our feet
        return str(ROOT)


def run_isolated(name: str, program: Callable, *, seconds: float | None = None) -> Verdict:
    """The verdict on a submission, judged in a process of its own within the exercise's time."""
    data, sources = packed(program)
    job = {"name": name, "program": data, "sources": sources, "path": sys.path, "cwd": _folder()}
    limit = seconds or load(name).seconds
    worker, last = _take(), Text("starting", "启动")
    killed = threading.Event()

    def kill():
        killed.set()
        _kill(worker)

    timer = threading.Timer(limit, kill)
    timer.start()
    try:
        _send(worker.stdin, job)
        while isinstance(answer := _receive(worker.stdout), Text):
            last = answer
    except (EOFError, OSError, ValueError, pickle.UnpicklingError):
        answer = Verdict(name, broken=_why(worker, killed.is_set(), limit, last))
    finally:
        timer.cancel()
        _kill(worker)
        prepare()
    if isinstance(answer, str):
        raise _not_sent(answer)
    return answer


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


def _judge_job(job: dict[str, Any], answer: Callable[[Any], None]) -> Verdict | str:
    """The verdict; or, where the submission cannot be unpacked here, why."""
    sys.path[:] = job["path"] + [p for p in sys.path if p not in job["path"]]
    os.chdir(job["cwd"])
    exercise = load(job["name"])
    sys.stdin = open(os.devnull)  # noqa: SIM115  (input() must not wait for ever)
    printed = _Printed()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        warnings.showwarning = lambda message, category, *_: print(f"{category.__name__}: {message}")
        for file, lines in job["sources"].items():
            linecache.cache[file] = (sum(map(len, lines)), None, lines, file)
        try:
            program = pickle.loads(job["program"])
        except Exception as error:  # such as a module that is not where it was
            return f"{type(error).__name__}: {error}"
        _limit_memory()
        verdict = verdict_on(exercise, program, tell=answer)
    verdict.printed = printed.getvalue()
    return verdict


def _uncompiled(model: Callable | None = None, **_: Any) -> Callable:
    """In place of torch.compile: what is compiled is judged as it is written."""
    return _same if model is None else model


def main() -> None:
    """Wait for one job, judge it, answer, end."""
    out = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    import torch

    torch.set_num_threads(1)
    torch.compile = _uncompiled
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
