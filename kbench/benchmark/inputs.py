"""A benchmark of the input pipeline alone, without a model."""

from kbench import input_benchmark, reporting
from kbench.benchmark import data as data_lib
from kbench.benchmark import program as program_lib
from kbench.benchmark import result as result_lib


def run(program: program_lib.Program) -> result_lib.Result:
    """Measures images/s of the pipeline and the share of its stages."""
    progress = reporting.Progress()
    with progress.stage('measuring the input', total=None) as stage:
        speed = input_benchmark.measure(
            program.data.dataset,
            config=data_lib.input_config(program),
            image_size=program.image_size,
            batch_size=program.per_replica_batch_size,
            seed=program.params.tf_random_seed,
            progress=lambda name: stage.advance(),
        )
    for name, share in speed.shares.items():
        reporting.out(f'{name}\t{100 * share:.1f} %')
    reporting.out(f'first batch\t{speed.first_batch_sec:.2f} s')
    reporting.out(reporting.total_lines(speed.images_per_sec))
    return result_lib.Result(
        mode='input',
        model=program.spec.name,
        images_per_sec=speed.images_per_sec,
    )
