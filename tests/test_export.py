"""A SavedModel and a .keras file that others load."""

import io
import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import skimage.data
import tensorflow as tf
from PIL import Image

import kbench
from kbench import checkpoints, models, preprocessing
from kbench.commands import prepare
from kbench.models import plain

# Keras 3.15 saves its variables in a way that NumPy 2 warns of.
pytestmark = pytest.mark.filterwarnings(
    'ignore:__array__ implementation:DeprecationWarning'
)

TESTS = os.path.dirname(__file__)


def _jpeg(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, 'JPEG', quality=95)
    return file.getvalue()


@pytest.fixture(scope='module')
def photographs(tmp_path_factory):
    """A folder of JPEGs, four of each of two classes, as a data set."""
    folder = tmp_path_factory.mktemp('photographs')
    for name, photo in (
        ('cat', skimage.data.chelsea()),
        ('cup', skimage.data.coffee()),
    ):
        (folder / 'images' / name).mkdir(parents=True)
        for index in range(8):
            part = photo[index * 5 : 250 + index * 3, index : 300 + 9 * index]
            path = folder / 'images' / name / f'{index}.jpg'
            path.write_bytes(_jpeg(part))
    prepare.main(
        [
            f'--image_dir={folder}/images',
            f'--output_dir={folder}/records',
            '--validation_fraction=0.25',
        ],
        progress=lambda text: None,
    )
    return folder


def _files(folder):
    return sorted(folder.glob('images/*/*.jpg'))


