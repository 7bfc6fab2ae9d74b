"""Whether a gate or a worker works, by the file that it keeps (`--health-file`): a probe asks the one that it is about.

`python -m gated.shell.readiness FILE` is exit status 0 where the file's process decides, else 1 and why; with `--alive` it is 0
where the process runs at all, whatever keeps it from deciding: starting it again would not mend a full disk.
What asks is started every few seconds, so this module imports next to nothing.
"""

import sys
import time
from pathlib import Path

EVERY = 2.0  # seconds between two signs of life
STALE = 20.0  # seconds after which there is none
OK = "ok"


def why_not(file: Path, *, alive: bool = False) -> str:
    """Why the process that keeps the file does not work, or where only that is asked, does not run; empty where it does."""
    try:
        age, said = time.time() - file.stat().st_mtime, file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        return f"nothing works here yet: `{file}` cannot be read: {getattr(error, 'strerror', error)}"
    if age > STALE:
        return f"no sign of life for {age:.0f}s in `{file}`"
    return "" if alive or said == OK else said or f"`{file}` is empty"


def main(arguments: list[str]) -> int:
    """The exit status; what is wrong goes to standard output, where engines keep what a probe said."""
    files = [word for word in arguments if word != "--alive"]
    if len(files) != 1 or len(arguments) > 2:
        sys.stdout.write("python -m gated.shell.readiness FILE [--alive]\n")
        return 2
    why = why_not(Path(files[0]), alive="--alive" in arguments)
    sys.stdout.write(f"{why or OK}\n")
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
