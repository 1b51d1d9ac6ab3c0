"""Finds the native program ``ddprun`` that belongs to this package."""

from __future__ import annotations

import os
import pathlib
import shutil
import sysconfig
from typing import Iterator

NAME = "ddprun"


class ProgramNotFoundError(FileNotFoundError):
    """The program ``ddprun`` is neither in the installation of this package nor on PATH."""


def _installed_with_this_package() -> Iterator[pathlib.Path]:
    """Yields the program that the installer has put on PATH together with this package.

    The installer's list of files is right for every scheme: environments, ``--user``,
    ``--prefix``.
    """
    import importlib.metadata

    try:
        distribution = importlib.metadata.distribution("ddprun")
    except importlib.metadata.PackageNotFoundError:
        return
    here = pathlib.Path(__file__).resolve()
    files = distribution.files or []
    located = [pathlib.Path(str(distribution.locate_file(file))) for file in files]
    # Another installation may be found if this package is imported from a source tree.
    if any(file.name == here.name and file.resolve() == here for file in located):
        yield from (file for file in located if file.name == NAME and file.parent.name == "bin")


def find_program() -> str:
    """Returns the path of the program ``ddprun``.

    Returns
    -------
    str
        The program of the installation that this package belongs to. For a package that was not
        installed: the one on PATH, else the one in the environment's folder of scripts.

    Raises
    ------
    ProgramNotFoundError
        There is none.
    """
    for installed in map(os.path.normpath, _installed_with_this_package()):
        if os.access(installed, os.X_OK):
            return installed
    scripts = sysconfig.get_path("scripts")
    found = shutil.which(NAME) or shutil.which(NAME, path=scripts)
    if not found:
        raise ProgramNotFoundError(
            f"ddprun: the program is neither in {scripts} nor on PATH (install it with "
            "pip install ddprun, or add its folder to PATH)")
    return found
