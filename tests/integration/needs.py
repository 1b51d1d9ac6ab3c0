"""Requirements of a Python test. If one is missing, the test is skipped and prints the reason."""
import importlib.util
import sys


def skip(reason: str) -> None:
    """Ends the program with 77, which ctest shows as skipped."""
    print(f"skipped: {reason}")
    sys.exit(77)


def module(name: str, remedy: str = "") -> None:
    """Skips the test if there is no such module."""
    if importlib.util.find_spec(name) is None:
        skip(f"this python has no {name}{remedy}")
