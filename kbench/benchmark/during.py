"""Evaluation in the middle of a training, between two steps."""

import dataclasses
import logging
import time
from typing import Any

from kbench import averages, errors, loop, schedules, summaries
from kbench.benchmark import eval_store, evaluator
from kbench.benchmark import result as result_lib

_log = logging.getLogger('kbench')


class Evaluations:
    """Evaluates every so many steps, and after the last one.

    The training stands still meanwhile: no step is under way, no variable
    changes, and the time is not counted.

    Args:
        training: a `training.Training`.

    Attributes:
        reached: whether stop_at_top_1_accuracy was.
        found: step and result of each evaluation.
    """

    def __init__(self, training: Any):
        program = training.program
        params = program.params
        self._training = training
        self._start = self._last = 0
        self._every = params.eval_during_training_every_n_steps
        epochs = params.eval_during_training_every_n_epochs
        if epochs is not None:
            self._every = max(
                1, schedules.to_steps(epochs, program.steps_per_epoch)
            )
        self._evaluator = self._writer = None
        self.reached = False
        self.found = []
        if self._every is None:
            return
        if program.data.dataset is None:
            raise errors.UserError(
                'evaluation during training needs real data: set --data_dir, '
                'or --data_name=digits'
            )
        self._evaluator = self._create()
        directory = eval_store.folder(params)
        if directory is not None and program.replicas.is_chief:
            self._writer = summaries.Writer(directory)

    def _create(self):
        program, averaged = self._training.program, self._training.averages
        if averaged is None:
            return evaluator.Evaluator(program, 'validation')

        def average_of(weights):
            return [
                averaged.variables[averages.average_name(one.path)]
                for one in weights
            ]

        # Of pieces, where weights are divided.
        state = self._training.state
        return evaluator.Evaluator(
            program,
            'validation',
            average_of(state.weights),
            average_of(state.states),
        )

    def start(self, num_steps: int) -> None:
        """Begins to count so many timed steps from 1."""
        self._start, self._last = self._training.steps_seen, num_steps

    def is_due(self, number: int) -> bool:
        """Whether an evaluation follows the timed step of this number."""
        if self._evaluator is None:
            return False
        total = self._start + number
        return total % self._every == 0 or number == self._last

    def after(self, number: int, record: loop.Record) -> bool:
        """Evaluates if that is due after the step of this number.

        Returns:
            Whether the training is to end here.
        """
        if not self.is_due(number):
            return False
        start = time.perf_counter()
        found = self._evaluator.run()
        evaluator.report(found)
        step = self._training.step()
        self.found.append((step, found))
        journal = self._training.program.journal
        journal.numbers.setdefault('evaluations', []).append(
            {'step': step, **dataclasses.asdict(found)}
        )
        if self._writer is not None:
            self._writer.scalars(step, eval_store.scalars(found))
            self._writer.flush()
        wanted = self._training.program.params.stop_at_top_1_accuracy
        if wanted is not None and found.top_1 >= wanted:
            self.reached = True
            _log.info(
                '--stop_at_top_1_accuracy=%g is reached at step %d',
                wanted,
                step,
            )
        # Whoever counts the time of the run has counted this too.
        record.elapsed_sec -= time.perf_counter() - start
        return self.reached

    def added_to(self, result: result_lib.Result) -> result_lib.Result:
        """A result of the training with what was found."""
        if not self.found:
            return result
        return dataclasses.replace(
            result,
            evaluation=self.found[-1][1],
            evaluations=tuple(self.found),
        )

    def close(self) -> None:
        """Waits until all is written."""
        if self._writer is not None:
            self._writer.close()
