"""What the reader has solved: one small file in the user's data folder, or in the folder BOOK_DATA."""

import json
import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lib.practice.language import Message, Text, show

VERSION = 1
EMPTY = {"version": VERSION, "exercises": {}, "interview": None}


def path() -> Path:
    """Where it lies."""
    if folder := os.environ.get("BOOK_DATA"):
        return Path(folder) / "progress.json"
    import platformdirs

    return Path(platformdirs.user_data_dir("llm-by-hand", appauthor=False)) / "progress.json"


def _valid(data: Any) -> bool:
    if not isinstance(data, dict) or data.get("version") != VERSION:
        return False
    entries = data.get("exercises")
    return (
        isinstance(entries, dict)
        and all(isinstance(e, dict) and all(isinstance(v, int | float) for v in e.values()) for e in entries.values())
        and isinstance(data.get("interview"), dict | None)
    )


def _aside(file: Path, word: str) -> Path:
    """A name beside the file that is not taken."""
    number = 1
    while (target := file.with_name(f"progress.{word}-{number}.json")).exists():
        number += 1
    return target


def _read(file: Path) -> dict[str, Any]:
    """The file's content; a damaged one is set aside and told of."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        if _valid(data):
            return data
    except FileNotFoundError:
        return json.loads(json.dumps(EMPTY))
    except (ValueError, UnicodeDecodeError):
        pass
    target = _aside(file, "damaged")
    file.replace(target)
    text = Text(
        f"The progress file could not be read; it is kept as {target}, and a new one begins.",
        f"进度文件无法读取，已另存为 {target}；现在从新文件开始。",
    )
    show(Message(lambda: str(text)))
    return json.loads(json.dumps(EMPTY))


@contextmanager
def opened():
    """The progress, to read and change; written whole at the end, with no other notebook in between."""
    from filelock import FileLock

    file = path()
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_suffix(".lock"), timeout=30):
        data = _read(file)
        before = json.dumps(data, sort_keys=True)
        yield data
        after = json.dumps(data, sort_keys=True, indent=1)
        if json.dumps(data, sort_keys=True) != before:
            new = file.with_suffix(".new")
            new.write_text(after + "\n", encoding="utf-8")
            os.replace(new, file)


def read() -> dict[str, Any]:
    """The progress as it is now."""
    with opened() as data:
        return data


def entry(data: dict[str, Any], name: str) -> dict[str, Any]:
    """What is kept of one exercise."""
    return data["exercises"].setdefault(name, {"attempts": 0, "solved": 0, "hints": 0, "revealed": 0})


def record(name: str, passed: bool) -> int:
    """Note an attempt; how many there were."""
    with opened() as data:
        kept = entry(data, name)
        kept["attempts"] += 1
        if passed and not kept["solved"]:
            kept["solved"] = int(time.time())
        return kept["attempts"]


def clear(name: str | None) -> Path | None:
    """Forget one exercise, or all; the old file is kept beside the new one, under the name that comes back."""
    from filelock import FileLock

    file = path()
    if not file.exists():
        return None
    with FileLock(file.with_suffix(".lock"), timeout=30):
        target = _aside(file, "before-reset")
        target.write_bytes(file.read_bytes())
    with opened() as data:
        if name is None:
            data.update(json.loads(json.dumps(EMPTY)))
        else:
            data["exercises"].pop(name, None)
    return target
