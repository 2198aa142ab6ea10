"""Writes checkpoints beside the steps."""

import concurrent.futures
import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

from kbench.checkpoints import files

Values = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class SaveTimes:
    """What the checkpoints cost that were written beside the steps.

    Those before the first step and after the last one are not among them.

    Attributes:
        copy_sec: how long the steps stood still for each copy.
        write_sec: how long each took to be written, beside the steps.
        wait_sec: how long steps waited for the writing of one before.
        failed: how many could not be written.
    """

    copy_sec: tuple[float, ...] = ()
    write_sec: tuple[float, ...] = ()
    wait_sec: float = 0.0
    failed: int = 0

    def __str__(self):
        def mean_ms(seconds):
            return 1e3 * sum(seconds) / max(1, len(seconds))

        count = len(self.write_sec)
        return (
            f'{count} checkpoint{"s" if count > 1 else ""} in the middle of '
            f'the run: the steps stood still for {mean_ms(self.copy_sec):.1f} '
            f'ms each; writing took {mean_ms(self.write_sec):.1f} ms each '
            f'beside them, and {1e3 * self.wait_sec:.1f} ms in all were spent '
            'waiting for it'
        )


class Writer:
    """One thread that writes one checkpoint at a time.

    There is never more than one copy of the weights in memory: whoever comes
    with the next while one is being written waits, and that is counted.

    Args:
        directory: the folder of the checkpoints.
        keep: how many stay.
        warn: told of a checkpoint that could not be written; None: that is
            an error.
    """

    def __init__(
        self,
        directory: str,
        keep: int,
        warn: Callable[[str], None] | None = None,
    ):
        self._directory = directory
        self._keep = keep
        self._warn = warn
        self._job = None
        self._pool = concurrent.futures.ThreadPoolExecutor(1)
        self._copy_sec, self._write_sec = [], []
        self._wait_sec = 0.0
        self._failed = 0
        self.last_is_there = False
        files.clean(directory)

    @property
    def busy(self) -> bool:
        """Whether one is being written."""
        return self._job is not None and not self._job.done()

    @property
    def times(self) -> SaveTimes:
        """What it cost so far."""
        return SaveTimes(
            tuple(self._copy_sec),
            tuple(self._write_sec),
            self._wait_sec,
            self._failed,
        )

    def copy(self, take: Callable[[], Values]) -> Values:
        """Makes a copy of the weights, once the one before is written.

        Args:
            take: makes the copy, tensor by name.

        Raises:
            CheckpointError: the one before could not be written.
        """
        start = time.perf_counter()
        self.wait()
        waited = time.perf_counter()
        values = take()
        self._wait_sec += waited - start
        self._copy_sec.append(time.perf_counter() - waited)
        return values

    def write(
        self,
        values: Values,
        step: int,
        check: Callable[[Values], None] | None = None,
    ) -> None:
        """Writes a copy in the background.

        Args:
            values: tensor by name.
            step: number of the checkpoint.
            check: raises if the copy must not be written; runs in the
                background too, and what it raises comes with a later call.

        Raises:
            CheckpointError: the one before could not be written.
        """
        self.wait()
        self._job = self._pool.submit(self._run_beside, values, step, check)

    def finish(
        self,
        values: Values,
        step: int,
        check: Callable[[Values], None] | None = None,
    ) -> None:
        """Writes the last copy, and waits for it.

        Raises:
            CheckpointError: it could not be written.
        """
        self.wait()
        failure = self._run(values, step, check)
        if failure is not None:
            raise failure

    def _run_beside(self, values, step, check):
        start = time.perf_counter()
        failure = self._run(values, step, check)
        if failure is None:
            self._write_sec.append(time.perf_counter() - start)
        return failure

    def _run(self, values, step, check):
        self.last_is_there = False
        if check is not None:
            check(values)
        try:
            files.save(self._directory, step, values, self._keep)
        except files.CheckpointError as error:
            self._failed += 1
            if self._warn is None:
                raise
            return error
        self.last_is_there = True
        return None

    def poll(self) -> None:
        """Looks for the outcome of a finished writing, without waiting.

        Raises:
            CheckpointError: it failed, and that is an error.
        """
        if self._job is not None and self._job.done():
            self.wait()

    def wait(self) -> files.CheckpointError | None:
        """Waits until all is written.

        Returns:
            Why the last one could not be written, where that is a warning.

        Raises:
            CheckpointError: it failed, and that is an error.
        """
        job, self._job = self._job, None
        failure = job.result() if job is not None else None
        if failure is not None:
            self._warn(f'{failure}; the training goes on without it')
        return failure

    def close(self) -> None:
        """Waits, and ends the thread; tells of no failure any more."""
        self._pool.shutdown()
