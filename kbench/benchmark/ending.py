"""The marker of a training that has ended, for evaluators beside it."""

import json
import os
import time
from typing import Any

from kbench import errors, files

MARKER = 'training_ended.json'


def _path(directory: str) -> str:
    return os.path.join(directory, MARKER)


def clear(directory: str) -> None:
    """Says that a training goes on."""
    if os.path.exists(_path(directory)):
        os.remove(_path(directory))


def mark(program: Any, step: int) -> None:
    """Says that a training has reached its end, and its last checkpoint.

    A run that was asked to end early says nothing: another will go on.

    Raises:
        UserError: the folder cannot be written.
    """
    directory = program.params.train_dir
    if not directory or not program.replicas.is_chief:
        return
    data = json.dumps({'step': step, 'time': time.time()}) + '\n'
    try:
        files.replace(_path(directory), data.encode())
    except OSError as error:
        raise errors.UserError(
            f'--train_dir={directory} cannot be written: {error.strerror}'
        ) from None


def has_ended(directory: str) -> bool:
    """Whether the training of a folder has reached its end."""
    return os.path.exists(_path(directory))
