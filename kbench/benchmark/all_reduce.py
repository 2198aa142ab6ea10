"""A benchmark of all_reduce_spec alone, without training."""

from collections.abc import Sequence

from kbench import (
    all_reduce_benchmark,
    collectives,
    errors,
    reporting,
    strategies,
)
from kbench.all_reduce_benchmark import AllReduceSpeed
from kbench.benchmark import program as program_lib
from kbench.benchmark import result as result_lib


def run(program: program_lib.Program) -> result_lib.Result:
    """Measures every algorithm, or the one that is asked for.

    Raises:
        UserError: a single replica, which has nobody to add to.
    """
    params, replicas = program.params, program.replicas
    if replicas.num_replicas == 1:
        raise errors.UserError(
            '--benchmark_all_reduce needs several devices: --num_gpus=2, or '
            'several workers'
        )
    specs = [params.all_reduce_spec]
    if params.all_reduce_spec is None:
        specs = list(collectives.ALGORITHMS)
    reporting.out(program_lib.header(program, 'all-reduce', None))
    reporting.out('spec\ttensors\tMB\tms\tGB/s\tbecomes')
    found = []
    progress = reporting.Progress()
    with progress.stage('adding tensors', total=len(specs)) as stage:
        for spec in specs:
            for row in _measure(program, spec):
                found.append(row)
                reporting.out(_line(row))
            stage.advance()
    replicas.finish()
    return result_lib.Result(
        mode='all-reduce',
        model=program.spec.name,
        images_per_sec=0.0,
        all_reduce=tuple(found),
    )


def _sets(program) -> list[Sequence[Sequence[int]]]:
    """Shapes that are added together: each size, or the model's gradients."""
    sizes = program.params.all_reduce_sizes
    if sizes:
        return [
            [[max(1, collectives.parse_size(text) // 4)]]
            for text in sizes.split(',')
        ]
    weights = program.model.trainable_weights
    return [[weight.shape.as_list() for weight in weights]]


def _measure(program, spec):
    params = program.params
    try:
        adder, options, becomes = strategies.create_adder(
            program.replicas, spec, params.bytes_per_pack
        )
    except collectives.SpecError as error:
        why = str(error).removeprefix(f'--all_reduce_spec={spec!r} ')
        yield AllReduceSpeed(spec, refused=why)
        return
    for shapes in _sets(program):
        time_sec = all_reduce_benchmark.measure(
            adder,
            options,
            shapes,
            num_steps=params.num_batches,
            num_warmup_steps=program_lib.warmup_steps(program),
        )
        yield AllReduceSpeed(
            spec,
            becomes=becomes,
            num_tensors=len(shapes),
            num_bytes=sum(4 * _elements(shape) for shape in shapes),
            time_sec=time_sec,
        )


def _elements(shape):
    count = 1
    for length in shape:
        count *= length
    return count


def _line(row: AllReduceSpeed) -> str:
    if row.refused:
        return f'{row.spec}\trefused: {row.refused}'
    return (
        f'{row.spec}\t{row.num_tensors}\t{row.num_bytes / 1e6:.3f}\t'
        f'{1e3 * row.time_sec:.3f}\t{row.bytes_per_sec / 1e9:.3f}\t'
        f'{row.becomes}'
    )
