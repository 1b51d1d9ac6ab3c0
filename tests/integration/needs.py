"""What a test in Python needs of its python; without it the test is skipped, and says so."""
import importlib.util
import sys


def module(name: str, remedy: str = "") -> None:
    """Ends the program with 77, which ctest shows as skipped, where there is no such module."""
    if importlib.util.find_spec(name) is None:
        print(f"skipped: this python has no {name}{remedy}")
        sys.exit(77)
