"""Files that are whole or not there."""

import os


def sync(path: str) -> None:
    """Waits until a file or a folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace(path: str, data: bytes) -> None:
    """Writes a file in one move, and its folder where that is absent.

    Raises:
        OSError: it cannot be written; what was there stays.
    """
    folder = os.path.dirname(os.path.abspath(path))
    os.makedirs(folder, exist_ok=True)
    partial = f'{path}.{os.getpid()}.tmp'
    try:
        with open(partial, 'wb') as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError:
        if os.path.exists(partial):
            os.remove(partial)
        raise
