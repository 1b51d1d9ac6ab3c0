"""``python -m ddprun``: becomes the program ``ddprun``. Its workers run with this python."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from ddprun._program import ProgramNotFoundError, find_program

_NOT_EXECUTABLE, _NOT_FOUND = 126, 127  # as in a shell


def main() -> None:
    """Executes the program in the place of this process."""
    try:
        program = find_program()
    except ProgramNotFoundError as error:
        _fail(str(error), _NOT_FOUND)
    # As python -m torch.distributed.run does.
    os.environ.setdefault("PYTHON_EXEC", sys.executable)
    try:
        os.execv(program, [program, *sys.argv[1:]])
    except OSError as error:
        _fail(f"ddprun: execute {program}: {error.strerror} (install it again, for this machine)",
              _NOT_EXECUTABLE)


def _fail(text: str, code: int) -> NoReturn:
    print(text, file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
