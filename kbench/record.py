"""The record of a run: everything that says what was measured, and on what."""

import contextlib
import dataclasses
import datetime
import logging
import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from kbench import errors, machine, results, serve, throughput
from kbench import journal as journal_lib
from kbench import params as params_lib

# Rises when a field changes its meaning; docs/results.md has the fields.
SCHEMA = 1

_log = logging.getLogger('kbench')

# Columns of a vector of metrics; `metrics` has their order, and TensorFlow.
_LOSS, _TOP_1, _TOP_5 = range(3)


def outcome(error: BaseException | None) -> tuple[str, str | None]:
    """Status and reason of a run that ended with this exception.

    Returns:
        `done`, `preempted`, `refused` (parameters), `failed` (what the user
        can mend), `interrupted` (Ctrl-C) or `crashed`; and one line.
    """
    if error is None:
        return 'done', None
    text = ' '.join(str(error).split())
    for kind, status in (
        (errors.Interrupted, 'interrupted'),
        (errors.Preempted, 'preempted'),
        (params_lib.ParamsError, 'refused'),
        (errors.UserError, 'failed'),
        (KeyboardInterrupt, 'interrupted'),
    ):
        if isinstance(error, kind):
            return status, text or None
    return 'crashed', f'{type(error).__name__}: {text}'[:1000]


def _column(vectors: Sequence[Any], column: int) -> list[float]:
    """One metric of all steps; empty where it was never measured."""
    values = [float(v[column]) for v in vectors if column < len(v)]
    return [] if all(map(math.isnan, values)) else values


def _timed(timed: Any) -> dict[str, Any]:
    """What the timed steps showed; empty values before the first."""
    times = list(timed.step_times_sec) if timed is not None else []
    vectors = timed.metrics if timed is not None else []
    found = {
        'steps_timed': len(times),
        'step_times_sec': times,
        'losses': [float(vector[_LOSS]) for vector in vectors],
        'top_1': _column(vectors, _TOP_1),
        'top_5': _column(vectors, _TOP_5),
        'input_wait_sec': list(timed.input_wait_sec) if timed else [],
    }
    if not times:
        return found
    speed = throughput.measure(times, timed.images_per_step)
    return found | {
        'images_per_sec': timed.images_per_sec()
        if timed.elapsed_sec > 0
        else None,
        'images_per_sec_mean': speed.mean,
        'images_per_sec_standard_error': speed.standard_error,
        'images_per_sec_jitter': speed.jitter,
        'images_per_step': timed.images_per_step,
        'step_time_sec': throughput.summarize(times),
        'input_wait_share': sum(timed.input_wait_sec) / sum(times),
    }


def _evaluation(result: Any) -> dict[str, Any] | None:
    evaluation = getattr(result, 'evaluation', None)
    return None if evaluation is None else dataclasses.asdict(evaluation)


def make(
    params: params_lib.Params,
    journal: journal_lib.Journal,
    status: str,
    reason: str | None,
) -> dict[str, Any]:
    """Makes the record of a run.

    Args:
        params: of the run.
        journal: what is known of it.
        status, reason: from `outcome`.
    """
    result, watch = journal.result, journal.watch
    values = dataclasses.asdict(params)
    values['result_storage'] = results.without_password(params.result_storage)
    started = datetime.datetime.fromtimestamp(journal.started, datetime.UTC)
    ended = datetime.datetime.now(datetime.UTC)
    record = {
        'schema': SCHEMA,
        'status': status,
        'reason': reason,
        'started': started.isoformat(timespec='milliseconds'),
        'ended': ended.isoformat(timespec='milliseconds'),
        'mode': params_lib.mode(params),
        'images_per_sec': getattr(result, 'images_per_sec', None),
        'parameters': values,
        'command': [results.without_password(one) for one in sys.argv],
        'versions': machine.versions(),
        'hardware': machine.hardware(),
        'threads': machine.threads(),
        'environment': machine.variables(),
        'host': machine.host(),
        'commit': machine.commit(),
        'start_up_sec': dict(journal.phases_sec),
        'skipped_steps': watch.skipped_steps if watch else 0,
        'first_bad_step': watch.first_bad_step if watch else None,
        'skipped_images': getattr(journal.batches, 'skipped_images', 0),
        'evaluation': _evaluation(result),
        'checkpoint': getattr(result, 'checkpoint', None),
        'step': getattr(result, 'step', None),
    }
    return record | journal.numbers | _timed(journal.timed)


class _Keeper:
    """Writes the record of a run once, whatever ends it first."""

    def __init__(self, store, params, journal):
        self._store = store
        self._params, self._journal = params, journal
        self._written = False

    def write(self, status, reason):
        if self._written:
            return
        self._written = True
        self._store.write(make(self._params, self._journal, status, reason))

    def write_failure(self, status, reason):
        """As `write`; that it fails must not hide why the run failed."""
        try:
            self.write(status, reason)
        except errors.UserError as error:
            _log.warning('%s', error)


@contextlib.contextmanager
def kept(
    params: params_lib.Params, journal: journal_lib.Journal
) -> Iterator[None]:
    """Keeps the record of what runs in it, as `result_storage` says.

    Raises:
        ResultError: the place cannot be written; before anything else is
            done, or at the end of a run that went well.
    """
    if params.result_storage is None:
        yield
        return
    keeper = _Keeper(results.create(params.result_storage), params, journal)

    def last_words(reason):
        keeper.write_failure('failed', reason)

    # Where another thread ends the process, nothing is raised here.
    serve.before_leaving.append(last_words)
    try:
        yield
    except BaseException as error:
        keeper.write_failure(*outcome(error))
        raise
    finally:
        serve.before_leaving.remove(last_words)
    keeper.write(*outcome(None))
