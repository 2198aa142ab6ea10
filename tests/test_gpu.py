"""What only a GPU can show; skipped where there is none."""

import numpy as np
import pytest
import tensorflow as tf

import kbench

pytestmark = pytest.mark.gpu


def _losses(**values):
    defaults = {
        'model': 'resnet20',
        'device': 'gpu',
        'batch_size': 16,
        'num_batches': 5,
        'num_warmup_batches': 0,
        'learning_rate': 0.01,
    }
    return kbench.run(**(defaults | values)).losses


def test_float32_runs_in_nchw_and_equals_nhwc(capsys):
    default = _losses()
    assert 'Data format: NCHW' in capsys.readouterr().out
    other = _losses(data_format='NHWC')
    np.testing.assert_allclose(default, other, rtol=1e-3)


def test_a_gpu_gives_the_losses_of_the_cpu():
    np.testing.assert_allclose(
        _losses(data_format='NHWC'), _losses(device='cpu'), rtol=1e-3
    )


@pytest.mark.parametrize('dtype', ['float16', 'bfloat16'])
def test_short_formats_follow_float32(dtype, capsys):
    short = _losses(compute_dtype=dtype)
    assert 'Data format: NHWC' in capsys.readouterr().out
    np.testing.assert_allclose(short, _losses(), rtol=0.05)


def test_xla_follows_the_plain_step():
    np.testing.assert_allclose(_losses(xla=True), _losses(), rtol=1e-3)


def test_deterministic_runs_are_equal():
    assert _losses(deterministic=True) == _losses(deterministic=True)


@pytest.mark.parametrize('mode', ['parameter_server', 'replicated'])
def test_two_gpus_equal_one(mode):
    if len(tf.config.list_physical_devices('GPU')) < 2:
        pytest.skip('needs two GPUs')
    common = {'model': 'lenet', 'variable_update': mode}
    np.testing.assert_allclose(
        _losses(num_gpus=2, batch_size=8, **common),
        _losses(num_gpus=1, batch_size=16, **common),
        rtol=1e-4,
    )


def test_real_images_reach_the_gpu(tmp_path):
    losses = _losses(data_name='digits', num_batches=30, batch_size=64)
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
