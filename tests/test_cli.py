"""The command line as a user meets it: help, refusals, failures."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import input_helpers
import pytest

ROOT = pathlib.Path(__file__).parents[1]


def kbench(*arguments, start=('-m', 'kbench')):
    """Runs the command line in a process of its own."""
    # The level that the tests set would ask for TensorFlow's chatter.
    variables = dict(os.environ)
    variables.pop('TF_CPP_MIN_LOG_LEVEL', None)
    return subprocess.run(
        [sys.executable, *start, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        cwd=ROOT,
        env=variables,
    )


def _errors(done):
    """The error lines; anything else on standard error is a notice."""
    # libjpeg itself writes the first of these.
    lines = [
        line
        for line in done.stderr.splitlines()
        if line != 'Input file read error'
    ]
    assert not any('Traceback' in line for line in lines), done.stderr
    assert all(line.startswith('kbench: ') for line in lines), done.stderr
    return [line for line in lines if line.startswith('kbench: error: ')]


def test_help_names_every_parameter():
    done = kbench('--help')
    assert done.returncode == 0 and done.stderr == ''
    for text in ('--variable_update', '--init_learning_rate', 'prepare'):
        assert text in done.stdout


REFUSED = [
    (['--modle=vgg16'], ['--modle', '--model']),
    (['--num_gpus=two'], ['--num_gpus', "'two'", 'whole number']),
    (['--num_gpus=0'], ['--num_gpus', '0', '1 or more']),
    (['--use_fp16=maybe'], ['--use_fp16', "'maybe'", 'true or false']),
    (['--optimizer=sdg'], ['--optimizer', "'sdg'", "'sgd'"]),
    (['--model=vgg61'], ['vgg61', 'vgg16']),
    (['--learning_rate=nan'], ['--learning_rate', 'nan', '0 or more']),
    (['--momentum=1.5'], ['--momentum', '1.5', 'from 0 to 1']),
    (['--device=cpu', '--data_format=NCHW'], ['NCHW', 'cpu', 'NHWC']),
    (['--num_batches=5', '--num_epochs=1'], ['--num_batches', '--num_epochs']),
    (['--eval'], ['--eval', '--train_dir']),
    (['--eval', '--forward_only', '--train_dir=x'], ['--forward_only']),
    (
        ['--eval', '--benchmark_input', '--train_dir=x', '--data_name=digits'],
        ['--benchmark_input and --eval exclude each other'],
    ),
    (
        ['--benchmark_input', '--data_name=digits', '--export=x'],
        ['--export=x', '--benchmark_input'],
    ),
    (
        [
            *('--benchmark_all_reduce', '--variable_update=replicated'),
            '--trace_file=x.json',
        ],
        ['--trace_file', '--benchmark_all_reduce'],
    ),
    (['--use_fp16', '--compute_dtype=bfloat16'], ['--use_fp16', 'bfloat16']),
    (['--fp16_loss_scale=8'], ['--fp16_loss_scale', '--use_fp16']),
    (['--num_epochs_per_decay=2'], ['--learning_rate_decay_factor']),
    (['--minimum_learning_rate=0.1'], ['--minimum_learning_rate']),
    (
        ['--piecewise_learning_rate_schedule=0.1;20;0.01;10;0.001'],
        ['--piecewise_learning_rate_schedule', 'rising'],
    ),
    (['--data_name=flowers'], ['--data_name', 'flowers', 'data_dir']),
    (['--server_protocol=verbs'], ['--server_protocol', 'verbs', 'grpc']),
    (['--gpu_indices=0,0', '--num_gpus=2'], ['--gpu_indices', '0,0']),
    (['evaluate'], ['evaluate', 'prepare']),
    (['--data_dir=absent/folder'], ['absent/folder']),
    (['--flagfile=absent'], ['error: Unable to open flagfile', 'absent']),
    (['--result_storage=cbuild_benchmark_datastore'], ['--result_storage']),
]


@pytest.mark.parametrize(
    'arguments, parts', REFUSED, ids=[' '.join(row[0]) for row in REFUSED]
)
def test_refused_without_tensorflow(arguments, parts):
    code = (
        'import sys; from kbench.__main__ import main; '
        'status = main(sys.argv[1:]); '
        'sys.exit(99 if "tensorflow" in sys.modules else status)'
    )
    done = kbench(*arguments, start=('-c', code))
    errors = _errors(done)
    assert done.returncode in (1, 2)
    assert len(errors) == 1 and len(done.stderr.splitlines()) == 1
    for part in parts:
        assert part in errors[0]
    assert done.stdout == ''


def test_aliases_of_a_parameter_are_one():
    done = kbench('--init_learning_rate=0.1', '--learning_rate=x')
    assert done.returncode == 2
    assert '--learning_rate' in _errors(done)[0]


def _refuses_data(parts, *arguments):
    done = kbench('--model=lenet', '--device=cpu', *arguments)
    errors = _errors(done)
    assert done.returncode != 0
    assert len(errors) == 1, done.stderr
    for part in parts:
        assert part in errors[0]
    return done


def test_empty_data_folder(tmp_path):
    _refuses_data([str(tmp_path), 'empty'], f'--data_dir={tmp_path}')


def test_data_folder_that_is_a_file(tmp_path):
    path = tmp_path / 'file'
    path.write_text('x')
    _refuses_data([str(path), 'not a folder'], f'--data_dir={path}')


def test_only_empty_shards(tmp_path):
    for number in range(2):
        (tmp_path / f'train-0000{number}-of-00002').touch()
    _refuses_data([str(tmp_path), 'empty'], f'--data_dir={tmp_path}')


def test_train_dir_that_cannot_be_written(tmp_path):
    path = tmp_path / 'file'
    path.write_text('x')
    done = kbench('--model=lenet', f'--train_dir={path}/run')
    errors = _errors(done)
    assert done.returncode == 1 and len(errors) == 1
    assert '--train_dir' in errors[0] and str(path) in errors[0]


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """Shards of the digits, and a lenet that was trained on them."""
    folder = tmp_path_factory.mktemp('trained')
    data, train_dir = folder / 'data', folder / 'run'
    done = kbench('prepare', '--data_name=digits', f'--output_dir={data}')
    assert done.returncode == 0, done.stderr
    done = kbench(
        '--model=lenet',
        f'--data_dir={data}',
        f'--train_dir={train_dir}',
        '--num_batches=3',
        '--num_warmup_batches=0',
        '--batch_size=8',
    )
    assert done.returncode == 0, done.stderr
    return data, train_dir


def test_a_machine_without_gpu_is_told_in_one_line(trained):
    done = kbench(
        '--model=vgg16',
        '--variable_update=replicated',
        '--num_batches=3',
        '--batch_size=2',
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count('CPU') == 1
    assert 'running on the CPU' in done.stderr
    assert _errors(done) == []
    total = re.search(r'^total images/sec: (\d+\.\d\d)$', done.stdout, re.M)
    assert float(total.group(1)) > 0
    losses = [
        float(line.rpartition('\t')[2])
        for line in done.stdout.splitlines()
        if line.startswith('1\t')
    ]
    assert len(losses) == 1 and 5 < losses[0] < 9


def test_explicit_gpu_without_one():
    done = kbench('--device=gpu')
    errors = _errors(done)
    assert done.returncode == 1 and len(errors) == 1
    assert '--device=gpu' in errors[0] and 'cpu' in errors[0]


def test_nchw_without_gpu():
    done = kbench('--data_format=NCHW')
    assert done.returncode == 1
    assert 'NCHW' in _errors(done)[0] and 'NHWC' in _errors(done)[0]


def test_evaluation_takes_model_and_data_from_the_training(trained):
    done = kbench('--eval', f'--train_dir={trained[1]}')
    assert done.returncode == 0, done.stderr
    assert 'Model:       lenet' in done.stdout
    assert re.search(
        r'^Accuracy @ 1 = \d\.\d{4} Accuracy @ 5 = \d\.\d{4} '
        r'\[355 examples\] loss = \d+\.\d{4}$',
        done.stdout,
        re.M,
    )


def test_evaluation_without_validation_shards(trained, tmp_path):
    for path in trained[0].glob('train-*'):
        shutil.copy(path, tmp_path)
    _refuses_data(
        [str(tmp_path), 'validation'],
        '--eval',
        f'--train_dir={trained[1]}',
        f'--data_dir={tmp_path}',
    )


def test_evaluation_without_checkpoint(trained, tmp_path):
    _refuses_data(
        [str(tmp_path), 'no checkpoint'],
        '--eval',
        f'--train_dir={tmp_path}',
        f'--data_dir={trained[0]}',
    )


@pytest.mark.parametrize('mode', ['train', 'eval'])
def test_checkpoint_of_another_model(mode, trained, tmp_path):
    folder = tmp_path / 'run'
    shutil.copytree(trained[1], folder)
    before = sorted(path.name for path in folder.iterdir())
    kept = (folder / 'parameters.json').read_text()
    done = kbench(
        '--model=trivial',
        f'--train_dir={folder}',
        f'--data_dir={trained[0]}',
        '--num_batches=1',
        *(['--eval'] if mode == 'eval' else []),
    )
    errors = _errors(done)
    assert done.returncode == 1 and len(errors) == 1
    assert 'model.ckpt-3' in errors[0] and 'trivial' in errors[0]
    assert sorted(path.name for path in folder.iterdir()) == before
    assert (folder / 'parameters.json').read_text() == kept


def test_a_damaged_checkpoint_is_named(trained, tmp_path):
    folder = tmp_path / 'run'
    shutil.copytree(trained[1], folder)
    data = next(folder.glob('*.data-*'))
    data.write_bytes(data.read_bytes()[:-100])
    done = kbench('--eval', f'--train_dir={folder}')
    errors = _errors(done)
    assert done.returncode == 1 and len(errors) == 1
    assert 'model.ckpt-3' in errors[0]


def test_a_broken_parameters_file_is_named(trained, tmp_path):
    folder = tmp_path / 'run'
    shutil.copytree(trained[1], folder)
    (folder / 'parameters.json').write_text('{"model": ')
    done = kbench('--eval', f'--train_dir={folder}')
    errors = _errors(done)
    assert done.returncode == 2 and len(errors) == 1
    assert 'parameters.json' in errors[0] and 'JSON' in errors[0]


def test_a_reader_that_goes_away_is_no_error():
    done = subprocess.run(
        f'{sys.executable} -m kbench --help | head -1',
        shell=True,
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert 'Traceback' not in done.stderr


def _records(folder, images, labels):
    """One ImageNet-style training shard."""
    path = folder / 'train-00000-of-00001'
    input_helpers.write_shard(
        path,
        [
            input_helpers.make_example(image, label, f'n{number}.JPEG')
            for number, (image, label) in enumerate(
                zip(images, labels, strict=True)
            )
        ],
    )
    return path


def _train_on(folder, *arguments):
    return (
        '--model=lenet',
        f'--data_dir={folder}',
        '--data_name=imagenet',
        '--device=cpu',
        '--batch_size=4',
        '--num_batches=2',
        '--num_warmup_batches=0',
        *arguments,
    )


def test_a_broken_jpeg_is_named(tmp_path):
    photo = input_helpers.photo_bytes('china')
    path = _records(tmp_path, [photo, photo[:1000], photo, photo], [1, 2, 3, 4])
    done = kbench(*_train_on(tmp_path))
    errors = _errors(done)
    assert done.returncode == 1 and len(errors) == 1, done.stderr
    assert str(path) in errors[0] and 'n1.JPEG' in errors[0]
    done = kbench(*_train_on(tmp_path, '--skip_bad_images'))
    assert done.returncode == 0, done.stderr
    assert 'could not be read and were skipped' in done.stderr


def test_a_label_out_of_range_is_named(tmp_path):
    photo = input_helpers.photo_bytes('china')
    path = _records(tmp_path, [photo] * 4, [1, 2, 1001, 4])
    done = kbench(*_train_on(tmp_path))
    errors = _errors(done)
    assert done.returncode == 1 and len(errors) == 1, done.stderr
    for part in (str(path), '1001', '1 to 1000'):
        assert part in errors[0]


def test_png_grey_and_cmyk_under_a_jpeg_name_train(tmp_path):
    photo = input_helpers.photo('china')
    images = [
        input_helpers.encode(photo, 'PNG'),
        input_helpers.encode(photo.convert('L'), 'JPEG'),
        input_helpers.encode(photo.convert('CMYK'), 'JPEG'),
        input_helpers.encode(photo, 'JPEG'),
    ]
    _records(tmp_path, images, [1, 2, 3, 4])
    done = kbench(*_train_on(tmp_path))
    assert done.returncode == 0, done.stderr
    assert _errors(done) == []
    assert 'total images/sec' in done.stdout


def test_a_truncated_shard_is_named(tmp_path):
    photo = input_helpers.photo_bytes('china')
    path = _records(tmp_path, [photo] * 4, [1, 2, 3, 4])
    path.write_bytes(path.read_bytes()[:-500])
    errors = _errors(kbench(*_train_on(tmp_path)))
    assert len(errors) == 1 and str(path) in errors[0]


def test_the_models_are_listed():
    done = kbench('--list_models=resnet50*')
    assert done.returncode == 0
    assert 'resnet50_v1.5' in done.stdout and 'vgg16' not in done.stdout
    done = kbench('--list_models', '--format=json')
    rows = json.loads(done.stdout)
    assert {'vgg16', 'nasnetlarge'} <= {row['name'] for row in rows}


def test_the_input_is_measured(trained, tmp_path):
    record = tmp_path / 'run.json'
    done = kbench(
        *('--model=lenet', f'--data_dir={trained[0]}', '--benchmark_input'),
        f'--result_storage={record}',
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(record.read_text())
    assert found['mode'] == 'input'
    # One thread a picture, where nothing else is computed.
    assert found['threads'] == {'intra_op': 1, 'inter_op': 0}
    shares = re.findall(r'^[\w ]+\t(\d+\.\d) %$', done.stdout, re.M)
    assert len(shares) == 4 and 99 < sum(map(float, shares)) < 101
    assert re.search(r'^total images/sec: \d+\.\d\d$', done.stdout, re.M)


def test_interrupting_ends_with_one_line(trained):
    process = subprocess.Popen(
        [
            *(sys.executable, '-m', 'kbench', '--model=lenet'),
            *('--device=cpu', '--num_batches=1000000', '--batch_size=4'),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    for line in process.stdout:
        if line.startswith('10\t'):
            break
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == 'kbench: error: interrupted'
    assert 'Traceback' not in errors
