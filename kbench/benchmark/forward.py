"""Benchmarks of inference."""

import tensorflow as tf

from kbench import errors, evaluate, loop, losses, metrics, reporting, runtime
from kbench.benchmark import data as data_lib
from kbench.benchmark import evaluator, tracing
from kbench.benchmark import program as program_lib
from kbench.benchmark import result as result_lib


def _make_step(program: program_lib.Program):
    params = program.params
    loss_fn = losses.make_classification_loss(
        label_smoothing=params.label_smoothing,
        aux_loss_weight=program.spec.aux_loss_weight,
    )

    def measure(outputs, labels):
        values = [loss_fn(outputs[:1], labels)]
        if params.print_training_accuracy:
            values += metrics.accuracies(outputs, labels)
        return tf.stack(values)

    step = evaluate.make_forward_step(
        program.replicas, evaluator.make_infer(program), measure
    )
    return tracing.with_graph(program, step)


def run(program: program_lib.Program) -> result_lib.Result:
    """Times inference on training batches.

    Raises:
        Preempted: SIGTERM came.
    """
    params = program.params
    step = _make_step(program)
    reporting.out(program_lib.header(program, 'forward-only', None))
    record = loop.Record(program.global_batch_size)
    program.journal.timed = record
    source = data_lib.Batches(program)
    program.journal.batches = source
    batches = source.train(0)
    lag = program.lag
    progress = reporting.Progress()

    def stop(_):
        # Peers infer each for itself, so each ends by itself.
        return runtime.stop_requested() is not None

    warmup = program_lib.warmup_steps(program)
    for name, steps, around in tracing.untimed(program, warmup):
        with around, progress.stage(name, total=steps) as stage:
            for _ in loop.run_steps(step, batches, steps, lag, stop=stop):
                program.journal.phase('first_step')
                stage.advance()
    program.journal.phase('warm_up')

    def on_step(number, finished):
        stage.advance()
        if number == 1 or number % params.display_every == 0:
            reporting.out(
                reporting.step_line(
                    number, record.throughput(), *finished.metrics
                )
            )

    reporting.out(reporting.table_head(params.print_training_accuracy))
    count = program_lib.planned_steps(program)
    with progress.stage('inferring', total=count) as stage:
        loop.run(
            loop.run_steps(step, batches, count, lag, stop=stop),
            record,
            on_step,
        )
    if runtime.stop_requested() is not None:
        raise errors.Preempted(
            f'{runtime.stop_requested()}: ended after '
            f'{len(record.metrics)} of {count} steps'
        )
    reporting.out(reporting.total_lines(record.images_per_sec()))
    data_lib.report_input(program, record, source)
    return _result(record, program)


def _result(record, program) -> result_lib.Result:
    return result_lib.Result(
        mode='forward-only',
        model=program.spec.name,
        images_per_sec=record.images_per_sec(),
        losses=tuple(float(v[metrics.LOSS]) for v in record.metrics),
        step_times_sec=tuple(record.step_times_sec),
        input_wait_sec=tuple(record.input_wait_sec),
    )
