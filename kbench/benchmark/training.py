"""Training: its loop, its length, and what it tells."""

import contextlib
import logging
import math

from kbench import (
    checkpoints,
    errors,
    loop,
    metrics,
    reporting,
    runtime,
)
from kbench import params as params_lib
from kbench.benchmark import (
    beside,
    ending,
    exporting,
    plan,
    restoring,
    state,
    tracing,
)
from kbench.benchmark import data as data_lib
from kbench.benchmark import program as program_lib
from kbench.benchmark import result as result_lib
from kbench.benchmark import saver as saver_lib

_log = logging.getLogger('kbench')


def run(program: program_lib.Program) -> result_lib.Result:
    """Trains, times, saves.

    Raises:
        UserError: a checkpoint that does not fit, a loss that is not finite
            with stop_on_nan, a folder that cannot be written.
    """
    params = program.params
    training = state.Training(program)
    path = restoring.begin(training)
    if params.train_dir and program.replicas.is_chief:
        ending.clear(params.train_dir)
        params_lib.save_params(params, params.train_dir)
    program.journal.phase('variables')
    warmup, timed = plan.run_length(program, training.step())
    reporting.out(
        program_lib.header(program, 'training', training.learning_rate())
    )
    if timed == 0:
        _log.warning('all %g epochs are done already', params.num_epochs)
        ending.mark(program, training.step())
        return result_lib.Result(
            mode='training',
            model=program.spec.name,
            images_per_sec=0.0,
            learning_rate=training.learning_rate(),
            step=training.step(),
            checkpoint=path,
        )
    record = loop.Record(images_per_step=program.global_batch_size)
    watch = loop.Watch(
        dynamic=params.fp16_enable_auto_loss_scale,
        stop_on_nan=params.stop_on_nan or params.recover_on_nan > 0,
        warn=_log.warning,
    )
    batches = data_lib.Batches(program)
    program.journal.follow(record, watch, batches)
    saver = saver_lib.Saver(training)
    failure = None
    with (
        contextlib.closing(saver),
        _stopping(params),
        beside.opened(training) as extras,
    ):
        _train(training, record, watch, batches, saver, (warmup, timed), extras)
        try:
            path = saver.finish()
        except checkpoints.CheckpointError as error:
            failure = error
        _report(training, record, watch, batches, saver)
        if failure is None and training.stopped is None:
            exporting.of_training(training)
    program.replicas.finish()
    if failure is not None:
        raise failure
    _raise_if_stopped(training, path)
    ending.mark(program, training.step())
    return extras.evaluations.added_to(
        _result(training, record, watch, batches, saver, path)
    )


def _stopping(params) -> contextlib.AbstractContextManager:
    """Ctrl-C stops after the step where there is something to save."""
    if params.train_dir:
        return runtime.stopping_on_ctrl_c()
    return contextlib.nullcontext()


def _raise_if_stopped(training, path) -> None:
    reason = training.stopped
    if reason is None:
        return
    kind = errors.Preempted
    if reason == runtime.INTERRUPTED:
        kind = errors.Interrupted
    raise kind(
        f'{reason}: ended after step {training.step()}; '
        + (f'saved {path}' if path else 'nothing saved: no --train_dir')
    )


def _report(training, record, watch, batches, saver) -> None:
    program = training.program
    if record.metrics:
        reporting.out(reporting.total_lines(record.images_per_sec()))
        data_lib.report_input(program, record, batches)
        _report_trouble(record, watch, training.recoveries > 0)
        _tell_local_figure(program, record)
    if saver.times is not None and saver.times.write_sec:
        _log.info('%s', saver.times)


def _train(training, record, watch, batches, saver, length, extras) -> None:
    """Runs all steps, going back after a loss that is not finite."""
    warmup, total = length[0], sum(length)
    first = training.steps_seen
    done = 0
    if training.program.params.recover_on_nan:
        saver.save_first()
    while True:
        left = max(0, warmup - done)
        try:
            _run_steps(
                training,
                record,
                watch,
                batches,
                (left, total - done - left),
                saver,
                extras,
            )
            return
        except loop.NotFiniteError as error:
            if not training.program.params.recover_on_nan:
                raise
            done = training.steps_seen - first
            lost = restoring.recover(training, str(error), saver.flush)
            first += lost
            done -= lost


