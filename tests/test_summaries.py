"""What a training writes for TensorBoard."""

import event_files
import numpy as np
import pytest
import tensorflow as tf

import kbench
from kbench import reporting, summaries


def _run(**values):
    defaults = {
        'model': 'lenet',
        'data_name': 'digits',
        'device': 'cpu',
        'num_batches': 6,
        'num_warmup_batches': 2,
        'batch_size': 4,
        'learning_rate': 0.01,
        'optimizer': 'momentum',
    }
    return kbench.run(**(defaults | values))


@pytest.mark.parametrize(
    'values',
    [
        np.random.default_rng(1).normal(size=(50, 3)).astype(np.float32),
        np.zeros(7, np.float32),
        np.full(5, -3e4, np.float32),
        np.array([1e-30, 2e-30], np.float32),
        np.arange(9, dtype=np.float16),
    ],
)
def test_histograms(values):
    parts = np.array_split(values.ravel(), 2)
    found = summaries.histogram([tf.constant(part) for part in parts]).numpy()
    assert found.shape == (summaries.HISTOGRAM_SIZE,)
    low, high = values.min(), values.max()
    assert found[0] == low and found[1] == high
    assert found[2:].sum() == values.size
    if high - low > 1e-3:
        expected, _ = np.histogram(values, summaries.NUM_BUCKETS)
        assert abs(found[2:] - expected).sum() <= 2


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
def test_histograms_of_what_is_not_finite_are_left_out(bad, tmp_path):
    numbers = summaries.histogram([tf.constant([1.0, bad, 2.0])]).numpy()
    assert not np.isfinite(numbers[:2]).all()
    writer = summaries.Writer(str(tmp_path))
    writer.histograms(3, ['a', 'b'], np.concatenate([numbers, np.ones(32)]))
    writer.close()
    assert event_files.read(tmp_path).keys() == {('b', 3)}


def test_what_cannot_be_written_is_warned_of_once(tmp_path, capsys):
    reporting.route_logging()
    (tmp_path / 'file').write_text('')
    writer = summaries.Writer(str(tmp_path / 'file'))
    for step in range(3):
        writer.scalars(step, {'a': 1.0})
        writer.flush()
    writer.close()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and str(tmp_path / 'file') in lines[0]


SCALARS = {
    'loss/total',
    'accuracy/top_1',
    'accuracy/top_5',
    'learning_rate',
    'epoch',
    'images_per_sec',
    'input_wait_sec',
}


def _tags(found, plugin):
    return {tag for (tag, _), value in found.items() if value[0] == plugin}


@pytest.mark.parametrize(
    ('mode', 'num_gpus', 'verbosity'),
    [
        ('parameter_server', 1, 1),
        ('independent', 2, 2),
        ('parameter_server', 2, 3),
        ('replicated', 2, 3),
    ],
)
def test_the_summaries_of_a_run(mode, num_gpus, verbosity, tmp_path):
    result = _run(
        variable_update=mode,
        num_gpus=num_gpus,
        train_dir=str(tmp_path),
        summary_verbosity=verbosity,
        save_summaries_steps=3,
    )
    found = event_files.read(tmp_path)
    assert _tags(found, 'scalars') == SCALARS
    # Steps 1 and 2 warm up; 3 and 6 are the first and the fourth timed one.
    for step, loss in ((3, result.losses[0]), (6, result.losses[3])):
        assert found['loss/total', step][1] == np.float32(loss)
        assert found['learning_rate', step][1] == np.float32(0.01)
        epoch = step * 4 * num_gpus / 1442
        if mode != 'independent':
            assert found['epoch', step][1] == pytest.approx(epoch, rel=1e-5)
    assert {step for _, step in found} == {0, 3, 6}
    names = [weight for weight in _tags(found, 'histograms')]
    kernels = sum('kernel' in name for name in names)
    assert len(names) == {1: 0, 2: 1, 3: 1 + 2 * 8}[verbosity]
    assert kernels == {1: 0, 2: 0, 3: 2 * 4}[verbosity]
    if verbosity > 1:
        buckets = found['gradients/all', 6][1]
        assert buckets.shape == (30, 3)
        # The parameters of lenet for ten classes.
        assert buckets[:, 2].sum() == 1_664_970
    if verbosity > 2:
        width, height, *images = found['inputs', 6][1]
        assert (width, height, len(images)) == (b'28', b'28', 3)
        pixels = tf.io.decode_png(images[0]).numpy()
        assert pixels.shape == (28, 28, 3) and pixels.std() > 10


