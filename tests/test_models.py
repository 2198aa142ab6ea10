"""The model table: names, rows, text, and exact sizes."""

import json
import math
import subprocess
import sys

import keras
import model_helpers
import pytest

from kbench import models

_GOLDEN = {
    (row['dataset'], row['model'], row['num_classes']): row
    for row in model_helpers.golden_rows()
}
_CLASSES = {'imagenet': (1000, 1001), 'cifar10': (10, 11)}


def _golden(spec, num_classes):
    return _GOLDEN[spec.dataset, spec.name, num_classes]


def test_every_name_has_golden_numbers_and_no_number_is_left():
    names = {
        (spec.dataset, spec.name, num_classes)
        for spec in models.list_specs()
        for num_classes in _CLASSES[spec.dataset]
    }
    assert names == set(_GOLDEN)


@pytest.mark.parametrize('spec', models.list_specs(), ids=model_helpers.spec_id)
def test_row_agrees_with_golden_numbers(spec):
    golden = _golden(spec, _CLASSES[spec.dataset][0])
    assert spec.parameters == golden['trainable']
    assert spec.macs == golden['macs']
    assert spec.source
    assert spec.top_1 is None or 50 < spec.top_1 < 100


@pytest.mark.parametrize('spec', models.list_specs(), ids=model_helpers.spec_id)
def test_exact_counts_in_both_layouts(spec):
    """One class count in each layout: building in NCHW is shown, too."""
    layouts = ('NHWC', 'NCHW')
    for num_classes, data_format in zip(
        _CLASSES[spec.dataset], layouts, strict=True
    ):
        with (
            models.keras_config(data_format=data_format),
            model_helpers.without_random_weights(),
        ):
            model = models.create_model(spec, num_classes)
        golden = _golden(spec, num_classes)
        counted = models.count_parameters(model)
        assert counted.trainable == golden['trainable']
        assert counted.total == golden['total']
        assert models.count_macs(model) == golden['macs']
        everything = models.count_parameters(model, auxiliary=True)
        assert (
            everything.trainable
            == golden['trainable'] + golden['aux_trainable']
        )
        _check_form(model, spec, num_classes, data_format)


def _check_form(model, spec, num_classes, data_format):
    size = spec.image_size
    shape = (None, size, size, 3)
    if data_format == 'NCHW':
        shape = (None, 3, size, size)
    assert model.inputs[0].shape == shape
    for logits in model.outputs:
        assert logits.shape == (None, num_classes)
        assert logits.dtype == 'float32'
    paths = [variable.path for variable in model.variables]
    assert len(set(paths)) == len(paths)
    kinds = {path.rsplit('/', 1)[1] for path in paths}
    assert kinds <= {
        'kernel',
        'depthwise_kernel',
        'bias',
        'gamma',
        'beta',
        'moving_mean',
        'moving_variance',
        'seed_generator_state',
    }


def test_names_of_variables_do_not_depend_on_what_was_built_before():
    def paths():
        model = models.create_model(models.get_spec('nasnet', 'cifar10'), 10)
        return [variable.path for variable in model.variables]

    first = paths()
    models.create_model(models.get_spec('vgg11'), 10, 32)
    assert paths() == first


@pytest.mark.parametrize(
    ('name', 'dataset', 'image_size'),
    [
        ('trivial', 'imagenet', 227),
        ('trivial', 'cifar10', 32),
        ('alexnet', 'imagenet', 227),
        ('alexnet', 'cifar10', 32),
        ('nasnet', 'imagenet', 224),
        ('nasnet', 'cifar10', 32),
        ('resnet50', 'cifar10', 224),
        ('resnet20', 'imagenet', 32),
        ('resnet_v2_50_299', 'imagenet', 299),
    ],
)
def test_the_data_set_chooses_the_row(name, dataset, image_size):
    assert models.get_spec(name, dataset).image_size == image_size


@pytest.mark.parametrize(
    ('alias', 'name'),
    [
        ('inception_v3', 'inception3'),
        ('inception_v4', 'inception4'),
        ('mobilenet_v2_d1', 'mobilenet'),
        ('nasnet_v1_small', 'nasnet'),
        ('nasnet_v1_large', 'nasnetlarge'),
    ],
)
def test_one_network_with_two_names_is_one_row(alias, name):
    assert models.get_spec(alias) is models.get_spec(name)
    assert models.get_spec(name) in models.list_specs(alias)


def test_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"'resnet51'.*resnet50") as error:
        models.get_spec('resnet51')
    assert '\n' not in str(error.value)


def test_too_small_images_are_refused():
    spec = models.get_spec('inception3')
    with pytest.raises(ValueError, match='too small'):
        models.create_model(spec, 10, 32)


def test_table_for_people_is_aligned_and_filtered():
    text = models.format_table(models.list_specs('resnet*_v2'))
    lines = text.splitlines()
    assert len(lines) == 1 + 3 + 5
    assert lines[0].startswith('model')
    start = lines[0].index('dataset')
    for line in lines[1:]:
        assert line[start - 2 : start] == '  '
        assert line[start:].startswith(('imagenet', 'cifar10'))
        assert '_v2' in line[:start]


def test_table_as_json():
    rows = json.loads(models.format_table(models.list_specs(), as_json=True))
    assert len(rows) == len(models.list_specs())
    row = next(row for row in rows if row['name'] == 'resnet50_v1.5')
    assert row['dataset'] == 'imagenet'
    assert row['parameters'] == 25_557_032
    assert row['macs'] == 4_089_184_256
    assert row['top_1'] == 76.1
    assert 'builder' not in row


def test_looking_up_imports_neither_tensorflow_nor_keras():
    code = (
        'import sys; from kbench import models; '
        'models.format_table(models.list_specs()); '
        'models.get_spec("vgg16"); models.get_spec("keras:ResNet50"); '
        'sys.exit(bool({"tensorflow", "keras"} & set(sys.modules)))'
    )
    done = subprocess.run([sys.executable, '-c', code], check=False)
    assert done.returncode == 0


def test_counts_agree_with_keras_on_its_own_layers():
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            keras.layers.Conv2D(4, 3, strides=2, groups=1, use_bias=False),
            keras.layers.SeparableConv2D(5, 3, padding='same'),
            keras.layers.BatchNormalization(),
            keras.layers.Flatten(),
            keras.layers.Dense(2),
        ]
    )
    counted = models.count_parameters(model)
    assert counted.total == model.count_params()
    assert counted.trainable == model.count_params() - 10
    pixels = 3 * 3
    assert models.count_macs(model) == (
        pixels * 27 * 4 + pixels * (9 * 4 + 4 * 5) + math.prod((3, 3, 5, 2))
    )
