"""Evaluation of checkpoints: of one, or of each that a training writes."""

import dataclasses
import logging
import time
from typing import Any

from kbench import checkpoints, errors, evaluate, reporting, runtime
from kbench.benchmark import (
    ending,
    eval_store,
    evaluator,
    exporting,
    restoring,
)
from kbench.benchmark import program as program_lib
from kbench.benchmark import result as result_lib

_log = logging.getLogger('kbench')

# Checkpoints in a row that may go while they are read, of one evaluation.
_MAX_VANISHED = 10


class _Evaluation:
    """Evaluates checkpoints with one traced step."""

    def __init__(self, program: program_lib.Program):
        self._program = program
        params = program.params
        self._evaluator = evaluator.Evaluator(program, _split(params))
        self._store = None
        if eval_store.folder(params) is not None:
            self._store = eval_store.Store(params)
        self.done: list[tuple[int, evaluate.Evaluation]] = []
        self.path: str | None = None

    def has(self, path: str) -> bool:
        """Whether a checkpoint was evaluated, by an earlier process too."""
        return self._store is not None and self._store.has(path)

    def best(self) -> dict[str, Any] | None:
        """What is known of the best checkpoint."""
        return self._store and self._store.best()

    def run(self, path: str | None = None) -> None:
        """Evaluates one checkpoint, the newest if none is given.

        Raises:
            CheckpointError: it cannot be read, or does not fit.
        """
        program = self._program
        written = eval_store.modified_at(path) if path else None
        self.path, step = restoring.for_evaluation(program, path)
        written = written or eval_store.modified_at(self.path)
        averaged = program.params.moving_average_decay is not None
        which = 'moving averages' if averaged else 'weights'
        _log.info('evaluating the %s of %s', which, self.path)
        found = self._evaluator.run()
        evaluator.report(found)
        reporting.out(reporting.total_lines(found.images_per_sec))
        self.done.append((step, found))
        program.journal.numbers.setdefault('evaluations', []).append(
            {'step': step, **dataclasses.asdict(found)}
        )
        if self._store is not None:
            self._store.add(self.path, step, written, found)

    def result(self) -> result_lib.Result:
        """What was found; of several, the newest; nothing, if all was done."""
        if not self.done:
            return result_lib.Result(
                mode='evaluation',
                model=self._program.spec.name,
                images_per_sec=0.0,
            )
        step, found = max(self.done, key=lambda one: one[0])
        return result_lib.Result(
            mode='evaluation',
            model=self._program.spec.name,
            images_per_sec=found.images_per_sec,
            skipped_images=self._evaluator.skipped_images,
            checkpoint=self.path,
            step=step,
            evaluation=found,
            evaluations=tuple(self.done),
        )

    def close(self) -> None:
        """Waits until all is written."""
        if self._store is not None:
            self._store.close()


def _split(params: Any) -> str:
    return 'validation' if params.data_subset == 'train' else params.data_subset


def run(program: program_lib.Program) -> result_lib.Result:
    """Evaluates, once or until the training has ended.

    Raises:
        UserError: no checkpoint, or one that does not fit; no real data.
    """
    params = program.params
    if program.data.dataset is None:
        raise errors.UserError(
            '--eval needs real data: set --data_dir, or --data_name=digits'
        )
    reporting.out(program_lib.header(program, 'evaluation', None))
    evaluation = _Evaluation(program)
    try:
        if params.eval_interval_secs:
            _follow(program, evaluation)
        else:
            _run_newest(evaluation)
        _export(program, evaluation)
    finally:
        evaluation.close()
    return evaluation.result()


def _export(program, evaluation) -> None:
    """Exports what was evaluated; of several checkpoints, the best."""
    if program.params.export is None:
        return
    if not program.params.eval_interval_secs:
        exporting.of_model(program, evaluation.done[-1][0])
        return
    best = evaluation.best()
    path, step = restoring.for_evaluation(
        program, best['copy'] or best['checkpoint']
    )
    _log.info('exporting the best checkpoint, %s', path)
    exporting.of_model(program, step)


def _run_newest(evaluation) -> None:
    """Evaluates the newest; another, if that goes while it is read."""
    for _ in range(_MAX_VANISHED):
        try:
            evaluation.run()
            return
        except checkpoints.DamagedError as error:
            if eval_store.modified_at(error.path) is not None:
                raise
    raise errors.UserError(
        'checkpoints go faster than they can be read: raise '
        '--max_ckpts_to_keep of the training'
    )


class _Seen:
    """Checkpoints that could not be read, which are not tried again."""

    def __init__(self):
        self._paths = {}

    def add(self, path: str, written: float | None) -> None:
        self._paths[path] = written

    def has(self, path: str) -> bool:
        return self._paths.get(path, 0.0) == eval_store.modified_at(path)


def _newest_new(directory, evaluation, unreadable) -> str | None:
    """The newest checkpoint that is to be evaluated yet."""
    try:
        steps = checkpoints.all_steps(directory)
    except FileNotFoundError:
        return None
    for step in reversed(steps):
        path = checkpoints.path_of(directory, step)
        if not evaluation.has(path) and not unreadable.has(path):
            return path
    return None


def _try(evaluation, path, unreadable) -> bool:
    """Evaluates a checkpoint; says whether it could be read."""
    written = eval_store.modified_at(path)
    try:
        evaluation.run(path)
    except checkpoints.CheckpointError as error:
        if eval_store.modified_at(path) is None:
            _log.info('%s is gone: the training keeps newer ones', path)
            return False
        if not isinstance(error, checkpoints.DamagedError):
            raise
        _log.warning('%s; it is passed over', error)
        unreadable.add(path, written)
        return False
    return True


def _wait(seconds: float) -> None:
    """Waits, and ends the run where that is asked for meanwhile."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        reason = runtime.stop_requested()
        if reason is not None:
            raise errors.Preempted(f'{reason}: the evaluator ended')
        time.sleep(min(0.2, left))


def _follow(program, evaluation) -> None:
    """Evaluates each checkpoint of a training once, until that has ended."""
    params = program.params
    directory, unreadable = params.train_dir, _Seen()
    last, told = time.monotonic(), False
    while True:
        # Asked before the folder is read: a checkpoint comes before the end.
        ended = ending.has_ended(directory)
        path = _newest_new(directory, evaluation, unreadable)
        if path is not None:
            if _try(evaluation, path, unreadable):
                last, told = time.monotonic(), False
            continue
        if ended:
            _log.info('the training of %s has ended', directory)
            break
        waited = time.monotonic() - last
        if params.eval_timeout_secs and waited > params.eval_timeout_secs:
            _log.warning(
                'no new checkpoint in %s for %d seconds: ending',
                directory,
                params.eval_timeout_secs,
            )
            break
        if not told:
            told = True
            _log.info('waiting for a new checkpoint in %s', directory)
        _wait(params.eval_interval_secs)
    best = evaluation.best()
    if not evaluation.done and best is None:
        raise errors.UserError(
            f'--train_dir={directory} holds no checkpoint to evaluate'
        )
    _log.info(
        'the best checkpoint is %s, top-1 accuracy %.4f',
        best['checkpoint'],
        best['top_1'],
    )
