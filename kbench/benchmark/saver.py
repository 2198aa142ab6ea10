"""When a training is saved in the middle of a run."""

import time
from typing import Any


class Saver:
    """Saves in the middle of a training."""

    def __init__(self, training: Any):
        self._training = training
        self._start = training.steps_seen
        self._last = time.monotonic()
        self._due = None
        self._taken = None

    def is_due(self, number: int) -> bool:
        """Whether a checkpoint follows the timed step of this number."""
        params = self._training.program.params
        every = params.save_model_steps
        waited = time.monotonic() - self._last
        if params.train_dir and (
            (every and (self._start + number) % every == 0)
            or 0 < params.save_model_secs <= waited
        ):
            self._due = number
        return self._due == number

    def after(self, number: int) -> None:
        """Saves if that was due after the step of this number.

        With stop_on_nan one step later, when the loss of these weights is
        known to be finite: a bad checkpoint must not push out a good one.
        """
        training = self._training
        if self._taken is not None:
            training.write(self._taken)
            self._taken = None
        if self._due == number:
            self._last = time.monotonic()
            self._taken = training.take()
            if not training.program.params.stop_on_nan:
                training.write(self._taken)
                self._taken = None
