"""Weights of Keras, tf_cnn_benchmarks and tf-imagenet, by their names."""

import keras
import numpy as np
import original_net
import pytest
from test_models_keras import _randomize

import kbench
from kbench import checkpoints, models

pytestmark = pytest.mark.filterwarnings('ignore:__array__ implementation')


def _load(model, name, source, data_format='NCHW', exact=True):
    """Gives a model the weights of a source; returns what was told."""
    told = []
    shapes = {weight.path: tuple(weight.shape) for weight in model.weights}
    values = source.named_for(shapes, name, data_format, told.append)
    checkpoints.restore(
        source.path,
        values,
        {weight.path: weight for weight in model.weights},
        what=f'model {name}',
        exact=exact,
        others=['global_step'],
    )
    return told


def _read(path):
    return checkpoints.read(str(path), pytest.fail)


@pytest.mark.parametrize(
    ('name', 'constructor', 'size', 'end'),
    [
        ('mobilenet', 'MobileNetV2', 32, '.keras'),
        ('mobilenet_v1_orig', 'MobileNet', 32, '.h5'),
        # Its convolutions have biases, which the moving means take.
        ('resnet50', 'ResNet50', 32, '.weights.h5'),
        ('keras:MobileNetV2', 'MobileNetV2', 224, '.weights.h5'),
    ],
)
# Keras warns that .h5 is the old format.
@pytest.mark.filterwarnings('ignore:You are saving your model as an HDF5')
def test_keras_applications(name, constructor, size, end, tmp_path):
    reference = getattr(keras.applications, constructor)(
        weights=None,
        classes=7,
        classifier_activation=None,
        input_shape=(size, size, 3),
    )
    _randomize(reference, 1)
    path = str(tmp_path / f'weights{end}')
    save = reference.save_weights if 'weights' in end else reference.save
    save(path)
    model = models.create_model(models.get_spec(name), 7, size)
    assert len(_load(model, name, _read(path))) == (name == 'resnet50')
    images = np.random.default_rng(0).uniform(-1, 1, (2, size, size, 3))
    images = images.astype(np.float32)
    wanted = reference(images, training=False).numpy()
    found = model(images, training=False)[0].numpy()
    np.testing.assert_allclose(found, wanted, atol=1e-4 * abs(wanted).max())


def test_layers_of_another_model_are_refused(tmp_path):
    reference = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(3, name='other')]
    )
    path = str(tmp_path / 'a.weights.h5')
    reference.save_weights(path)
    model = models.create_model(models.get_spec('lenet'), 10)
    with pytest.raises(checkpoints.CheckpointError) as caught:
        _load(model, 'lenet', _read(path))
    text = str(caught.value)
    assert 'other there, conv1' in text and 'keras:<Name>' in text
    with open(path, 'r+b') as file:
        file.truncate(100)
    with pytest.raises(checkpoints.CheckpointError, match='cannot be read'):
        _read(path)


@pytest.mark.parametrize(
    ('name', 'build', 'size', 'top'),
    [
        ('resnet50', original_net.resnet50, 65, 'v'),
        ('vgg11', original_net.vgg11, 32, 'v0'),
    ],
)
def test_tf_cnn_benchmarks(name, build, size, top, tmp_path):
    """Same names as the original, same logits."""
    images, wanted = original_net.write(build, tmp_path, 11, size, top)
    source = _read(tmp_path)
    assert source.has_weights_only and f'{top}/cg/conv0' in str(source.values)
    model = models.create_model(models.get_spec(name), 11, size)
    told = _load(model, name, source)
    assert len(told) == (name == 'resnet50')
    found = model(images.astype(np.float32), training=False)[0].numpy()
    np.testing.assert_allclose(found, wanted, atol=1e-4 * abs(wanted).max())
    # The head of one class more is that of the original: class 0 of 1001.
    for classes, kept in ((10, slice(0, 10)), (1000, None)):
        shapes = {w.path: tuple(w.shape) for w in model.weights}
        values = source.named_for(shapes, name, 'NHWC', str)
        head = ['logits/bias', 'logits/kernel']
        if kept is None:
            values['logits/bias'] = np.arange(1001)
            values['logits/kernel'] = np.zeros((2, 1001))
        before = values['logits/bias']
        text = checkpoints.drop_unused_class(values, head, classes)
        assert f'of the {classes + 1} of the original' in text
        after = before[1:] if kept is None else before[kept]
        np.testing.assert_array_equal(values['logits/bias'], after)


