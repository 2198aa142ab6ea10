"""When a training is saved, and by whom."""

import functools
import logging
import time

from kbench import checkpoints
from kbench.benchmark import state as state_lib

_log = logging.getLogger('kbench')


class Saver:
    """Saves a training, in the middle of the run and at its end.

    The steps stand still only while the weights are copied. Only the chief
    writes, and only with a train_dir.
    """

    def __init__(self, training: state_lib.Training):
        params = training.program.params
        self._training = training
        self._every = params.save_model_steps
        self._secs = params.save_model_secs
        # A bad checkpoint must not push out a good one.
        self._careful = params.stop_on_nan or params.recover_on_nan > 0
        self._start = training.steps_seen
        self._last = time.monotonic()
        self._due = None
        self._taken = None
        # Of what was written last.
        self._saved_at = None
        self._writer = None
        if params.train_dir and training.program.replicas.is_chief:
            warns = params.on_save_error == 'warn'
            self._writer = checkpoints.Writer(
                params.train_dir,
                params.max_ckpts_to_keep,
                _log.warning if warns else None,
            )
            # Its function is made now, not in a timed step.
            training.take()

    @property
    def times(self) -> checkpoints.SaveTimes | None:
        """What the checkpoints cost; None where none are written."""
        return self._writer.times if self._writer is not None else None

    def save_first(self) -> None:
        """Saves before the first step, so that there is one to go back to.

        Raises:
            CheckpointError: it could not be written.
        """
        training = self._training
        directory = training.program.params.train_dir
        if self._writer is None or checkpoints.latest(directory) is not None:
            return
        values = training.take()
        self._writer.finish(values, int(values[state_lib.STEP]))
        self._saved_at = training.steps_seen

    def start(self) -> None:
        """Begins to count timed steps from 1."""
        self._start = self._training.steps_seen
        self._due = None

    def is_due(self, number: int) -> bool:
        """Whether a checkpoint follows the timed step of this number."""
        if self._writer is None:
            return False
        waited = time.monotonic() - self._last
        if (self._every and (self._start + number) % self._every == 0) or (
            0 < self._secs <= waited and not self._writer.busy
        ):
            self._due = number
        return self._due == number

    def after(self, number: int) -> None:
        """Saves if that was due after the step of this number.

        With stop_on_nan one step later, when the loss of these weights is
        known to be finite.

        Raises:
            CheckpointError: one could not be written, with
                on_save_error=stop, or was not finite, with stop_on_nan.
        """
        if self._writer is None:
            return
        self._writer.poll()
        if self._taken is not None:
            taken, self._taken = self._taken, None
            self._write(*taken)
        if self._due == number:
            self._last = time.monotonic()
            values = self._writer.copy(self._training.take)
            taken = (values, self._training.steps_seen)
            if self._careful:
                self._taken = taken
            else:
                self._write(*taken)

    def _check(self, steps_seen):
        if not self._careful:
            return None
        return functools.partial(checkpoints.check_finite, step=steps_seen)

    def _write(self, values, steps_seen):
        self._writer.write(
            values, int(values[state_lib.STEP]), self._check(steps_seen)
        )
        self._saved_at = steps_seen

    def flush(self) -> None:
        """Waits for what is being written, and drops what is not yet."""
        self._taken = None
        if self._writer is not None:
            self._writer.wait()

    def finish(self) -> str | None:
        """Writes the last checkpoint and waits for it.

        Returns:
            Its path; None without a train_dir.

        Raises:
            CheckpointError: it could not be written.
        """
        params, training = self._training.program.params, self._training
        if not params.train_dir:
            return None
        path = checkpoints.path_of(params.train_dir, training.step())
        if self._writer is None:
            return path
        self.flush()
        steps_seen = training.steps_seen
        if self._saved_at != steps_seen or not self._writer.last_is_there:
            values = training.take()
            self._writer.finish(
                values, int(values[state_lib.STEP]), self._check(steps_seen)
            )
        return path

    def close(self) -> None:
        """Waits for the thread to end."""
        if self._writer is not None:
            self._writer.close()
