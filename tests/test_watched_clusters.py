"""Records, summaries, evaluation and export of jobs of several processes."""

import json
import os
import subprocess
import sys

import event_files
import pytest
import tensorflow as tf

_RUN = (
    *('--model=lenet', '--data_name=digits', '--device=cpu'),
    *('--batch_size=8', '--num_batches=6', '--num_warmup_batches=2'),
    *('--learning_rate=0.01', '--moving_average_decay=0.9'),
    *('--summary_verbosity=2', '--save_summaries_steps=3'),
    '--eval_during_training_every_n_steps=5',
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('roles', 'flags', 'plugins'),
    [
        (
            ['--workers=2'],
            ['--variable_update=distributed_all_reduce'],
            {'hparams', 'scalars', 'histograms'},
        ),
        (
            ['--workers=2', '--ps=2'],
            ['--variable_update=parameter_server', '--ps_shard_bytes=20000'],
            {'hparams', 'scalars'},
        ),
    ],
)
def test_the_chief_writes(roles, flags, plugins, tmp_path):
    run, export = tmp_path / 'run', tmp_path / 'export'
    done = subprocess.run(
        [
            *[sys.executable, '-m', 'kbench', 'launch', *roles, '--'],
            *[*_RUN, *flags, f'--train_dir={run}', f'--export={export}'],
            f'--result_storage={tmp_path}/runs.jsonl',
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = (tmp_path / 'runs.jsonl').read_text().splitlines()
    record = json.loads(line)
    assert record['status'] == 'done' and record['num_workers'] == 2
    assert record['steps_timed'] == 6 and record['images_per_step'] == 16
    found = [(one['step'], one['num_images']) for one in record['evaluations']]
    assert found == [(5, 355), (8, 355)]
    events = event_files.read(run)
    assert {plugin for plugin, _ in events.values()} == plugins
    assert {step for _, step in events} == {0, 3, 6}
    assert ('evaluation/top_1', 8) in event_files.read(run / 'eval')
    assert os.path.exists(export / 'model.keras')
    served = tf.saved_model.load(str(export / 'saved_model'))
    picture = tf.io.encode_png(tf.zeros([8, 8, 3], tf.uint8))
    answer = served.serve(tf.stack([picture]))['probabilities']
    assert answer.shape == (1, 10)