def _load_elsewhere(export, encoded, tmp_path):
    """What a process that cannot import kbench makes of the images."""
    images, answer = str(tmp_path / 'images.json'), str(tmp_path / 'a.npz')
    with open(images, 'w', encoding='utf-8') as file:
        json.dump([one.hex() for one in encoded], file)
    done = subprocess.run(
        # -P and the folder: neither the present one nor this one is a path.
        [
            *[sys.executable, '-P', os.path.join(TESTS, 'load_export.py')],
            *[str(export), images, answer],
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    return np.load(answer)


def _expected(checkpoint, spec_name, encoded, make_pixels, averaged=False):
    """Probabilities and pixels by the parts of kbench themselves."""
    model = models.create_model(models.get_spec(spec_name), 2)
    values = checkpoints.load(checkpoint)
    end = '/ExponentialMovingAverage' if averaged else ''
    for weight in model.weights:
        weight.assign(values[weight.path + end])
    pixels = tf.stack([make_pixels(tf.constant(one)) for one in encoded])
    images = preprocessing.normalize(pixels, 'float32')
    logits = model(images, training=False)[0]
    return tf.nn.softmax(logits).numpy(), pixels.numpy()


@pytest.mark.parametrize(
    ('eval_method', 'averaged'), [('vgg', True), ('inception', False)]
)
def test_an_export_is_the_evaluation(
    eval_method, averaged, photographs, tmp_path
):
    """At the end of a training, and of its checkpoint, without kbench."""
    run, folder = tmp_path / 'run', tmp_path / 'export'
    result = kbench.run(
        model='lenet',
        data_dir=str(photographs / 'records'),
        device='cpu',
        batch_size=4,
        num_batches=4,
        num_warmup_batches=0,
        learning_rate=0.01,
        train_dir=str(run),
        eval_method=eval_method,
        moving_average_decay=0.5 if averaged else None,
        num_gpus=2,
        variable_update='replicated',
        export=str(folder),
    )
    encoded = [path.read_bytes() for path in _files(photographs)]
    found = _load_elsewhere(folder, encoded, tmp_path)
    probabilities, pixels = _expected(
        result.checkpoint,
        'lenet',
        encoded,
        lambda one: preprocessing.eval_image(
            one,
            0,
            size=28,
            eval_method=eval_method,
            resize_method='bilinear',
        ),
        averaged,
    )
    np.testing.assert_array_equal(found['pixels'], pixels)
    for kind in ('saved_model', 'keras'):
        assert found[kind].dtype == np.float32
        np.testing.assert_allclose(found[kind], probabilities, atol=1e-6)
    assert probabilities.std() > 1e-3
    if not averaged:
        return
    # The evaluation of the same checkpoint exports the same.
    again = tmp_path / 'again'
    evaluation = kbench.run(
        eval=True, train_dir=str(run), device='cpu', export=str(again)
    )
    with open(again / 'export.json', encoding='utf-8') as file:
        facts = json.load(file)
    assert facts['step'] == evaluation.step == 4
    assert facts['model'] == 'lenet' and facts['num_classes'] == 2
    loaded = tf.saved_model.load(str(again / 'saved_model'))
    served = loaded.serve(tf.constant(encoded))['probabilities'].numpy()
    np.testing.assert_allclose(served, probabilities, atol=1e-6)
    assert not list(again.glob('.partial*'))


def test_small_images_are_resized_only(tmp_path):
    folder = tmp_path / 'export'
    kbench.run(
        model='resnet20',
        data_name='digits',
        device='cpu',
        compute_dtype='bfloat16',
        batch_size=8,
        num_batches=2,
        num_warmup_batches=0,
        learning_rate=0.01,
        export=str(folder),
    )
    loaded = tf.saved_model.load(str(folder / 'saved_model'))
    picture = np.zeros((8, 8, 3), np.uint8)
    encoded = tf.constant([_jpeg(picture), _jpeg(picture + 255)])
    pixels = loaded.signatures['preprocess'](images=encoded)['pixels']
    assert pixels.shape == (2, 32, 32, 3)
    served = loaded.serve(encoded)['probabilities'].numpy()
    np.testing.assert_allclose(served.sum(axis=1), 1, atol=1e-5)
    # The file of Keras is in float32, whatever the training was in.
    model = keras.models.load_model(str(folder / 'model.keras'))
    assert model.dtype_policy.name == 'float32'
    np.testing.assert_allclose(
        model.predict(pixels, verbose=0), served, atol=0.05
    )


# Together they have every kind of layer: name, data set, pixels.
CONVERTED = [
    ('lenet', 'imagenet', None),
    ('alexnet', 'cifar10', None),
    ('resnet20', 'cifar10', None),
    ('mobilenet', 'imagenet', 64),
]


def _random_model(name, dataset, size):
    model = models.create_model(models.get_spec(name, dataset), 7, size)
    draw = np.random.default_rng(3)
    for weight in model.weights:
        kind = weight.path.rpartition('/')[2]
        if kind == 'moving_variance':
            weight.assign(draw.uniform(0.5, 1.5, weight.shape))
        elif kind in ('moving_mean', 'beta', 'bias'):
            weight.assign(draw.normal(size=weight.shape, scale=0.1))
    return model


@pytest.mark.parametrize(('name', 'dataset', 'size'), CONVERTED)
def test_plain_layers_compute_the_same(name, dataset, size, tmp_path):
    model = _random_model(name, dataset, size)
    path = str(tmp_path / 'model.keras')
    plain.create_plain(model).save(path)
    loaded = keras.models.load_model(path)
    layers = loaded.get_layer('body').layers
    assert not any('kbench' in type(one).__module__ for one in layers)
    shape = (2, *model.inputs[0].shape[1:])
    pixels = np.random.default_rng(1).uniform(0, 255, shape).astype('float32')
    images = preprocessing.normalize(tf.constant(pixels), 'float32')
    expected = tf.nn.softmax(model(images, training=False)[0]).numpy()
    np.testing.assert_allclose(
        loaded.predict(pixels, verbose=0), expected, atol=2e-5
    )
    assert expected.std() > 1e-3


def test_a_layer_of_somebody_else_is_named():
    class Mine(keras.layers.Layer):
        def call(self, x):
            return x * 2

    images = keras.Input((4, 4, 3))
    outputs = keras.layers.Flatten()(Mine(name='strange')(images))
    with pytest.raises(kbench.UserError, match='strange'):
        plain.create_plain(keras.Model(images, [outputs]))


def test_an_unwritable_folder_is_refused_early(tmp_path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(kbench.UserError, match='--export='):
        kbench.run(model='lenet', export=str(tmp_path / 'file' / 'x'))
    with pytest.raises(kbench.UserError, match='forward_only'):
        kbench.make_params(forward_only=True, export=str(tmp_path))