def _report_trouble(record, watch, recovered) -> None:
    if watch.skipped_steps:
        _log.warning(
            '%d steps overflowed and were skipped; the loss scale is %g',
            watch.skipped_steps,
            record.metrics[-1][metrics.LOSS_SCALE],
        )
    if watch.first_bad_step is not None and not recovered:
        _log.warning(
            'the loss was not finite from step %d on', watch.first_bad_step
        )


def _show(params, number, record, finished) -> None:
    """Prints the line of a step, where it has one."""
    if number != 1 and number % params.display_every:
        return
    accuracies = [
        float(finished.metrics[column])
        for column in (metrics.TOP_1, metrics.TOP_5)
        if params.print_training_accuracy
    ]
    loss = float(finished.metrics[metrics.LOSS])
    reporting.out(
        reporting.step_line(number, record.throughput(), loss, accuracies)
    )


def _run_steps(training, record, watch, batches, length, saver, extras) -> None:
    program, params = training.program, training.program.params
    warmup, timed = length
    # Made anew after a recovery: workers may keep copies of the weights.
    step = tracing.with_graph(program, training.make_step())
    step = extras.summaries.around(step, warmup)
    batches = batches.train(training.position())
    lag = program.lag
    progress = reporting.Progress()

    def see(finished):
        training.saw_step()
        program.journal.phase('first_step')
        watch.see(training.steps_seen, finished.metrics)
        extras.summaries.see(finished)
        stage.advance()

    def stop(vector):
        reason = runtime.stop_requested()
        if program.replicas.stop_wanted(reason is not None, vector):
            training.stopped = reason or 'another worker was asked to end'
        return training.stopped is not None

    for name, count, around in tracing.untimed(program, warmup):
        with around, progress.stage(name, total=count) as stage:
            for finished in loop.run_steps(
                step, batches, count, lag, stop=stop
            ):
                see(finished)
        if training.stopped is not None:
            return
    program.journal.phase('warm_up')
    saver.start()
    extras.evaluations.start(timed)
    before = len(record.metrics)

    def on_step(number, finished):
        see(finished)
        _show(params, before + number, record, finished)
        saver.after(number)
        return extras.evaluations.after(number, record)

    def is_due(number):
        return bool(saver.is_due(number) | extras.evaluations.is_due(number))

    if not before:
        reporting.out(reporting.table_head(params.print_training_accuracy))
    around = tracing.around_timed(training, warmup, timed)
    with around, progress.stage('training', total=timed) as stage:
        loop.run(
            loop.run_steps(step, batches, timed, lag, is_due, stop),
            record,
            on_step,
        )


def _tell_local_figure(program, record) -> None:
    replicas = program.replicas
    if replicas.is_chief:
        return
    share = len(replicas.devices) / replicas.num_replicas
    reporting.notice(
        f'worker {replicas.worker}: local images/sec: '
        f'{share * record.images_per_sec():.2f}'
    )


def _column(record, column):
    values = (float(vector[column]) for vector in record.metrics)
    return tuple(value for value in values if not math.isnan(value))


def _result(training, record, watch, batches, saver, path) -> result_lib.Result:
    last = record.metrics[-1]
    return result_lib.Result(
        mode='training',
        model=training.program.spec.name,
        images_per_sec=record.images_per_sec(),
        losses=tuple(float(v[metrics.LOSS]) for v in record.metrics),
        top_1=_column(record, metrics.TOP_1),
        top_5=_column(record, metrics.TOP_5),
        learning_rate=training.learning_rate(),
        gradient_norms=_column(record, metrics.GRADIENT_NORM),
        step_times_sec=tuple(record.step_times_sec),
        input_wait_sec=tuple(record.input_wait_sec),
        skipped_steps=training.skipped_steps(),
        skipped_images=batches.skipped_images,
        loss_scale=float(last[metrics.LOSS_SCALE]),
        step=training.step(),
        first_bad_step=watch.first_bad_step,
        checkpoint=path,
        saves=saver.times,
        recoveries=training.recoveries,
    )
