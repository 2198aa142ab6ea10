"""Where the record of a run is kept: a file, lines of a file, a database."""

import fcntl
import json
import math
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from kbench import errors, files

# The table of a database.
TABLE = 'kbench_runs'


class ResultError(errors.UserError):
    """A place that takes no record; its text is one line."""


class Store(Protocol):
    """Takes records."""

    def write(self, record: Mapping[str, Any]) -> None:
        """Adds one record, wholly or not at all."""


def without_password(place: str) -> str:
    """The place as it may be shown: a database URL may hold a password."""
    return re.sub(r'(://[^:/@]*):[^@/]*@', r'\1:***@', place)


def plain(value: Any) -> Any:
    """What JSON can hold: numbers that are not finite become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(one) for one in value]
    return value


def _failed(place, reason):
    return ResultError(
        f'--result_storage={without_password(place)} cannot be written: '
        f'{reason}'
    )


def _os_failure(place, error):
    return _failed(place, error.strerror or str(error))


class _File:
    """One record; a later one takes its place."""

    def __init__(self, path):
        self._path = path
        self._folder = os.path.dirname(os.path.abspath(path))
        try:
            if os.path.isdir(path):
                raise IsADirectoryError(0, 'it is a folder')
            os.makedirs(self._folder, exist_ok=True)
            self._try()
        except OSError as error:
            raise _os_failure(path, error) from None

    def _try(self):
        with tempfile.TemporaryFile(dir=self._folder):
            pass

    def write(self, record):
        """Puts the record in the place of an earlier one."""
        text = json.dumps(plain(record), indent=2, allow_nan=False) + '\n'
        try:
            files.replace(self._path, text.encode())
        except OSError as error:
            raise _os_failure(self._path, error) from None


class _Lines(_File):
    """One line a record; many processes may add to one file."""

    def _try(self):
        with open(self._path, 'ab'):
            pass

    def write(self, record):
        """Adds a line."""
        line = json.dumps(plain(record), allow_nan=False).encode() + b'\n'
        try:
            with open(self._path, 'ab+', buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                end = file.seek(0, os.SEEK_END)
                try:
                    self._append(file, line, end)
                except OSError:
                    # Half a line would spoil the next one too.
                    file.truncate(end)
                    raise
        except OSError as error:
            raise _os_failure(self._path, error) from None

    def _append(self, file, line, end):
        if end and os.pread(file.fileno(), 1, end - 1) != b'\n':
            line = b'\n' + line
        view = memoryview(line)
        while view:
            view = view[file.write(view) :]
        os.fsync(file.fileno())


class _Database:
    """One row a record, in a table that is made where it is absent.

    Columns that queries need stand beside the whole record in JSON.
    """

    def __init__(self, url):
        try:
            import sqlalchemy
        except ImportError:
            raise _failed(
                url,
                'SQLAlchemy is not installed: pip install "kbench[database]", '
                'or a path ending in .json or .jsonl',
            ) from None
        self._sql, self._url = sqlalchemy, url
        column, text = sqlalchemy.Column, sqlalchemy.Text
        self._table = sqlalchemy.Table(
            TABLE,
            sqlalchemy.MetaData(),
            column('id', sqlalchemy.Integer, primary_key=True),
            column('started', text),
            column('host', text),
            column('status', text),
            column('mode', text),
            column('model', text),
            column('variable_update', text),
            column('images_per_sec', sqlalchemy.Float),
            column('record', sqlalchemy.JSON),
        )
        self._run(self._create)

    def _create(self, connection):
        try:
            self._table.create(connection, checkfirst=True)
        except self._sql.exc.DBAPIError:
            # Another run may have made it just now.
            connection.rollback()
            self._table.create(connection, checkfirst=True)

    def _run(self, action):
        """Runs an action in one transaction of a connection of its own."""
        try:
            engine = self._sql.create_engine(
                self._url, poolclass=self._sql.pool.NullPool
            )
            with engine.begin() as connection:
                action(connection)
        except ModuleNotFoundError as error:
            raise _failed(
                self._url, f'its driver {error.name} is not installed'
            ) from None
        except self._sql.exc.SQLAlchemyError as error:
            reason = str(getattr(error, 'orig', None) or error)
            raise _failed(self._url, ' '.join(reason.split())) from None

    def write(self, record):
        """Adds a row."""
        record = plain(record)
        row = {
            'started': record['started'],
            'host': record['host']['name'],
            'status': record['status'],
            'mode': record['mode'],
            'model': record['parameters']['model'],
            'variable_update': record['parameters']['variable_update'],
            'images_per_sec': record['images_per_sec'],
            'record': record,
        }
        self._run(
            lambda connection: connection.execute(
                self._table.insert().values(row)
            )
        )


def create(place: str) -> Store:
    """Opens a place for records and sees that it can be written.

    Args:
        place: a path that ends in .json or .jsonl, or a database URL.

    Raises:
        ResultError: it cannot be written, in one line.
    """
    if '://' in place:
        return _Database(place)
    return _Lines(place) if place.endswith('.jsonl') else _File(place)
