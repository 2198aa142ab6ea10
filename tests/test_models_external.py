"""Models from keras.applications and from a user's own module."""

import os
import pathlib
import subprocess
import sys
import textwrap

import keras
import model_helpers
import numpy as np
import pytest

import kbench
from kbench import models
from kbench.models import applications, batch_norm, external


def test_the_names_are_those_of_keras_applications():
    theirs = {
        name
        for name in dir(keras.applications)
        if name[0].isupper() and callable(getattr(keras.applications, name))
    }
    assert theirs == set(external.KERAS_NAMES)


@pytest.mark.parametrize('training', [False, True])
def test_fused_batch_norms_leave_the_outputs_equal(training):
    reference = keras.applications.MobileNetV3Small(
        weights=None,
        classes=10,
        classifier_activation=None,
        input_shape=(64, 64, 3),
        include_preprocessing=False,
        dropout_rate=0.0,
    )
    fused = applications.fuse_batch_norms(reference)
    kinds = [type(layer) for layer in fused.layers]
    assert keras.layers.BatchNormalization not in kinds
    assert kinds.count(batch_norm.BatchNorm) == 34
    random = np.random.default_rng(0)
    for mine, theirs in zip(fused.weights, reference.weights, strict=True):
        assert mine.path == theirs.path
        if theirs.name in ('beta', 'moving_mean'):
            theirs.assign(random.normal(0, 0.1, theirs.shape))
        mine.assign(theirs)
    images = random.uniform(-1, 1, (4, 64, 64, 3)).astype('f')
    expected = reference(images, training=training)
    actual = fused(images, training=training)
    np.testing.assert_allclose(actual, expected, atol=1e-4)


@pytest.mark.parametrize(
    ('name', 'policy'),
    [
        ('keras:MobileNetV2', 'float32'),
        ('keras:EfficientNetV2B0', 'mixed_bfloat16'),
    ],
)
def test_keras_model_trains_on_two_replicas(name, policy):
    spec = models.get_spec(name)
    with models.keras_config(policy):
        model, losses, missing = model_helpers.train_on_two_replicas(spec)
    assert not missing
    assert np.isfinite(losses).all()
    assert model.outputs[0].dtype == 'float32'
    paths = [variable.path for variable in model.variables]
    assert len(set(paths)) == len(paths)


def test_efficientnet_of_2019_scales_from_our_range_to_its_own():
    """It divides pixels by 255 itself."""
    spec = models.get_spec('keras:EfficientNetB0')
    model = models.create_model(spec, 10, 32)
    layer = next(
        x for x in model.layers if isinstance(x, keras.layers.Rescaling)
    )
    np.testing.assert_allclose(layer(np.float32([-1, 1])), [0, 1], atol=1e-6)
    assert models.count_parameters(model).trainable == (
        5_288_548 - 1281 * (1000 - 10)
    )


def test_image_size_of_keras_models():
    assert models.get_spec('keras:InceptionV3').image_size == 299
    assert models.get_spec('keras:VGG16').image_size == 224


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    (tmp_path / 'my_models.py').write_text(
        textwrap.dedent(
            """
            import keras

            def tiny(images, num_classes):
                x = keras.layers.Flatten()(images)
                return keras.layers.Dense(num_classes, name='last')(x)

            tiny.image_size = 8
            tiny.learning_rate = 0.25

            def whole(images, num_classes):
                inputs = keras.Input(images.shape[1:])
                x = keras.layers.GlobalAveragePooling2D()(inputs)
                return keras.Model(inputs, keras.layers.Dense(num_classes)(x))

            number = 3
            """
        )
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield 'my_models'
    sys.modules.pop('my_models', None)


@pytest.mark.parametrize('function', ['tiny', 'whole'])
def test_a_users_function(user_module, function):
    spec = models.get_spec(f'{user_module}:{function}')
    with models.keras_config('mixed_bfloat16'):
        model = models.create_model(spec, 10, 8)
        images, labels = model_helpers.random_batch(spec, 8, 2)
        total, grads, _ = model_helpers.gradients(model, spec, images, labels)
    assert model.outputs[0].shape == (None, 10)
    assert model.outputs[0].dtype == 'float32'
    assert np.isfinite(float(total))
    assert None not in grads


def test_attributes_of_a_users_function(user_module):
    spec = models.get_spec(f'{user_module}:tiny')
    assert (spec.image_size, spec.learning_rate) == (8, 0.25)
    assert spec.batch_size == 32


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('keras:ResNet51', r'no .ResNet51.; try keras:ResNet50'),
        ('no_such_module:f', r"cannot import 'no_such_module'"),
        ('my_models:absent', r"has no function 'absent'"),
        ('my_models:number', r"has no function 'number'"),
        (':f', r"cannot import ''"),
    ],
)
def test_bad_names_are_refused_in_one_line(user_module, name, message):
    with pytest.raises(ValueError, match=message) as error:
        models.get_spec(name)
    assert '\n' not in str(error.value)


_ROOT = pathlib.Path(__file__).parents[1]
_MODES = ('parameter_server', 'replicated', 'independent')


def _run(model, mode, **values):
    """Two steps of two images on each of two CPU devices."""
    return kbench.run(
        model=model,
        variable_update=mode,
        num_gpus=2,
        num_batches=2,
        num_warmup_batches=0,
        batch_size=2,
        device='cpu',
        **values,
    )


@pytest.mark.slow
@pytest.mark.parametrize('mode', _MODES)
def test_keras_model_runs_in_every_mode(mode, capsys):
    result = _run('keras:MobileNetV2', mode)
    assert len(result.losses) == 2
    assert np.isfinite(result.losses).all()
    assert result.step == 2
    assert 'keras:MobileNetV2' in capsys.readouterr().out


@pytest.mark.parametrize('mode', _MODES)
def test_a_users_function_runs_in_every_mode(user_module, mode, capsys):
    result = _run(f'{user_module}:tiny', mode)
    assert len(result.losses) == 2
    assert result.losses[1] < result.losses[0]
    assert result.learning_rate == 0.25
    assert f'{user_module}:tiny' in capsys.readouterr().out


def test_the_installed_command_finds_the_current_folder(user_module, tmp_path):
    """Its path begins with its own folder, not with the current one."""
    (tmp_path / 'bin').mkdir()
    script = tmp_path / 'bin' / 'kbench'
    script.write_text(
        'import sys\nfrom kbench.__main__ import main\nsys.exit(main())\n'
    )
    done = subprocess.run(
        [
            *(sys.executable, script),
            *(f'--model={user_module}:tiny', '--device=cpu', '--batch_size=2'),
            *('--num_batches=2', '--num_warmup_batches=0'),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        cwd=tmp_path,
        env={**os.environ, 'PYTHONPATH': str(_ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert 'total images/sec:' in done.stdout
