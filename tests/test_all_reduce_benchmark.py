"""All-reduce measured alone."""

import json
import subprocess
import sys

import numpy as np
import pytest

import kbench
from kbench import all_reduce_benchmark, collectives, strategies

_SETTINGS = {
    'benchmark_all_reduce': True,
    'device': 'cpu',
    'num_batches': 2,
    'num_warmup_batches': 1,
}


def test_what_is_measured_adds(devices):
    replicas = strategies.create('replicated', devices=devices(3))
    adder, options, becomes = strategies.create_adder(replicas, 'pscpu', 0)
    assert becomes == 'ReductionToOneDevice on the CPU' and options is None
    tensors = all_reduce_benchmark._create_tensors(adder, [[2, 2], [5]])
    for rounds in (1, 3):
        run = all_reduce_benchmark.make_round(adder, options, rounds)
        for per_replica in run(tensors):
            for value in adder.strategy.experimental_local_results(per_replica):
                # The sum of 1, 2 and 3; a later round adds means of it.
                np.testing.assert_allclose(value, 6.0, rtol=1e-6)


def test_every_algorithm_is_measured_or_refused(capsys):
    found = kbench.run(
        **_SETTINGS,
        variable_update='replicated',
        num_gpus=2,
        all_reduce_sizes='4k,100',
    )
    rows = {}
    for row in found.all_reduce:
        rows.setdefault(row.spec, []).append(row)
    assert list(rows) == list(collectives.ALGORITHMS)
    for spec, measured in rows.items():
        if spec.startswith('nccl') or spec == 'psgpu':
            assert [row.refused[:10] for row in measured] == ['needs GPUs']
            continue
        assert [row.num_bytes for row in measured] == [4096, 100]
        assert all(row.bytes_per_sec > 0 for row in measured)
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith('nccl\trefused: needs GPUs') for line in lines)
    assert any(line.startswith('xring\t1\t0.004\t') for line in lines)


def test_the_gradients_of_a_model(tmp_path):
    found = kbench.run(
        **_SETTINGS,
        model='lenet',
        variable_update='replicated',
        all_reduce_spec='pscpu:32k:xring',
        num_gpus=2,
        result_storage=str(tmp_path / 'run.json'),
    )
    record = json.loads((tmp_path / 'run.json').read_text())
    assert record['mode'] == found.mode == 'all-reduce'
    # Two devices add: the runtime has as many threads as it likes.
    assert record['threads']['intra_op'] == 0
    (row,) = found.all_reduce
    assert (row.num_tensors, row.num_bytes) == (8, 4 * 2_172_840)
    assert row.becomes == (
        'ReductionToOneDevice on the CPU, HierarchicalCopyAllReduce'
    )


@pytest.mark.parametrize(
    ('changes', 'wanted'),
    [
        ({'variable_update': 'independent'}, 'legal are replicated'),
        ({'all_reduce_sizes': '4x'}, 'takes bytes'),
        ({'forward_only': True}, 'exclude each other'),
        (
            {'benchmark_all_reduce': False, 'all_reduce_sizes': '1k'},
            'needs --benchmark_all_reduce',
        ),
        ({'num_gpus': 1}, 'needs several devices'),
    ],
)
def test_refusals(changes, wanted):
    settings = _SETTINGS | {'variable_update': 'replicated', 'num_gpus': 2}
    with pytest.raises(kbench.UserError, match=wanted):
        kbench.run(**(settings | changes))


@pytest.mark.slow
def test_between_processes():
    flags = _SETTINGS | {
        'variable_update': 'distributed_all_reduce',
        'all_reduce_sizes': '4k',
    }
    done = subprocess.run(
        [
            *(sys.executable, '-m', 'kbench', 'launch', '--workers=2', '--'),
            *(f'--{name}={value}' for name, value in flags.items()),
        ],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert '[worker 0] xring\t1\t0.004\t' in done.stdout
    assert 'collective RING' in done.stdout
    assert '[worker 0] pscpu\trefused: does not join processes' in done.stdout
    assert '[worker 1]' not in done.stdout
