"""Install requirements.txt with pip, a line for each package as it comes: `python book/install.py [pip options]`."""

import re
import subprocess
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parent.parent / "requirements.txt"
COMMAND = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]


def main() -> int:
    """Show what pip collects, and all that it said only where it failed."""
    said = []
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen([*COMMAND, *sys.argv[1:], "-r", str(REQUIREMENTS)], **pipe) as pip:
        for line in pip.stdout:
            said.append(line)
            if found := re.match(r"Collecting ([^ ;<>=!~\[]+)\S*", line):
                print(f"  {found[0].removeprefix('Collecting ')}", flush=True)
            elif line.startswith("Installing collected packages"):
                print("  unpacking (the longest part)", flush=True)
    if pip.returncode:
        print("".join(said[-30:]), "error: pip could not install requirements.txt; its message is above", sep="")
    return pip.returncode


if __name__ == "__main__":
    sys.exit(main())
