"""What stands beside a run: one module a command."""

import importlib
from collections.abc import Callable, Sequence

NAMES = ('prepare', 'launch')


def find(arguments: Sequence[str]) -> Callable[[list[str]], int] | None:
    """The command that a command line begins with, or None.

    Returns:
        A function of the other arguments to the exit status.
    """
    if not arguments or arguments[0] not in NAMES:
        return None
    return importlib.import_module(f'kbench.commands.{arguments[0]}').main