@pytest.mark.parametrize(
    'values',
    [
        {'model': 'resnet20'},
        {'num_gpus': 2, 'variable_update': 'replicated'},
        {'use_fp16': True, 'fp16_enable_auto_loss_scale': True},
        {'moving_average_decay': 0.9, 'num_warmup_batches': 0},
    ],
)
def test_summaries_change_no_number(values, tmp_path):
    plain = _run(**values)
    watched = _run(
        **values,
        train_dir=str(tmp_path),
        summary_verbosity=3,
        save_summaries_steps=2,
    )
    assert watched.losses == plain.losses
    tags = _tags(event_files.read(tmp_path), 'scalars')
    assert ('loss_scale' in tags) == ('use_fp16' in values)


def test_the_last_bit_of_the_gradients_is_seen(tmp_path):
    """The histogram of a step is of the gradients that it applied."""
    _run(
        optimizer='sgd',
        learning_rate=1.0,
        weight_decay=0.5,
        num_batches=1,
        num_warmup_batches=0,
        train_dir=str(tmp_path),
        summary_verbosity=3,
        save_summaries_steps=1,
    )
    found = event_files.read(tmp_path)
    tag = next(
        tag
        for tag, _ in found
        if tag.startswith('gradients/') and 'bias' in tag
    )
    path = tag.removeprefix('gradients/')
    gradients = found[tag, 1][1]
    weights = found[f'variables/{path}', 1][1]
    before = float(np.round(weights[-1, 1] + gradients[0, 0], 4))
    # A bias begins at one value, and weights = before - gradients.
    assert weights[-1, 1] == pytest.approx(before - gradients[0, 0], abs=1e-5)
    assert weights[0, 0] == pytest.approx(before - gradients[-1, 1], abs=1e-5)


def test_resuming_goes_on_with_the_steps(tmp_path):
    for _ in range(2):
        _run(
            train_dir=str(tmp_path),
            summary_verbosity=1,
            save_summaries_steps=4,
            num_batches=4,
            num_warmup_batches=0,
        )
    found = event_files.read(tmp_path)
    assert {step for tag, step in found if tag == 'epoch'} == {4, 8}


def test_hyperparameters_are_what_tensorboard_reads(tmp_path):
    writer = summaries.Writer(str(tmp_path))
    writer.start_session({'lr': 0.5, 'model': 'lenet', 'xla': True})
    writer.end_session(True)
    writer.close()
    found = event_files.read(tmp_path)
    start = found['_hparams_/session_start_info', 0][1]
    end = found['_hparams_/session_end_info', 0][1]
    # As TensorBoard's HParamsPluginData has them; the times are cut off.
    assert start[:-8].hex() == GOLDEN_START
    assert end[:-8].hex() == GOLDEN_END


# Written by tensorboard 2.21.0, tensorboard.plugins.hparams.plugin_data_pb2.
GOLDEN_START = (
    '1a370a0f0a026c72120911000000000000e03f0a100a056d6f64656c12071a056c656e65'
    '740a090a03786c611202200129'
)
GOLDEN_END = '220b080111'


def test_half_of_the_parameters_is_warned_of(capsys):
    _run(summary_verbosity=1, num_batches=1, num_warmup_batches=0)
    assert '--save_summaries_steps' in capsys.readouterr().err


def test_summaries_need_a_folder():
    with pytest.raises(kbench.UserError, match='--train_dir'):
        kbench.make_params(summary_verbosity=1, save_summaries_steps=1)