@pytest.mark.parametrize('data_format', ['NCHW', 'NHWC'])
def test_rows_of_the_first_dense_layer(data_format, tmp_path):
    """They are in the order of the layout in which it was trained."""
    model = models.create_model(models.get_spec('lenet'), 10)
    shapes = {weight.path: tuple(weight.shape) for weight in model.weights}
    names = {
        f'v/cg/{kind}{number}/{role}': shapes[f'{layer}/{ours}']
        for layer, kind, number in (
            ('conv1', 'conv', 0),
            ('conv2', 'conv', 1),
            ('dense1', 'affine', 0),
            ('logits', 'affine', 1),
        )
        for ours, role in (
            ('kernel', 'conv2d/kernel' if kind == 'conv' else 'weights'),
            ('bias', 'biases'),
        )
        if f'{layer}/{ours}' in shapes
    }
    assert len(names) == len(shapes)
    values = original_net.write_names(names, tmp_path)
    told = _load(model, 'lenet', _read(tmp_path), data_format)
    assert len(told) == 1 and f'as trained in {data_format}' in told[0]
    theirs = values['v/cg/affine0/weights']
    rows = len(theirs)
    images = np.random.default_rng(0).normal(size=(7, 7, rows // 49))
    seen = images if data_format == 'NHWC' else images.transpose(2, 0, 1)
    np.testing.assert_allclose(
        images.ravel() @ model.get_layer('dense1').kernel.numpy(),
        seen.ravel() @ theirs,
        rtol=1e-4,
        atol=1e-4,
    )


def _slim_names(name, to_slim, head, prefix):
    """Shapes by slim's names, and our names of the same variables."""
    model = models.create_model(models.get_spec(name), 11, 64)
    names, ours = {}, {}
    for weight in model.weights:
        layer, _, role = weight.path.rpartition('/')
        slim_role = {
            'kernel': 'weights',
            'bias': 'biases',
            'depthwise_kernel': 'depthwise_weights',
        }.get(role, role)
        if layer == 'logits':
            slim = f'{head}/{slim_role}'
        else:
            slim = f'{to_slim(layer)}/{slim_role}'
        shape = tuple(weight.shape)
        if layer == 'logits' and role == 'kernel':
            shape = (1, 1, *shape)
        names[f'{prefix}{slim}'] = shape
        ours[weight.path] = f'{prefix}{slim}'
    return model, names, ours


def _slim_resnet(layer):
    block, _, part = layer.partition('_block')
    if not part:
        name = {'stem_conv': 'conv1', 'stem_bn': 'conv1/BatchNorm'}
        return name.get(layer, 'postnorm')
    unit, _, part = part.partition('_')
    end = '/BatchNorm' if part.endswith('_bn') else ''
    part = part.removesuffix('_bn').removesuffix('_conv')
    part = {'pre': 'preact', 'shortcut': 'shortcut'}.get(part, f'conv{part}')
    version = 'v2' if _slim_resnet.version == 2 else 'v1'
    return (
        f'{block.replace("stage", "block")}/unit_{unit}/'
        f'bottleneck_{version}/{part}{end}'
    )


def _slim_mobilenet_v1(layer):
    number, _, part = layer.removeprefix('conv').partition('_')
    index = int(number) - 1
    kind = '_depthwise' if 'depthwise' in part else '_pointwise'
    end = '/BatchNorm' if part.endswith('bn') else ''
    return f'Conv2d_{index}{kind if index else ""}{end}'


def _slim_mobilenet_v2(layer):
    fixed = {'stem': 'Conv', 'last': 'Conv_1'}
    end = '/BatchNorm' if layer.endswith('_bn') else ''
    layer = layer.removesuffix('_bn').removesuffix('_conv')
    if layer in fixed:
        return fixed[layer] + end
    stage, block, part = layer.split('_')
    blocks = (1, 2, 3, 4, 3, 3, 1)
    before = sum(blocks[: int(stage.removeprefix('stage')) - 1])
    index = before + int(block.removeprefix('block')) - 1
    number = f'_{index}' if index else ''
    return f'expanded_conv{number}/{part}{end}'


@pytest.mark.parametrize(
    ('name', 'version', 'to_slim', 'head', 'prefix'),
    [
        ('resnet_v1_50', 1, _slim_resnet, 'logits', 'v/cg/resnet_v1_50/'),
        ('resnet_v2_50', 2, _slim_resnet, 'logits', 'resnet_v2_50/'),
        (
            'mobilenet_v1_relu',
            1,
            _slim_mobilenet_v1,
            'Logits/Conv2d_1c_1x1',
            'v0/cg/MobilenetV1/',
        ),
        (
            'mobilenet',
            2,
            _slim_mobilenet_v2,
            'Logits/Conv2d_1c_1x1',
            'v/cg/MobilenetV2/',
        ),
    ],
)
def test_names_of_slim(name, version, to_slim, head, prefix, tmp_path):
    _slim_resnet.version = version
    model, names, ours = _slim_names(name, to_slim, head, prefix)
    if name == 'mobilenet_v1_relu':
        names |= {f'{n}/ExponentialMovingAverage': names[n] for n in names}
    # Two classifiers of tf_cnn_benchmarks are one matrix.
    two = name == 'mobilenet'
    if two:
        names |= {'v/cg/affine0/weights': (11, 11), 'v/cg/affine0/biases': [11]}
    names['v/cg/conv0/conv2d/kernel/Momentum'] = (3, 3)
    if name == 'resnet_v1_50':
        # Without a file: the names are what counts.
        values = original_net.random_values(names)
        source = checkpoints.Source('names', values)
    else:
        values = original_net.write_names(names, tmp_path)
        source = _read(tmp_path)
    _load(model, name, source, exact=False)
    for weight in model.weights:
        wanted = values[ours[weight.path]]
        if two and weight.path.startswith('logits/'):
            wanted = wanted @ values['v/cg/affine0/weights']
            if weight.path == 'logits/bias':
                wanted += values['v/cg/affine0/biases']
        np.testing.assert_allclose(
            weight.numpy(), wanted.reshape(weight.shape), rtol=1e-5, atol=1e-6
        )


def test_what_has_no_place_is_refused(tmp_path):
    """tf-imagenet's MobileNet v2 has one convolution more."""
    model, names, _ = _slim_names(
        'mobilenet', _slim_mobilenet_v2, 'Logits/Conv2d_1c_1x1', 'MobilenetV2/'
    )
    names['MobilenetV2/expanded_conv/expand/weights'] = (1, 1, 32, 32)
    original_net.write_names(names, tmp_path)
    with pytest.raises(checkpoints.CheckpointError) as caught:
        _load(model, 'mobilenet', _read(tmp_path), exact=False)
    assert 'stage1_block1_expand_conv/kernel' in str(caught.value)


def test_models_without_a_map_are_named(tmp_path):
    original_net.write_names({'v/cg/conv0/conv2d/kernel': (1, 1)}, tmp_path)
    with pytest.raises(kbench.UserError) as caught:
        kbench.run(
            model='googlenet', device='cpu', init_checkpoint=str(tmp_path)
        )
    assert 'not known for model googlenet' in str(caught.value)


def test_evaluating_an_original(tmp_path):
    """From the command line: the class that no label had is left out."""
    model = models.create_model(models.get_spec('lenet'), 11)
    shapes = {weight.path: tuple(weight.shape) for weight in model.weights}
    names = {
        'v/cg/conv0/conv2d/kernel': shapes['conv1/kernel'],
        'v/cg/conv0/biases': shapes['conv1/bias'],
        'v/cg/conv1/conv2d/kernel': shapes['conv2/kernel'],
        'v/cg/conv1/biases': shapes['conv2/bias'],
        'v/cg/affine0/weights': shapes['dense1/kernel'],
        'v/cg/affine0/biases': shapes['dense1/bias'],
        'v/cg/affine1/weights': shapes['logits/kernel'],
        'v/cg/affine1/biases': shapes['logits/bias'],
    }
    original_net.write_names(names, tmp_path)
    values = dict(model='lenet', data_name='digits', device='cpu')
    found = kbench.run(**values, eval=True, checkpoint=str(tmp_path))
    assert found.evaluation.num_images == 355
    with pytest.raises(kbench.UserError, match='is of another program'):
        kbench.run(**values, train_dir=str(tmp_path), num_batches=1)
