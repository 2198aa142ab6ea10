"""What a training writes for TensorBoard, and when."""

import contextlib
import logging
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from kbench import loop, metrics, summaries
from kbench import params as params_lib
from kbench.benchmark import program as program_lib
from kbench.params import table

_log = logging.getLogger('kbench')

_TAGS = {
    'loss/total': metrics.LOSS,
    'accuracy/top_1': metrics.TOP_1,
    'accuracy/top_5': metrics.TOP_5,
    'gradient_norm': metrics.GRADIENT_NORM,
}


def is_on(params: params_lib.Params) -> bool:
    """Whether a training writes summaries."""
    return params.summary_verbosity > 0 and params.save_summaries_steps > 0


def hparams(program: program_lib.Program, rate: float) -> dict[str, Any]:
    """The hyperparameters of a training, what was not set with its value."""
    params = program.params
    names = [
        row.name
        for row in table.TABLE.values()
        if row.group in ('Optimisation', 'Precision')
    ]
    names += ['model', 'variable_update', 'moving_average_decay', 'augment']
    names += ['mixup', 'cutmix', 'tf_random_seed', 'num_epochs', 'num_batches']
    values = {name: getattr(params, name) for name in names}
    values['learning_rate'] = rate
    values['global_batch_size'] = program.global_batch_size
    values['compute_dtype'] = program.precision.compute_dtype
    return {k: v for k, v in values.items() if v is not None}


class Summaries:
    """Writes nothing: what a run without summaries has."""

    def around(self, step: Callable, num_untimed: int) -> Callable:
        """The step that the loop calls."""
        del num_untimed
        return step

    def see(self, finished: loop.FinishedStep) -> None:
        """Takes in a step, after `steps_seen` has counted it."""


class _Written(Summaries):
    """Writes every so many steps.

    Scalars are what the loop has fetched anyway. Histograms are made on the
    devices, by a second step that gives them behind its metrics, and which
    is called at the steps of a summary only.
    """

    def __init__(self, training: Any, writer: summaries.Writer | None):
        self._training, self._writer = training, writer
        params = training.program.params
        self._every = params.save_summaries_steps
        self._verbosity = params.summary_verbosity
        if training.program.replicas.remote and self._verbosity > 1:
            self._verbosity = 1
            _log.warning(
                '--summary_verbosity=%d: with parameter servers there are '
                'scalars only',
                params.summary_verbosity,
            )
        self._tags = []
        self._images = {}

    def _is_due(self, number):
        return number % self._every == 0

    def around(self, step, num_untimed):
        """The step; with histograms, another one where a summary is due."""
        if self._verbosity < 2:
            return step
        training = self._training
        state = training.state
        observe, self._tags = summaries.make_observe(
            {weight.path: weight for weight in state.weights},
            {one.path: one for one in state.states},
            self._verbosity,
        )
        observed = training.make_step(observe)
        first = training.steps_seen
        called = 0

        def either(batch):
            nonlocal called
            called += 1
            due = self._is_due(first + called)
            if due and self._verbosity > 2 and self._writer is not None:
                self._keep_images(first + called, batch)
            # Once before the timing, which is when it is traced.
            return (observed if due or called == num_untimed else step)(batch)

        return either

    def _keep_images(self, number, batch):
        program = self._training.program
        images = program.replicas.first(batch[0])[: summaries.MAX_IMAGES]
        is_real = program.data.dataset is not None
        transpose = not is_real and program.data_format == 'NCHW'

        def pixels():
            values = tf.cast(images, tf.float32).numpy()
            if transpose:
                values = np.moveaxis(values, 1, 3)
            # Bytes, or -1..1 in any other type.
            if images.dtype != tf.uint8:
                values = (values + 1.0) * 127.5
            return np.clip(np.round(values), 0, 255).astype(np.uint8)

        self._images[number] = pixels

    def see(self, finished):
        """Hands what a step measured to the writer, where that is due."""
        number = self._training.steps_seen
        if self._writer is None or not self._is_due(number):
            return
        self._writer.scalars(number, self._scalars(number, finished))
        # Histograms follow the metrics.
        numbers = finished.metrics[metrics.NUM_COLUMNS :]
        size = len(self._tags) * summaries.HISTOGRAM_SIZE
        if self._tags and len(numbers) >= size:
            self._writer.histograms(number, self._tags, numbers[:size])
        pixels = self._images.pop(number, None)
        if pixels is not None:
            self._writer.images(number, 'inputs', pixels)
        self._writer.flush()

    def _scalars(self, number, finished):
        training, vector = self._training, finished.metrics
        program = training.program
        with tf.device('/cpu:0'):
            rate = float(training.schedule(tf.constant(number - 1, tf.int64)))
        found = {
            'learning_rate': rate,
            'epoch': number / program.steps_per_epoch,
            'images_per_sec': program.global_batch_size / finished.time_sec,
            'input_wait_sec': finished.input_wait_sec,
        }
        for tag, column in _TAGS.items():
            measured = float(vector[column])
            if column == metrics.LOSS or not math.isnan(measured):
                found[tag] = measured
        if program.precision.can_overflow:
            found['loss_scale'] = float(vector[metrics.LOSS_SCALE])
        return found


@contextlib.contextmanager
def opened(training: Any) -> Iterator[Summaries]:
    """Writes summaries while it lasts, if the parameters ask for them.

    All workers of a job take the same steps; the chief writes.
    """
    program = training.program
    params = program.params
    if not is_on(params):
        if params.summary_verbosity or params.save_summaries_steps:
            _log.warning(
                'no summaries: they need --summary_verbosity and '
                '--save_summaries_steps, here %d and %d',
                params.summary_verbosity,
                params.save_summaries_steps,
            )
        yield Summaries()
        return
    if not program.replicas.is_chief:
        yield _Written(training, None)
        return
    writer = summaries.Writer(params.train_dir)
    writer.start_session(hparams(program, training.learning_rate()))
    good = False
    try:
        yield _Written(training, writer)
        good = training.stopped is None
    finally:
        writer.end_session(good)
        writer.close()
