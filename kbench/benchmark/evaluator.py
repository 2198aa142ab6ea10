"""Counts what a model gets right, on the held-out images of a run."""

import itertools
import logging
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from kbench import errors, evaluate, reporting, runtime, shards, strategies
from kbench.benchmark import data as data_lib
from kbench.benchmark import program as program_lib

_log = logging.getLogger('kbench')


def make_infer(
    program: program_lib.Program,
    weights: Sequence[Any] | None = None,
    states: Sequence[Any] | None = None,
) -> evaluate.Infer:
    """Makes inference of one replica.

    Args:
        program: the objects of the run.
        weights: in place of the trainable variables or pieces of the model.
        states: in place of its others.
    """
    model = program.model
    return evaluate.Infer(
        program_lib.make_forward(program, training=False),
        data_lib.make_prepare(program),
        weights or shards.expand(model.trainable_weights),
        states or shards.expand(model.non_trainable_weights),
    )


class Evaluator:
    """Evaluates the present values of some variables, again and again.

    All processes that train together evaluate together; with parameter
    servers the coordinator does it alone.

    Args:
        program: the objects of the run.
        split: which images.
        weights, states: as in `make_infer`.

    Attributes:
        skipped_images: of the last evaluation, with skip_bad_images.
    """

    def __init__(
        self,
        program: program_lib.Program,
        split: str,
        weights: Sequence[Any] | None = None,
        states: Sequence[Any] | None = None,
    ):
        self._program, self._split = program, split
        self._replicas = program.replicas
        if self._replicas.remote:
            self._replicas = strategies.create_local()
        infer = make_infer(program, weights, states)
        self._step = evaluate.make_eval_step(self._replicas, infer)
        dataset = program.data.dataset
        self._total = dataset.num_examples(split)
        self.skipped_images = 0

    def run(self) -> evaluate.Evaluation:
        """Evaluates every image once, or `num_eval_batches` batches.

        Raises:
            UserError: not all images came.
            Preempted: SIGTERM came.
        """
        program = self._program
        batches = data_lib.Batches(program, self._split, self._replicas)
        program.journal.batches = program.journal.batches or batches
        limit = program.params.num_eval_batches
        wanted = self._total
        if limit is not None:
            replicas = self._replicas
            size = program.per_replica_batch_size * replicas.total_replicas
            wanted = min(wanted, limit * size)
        with reporting.Progress().stage('evaluating', total=wanted) as stage:
            done = 0

            def on_step(num_images):
                nonlocal done
                stage.advance(num_images - done)
                done = num_images
                if program.params.eval and runtime.stop_requested():
                    raise errors.Preempted(
                        f'{runtime.stop_requested()}: the evaluation ended '
                        f'after {done} of {wanted} images'
                    )

            stream = itertools.islice(batches.eval(), limit)
            with tf.device('/cpu:0' if self._replicas.remote else None):
                found = evaluate.run(self._step, stream, on_step)
        self._check(found, batches, wanted)
        return found

    def _check(self, found, batches, wanted):
        skipped = self.skipped_images = batches.skipped_images
        if skipped:
            _log.warning(
                '%d images could not be read and were skipped', skipped
            )
        # What a limit cuts off is not counted to the image where some are
        # skipped or several processes pad.
        exact = self._program.params.num_eval_batches is None
        if exact and found.num_images + skipped != wanted:
            raise errors.UserError(
                f'{found.num_images} images were evaluated where {wanted} '
                f'were announced by {self._program.data.name}'
            )


def report(found: evaluate.Evaluation) -> None:
    """Prints what an evaluation found."""
    reporting.out(
        reporting.evaluation_line(
            found.top_1, found.top_5, found.num_images, found.loss
        )
    )
