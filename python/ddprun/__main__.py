"""``python -m ddprun``: becomes the program ``ddprun``. Its workers run with this python."""

from __future__ import annotations

import os
import sys

from ddprun._program import ProgramNotFoundError, find_program


def main() -> None:
    """Executes the program in the place of this process."""
    try:
        program = find_program()
    except ProgramNotFoundError as error:
        sys.exit(str(error))
    # As python -m torch.distributed.run does.
    os.environ.setdefault("PYTHON_EXEC", sys.executable)
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
