"""Tables of learning rates: at, before and after every boundary."""

import math

import numpy as np
import pytest
import tensorflow as tf

import kbench
from kbench import models, schedules
from kbench import params as params_lib


def rates_at(schedule, steps):
    """Rates as a traced function sees them: the step is a tensor."""
    traced = tf.function(schedule, autograph=False)
    return [float(traced(tf.constant(step, tf.int64))) for step in steps]


def check(schedule, table):
    found = rates_at(schedule, [step for step, _ in table])
    np.testing.assert_allclose(found, [rate for _, rate in table], rtol=2e-6)


STAIRCASE = schedules.exponential_decay(0.4, 10, 0.5, minimum=0.06)
COSINE = schedules.cosine(0.8, 100, minimum=0.2)
WARMED = schedules.with_warmup(schedules.piecewise([10, 20], [4, 2, 1]), 8, 4)


@pytest.mark.parametrize(
    'schedule, table',
    (
        (schedules.constant(0.25), ((0, 0.25), (10**9, 0.25))),
        (
            STAIRCASE,
            (
                (0, 0.4),
                (9, 0.4),
                (10, 0.2),
                (11, 0.2),
                (19, 0.2),
                (20, 0.1),
                (29, 0.1),
                # 0.05 would be below the floor.
                (30, 0.06),
                (10**6, 0.06),
            ),
        ),
        (
            schedules.exponential_decay(1.0, 1, 0.1),
            ((0, 1.0), (1, 0.1), (2, 0.01)),
        ),
        (
            schedules.piecewise([5, 7], [1.0, 0.5, 0.25]),
            ((0, 1), (4, 1), (5, 0.5), (6, 0.5), (7, 0.25), (8, 0.25)),
        ),
        (schedules.piecewise([], [0.3]), ((0, 0.3), (5, 0.3))),
        # Two boundaries within one step, as a tiny data set gives.
        (schedules.piecewise([3, 3], [1, 2, 4]), ((2, 1), (3, 4))),
        (
            COSINE,
            (
                (0, 0.8),
                (25, 0.2 + 0.6 * 0.5 * (1 + math.sqrt(0.5))),
                (50, 0.5),
                (99, 0.2 + 0.3 * (1 + math.cos(0.99 * math.pi))),
                (100, 0.2),
                (101, 0.2),
            ),
        ),
        (
            WARMED,
            (
                (0, 0.0),
                (1, 0.5),
                (7, 3.5),
                (8, 4),
                (9, 4),
                (10, 2),
                (19, 2),
                (20, 1),
            ),
        ),
        (
            schedules.with_warmup(schedules.constant(2.0), 0, 2.0),
            ((0, 2.0), (1, 2.0)),
        ),
    ),
)
def test_table(schedule, table):
    check(schedule, table)


# Name to the base rate, images per epoch, global batch, and (step, rate). At
# 100 steps an epoch, so that epoch 30 starts at step 3000.
MODEL_TABLES = {
    'constant': (0.005, 3200, 32, ((0, 0.005), (10**6, 0.005))),
    'imagenet_resnet': (
        0.128,
        51_200,
        512,
        (
            (0, 0.0),
            (1, 0.256 / 500),
            (250, 0.128),
            (499, 0.256 * 499 / 500),
            (500, 0.256),
            (501, 0.256),
            (2999, 0.256),
            (3000, 0.0256),
            (3001, 0.0256),
            (5999, 0.0256),
            (6000, 0.00256),
            (7999, 0.00256),
            (8000, 0.000256),
            (8999, 0.000256),
            (9000, 0.0000256),
            (20_000, 0.0000256),
        ),
    ),
    'official_resnet': (
        0.1,
        51_200,
        512,
        (
            (0, 0.2),
            (1, 0.2),
            (499, 0.2),
            (2999, 0.2),
            (3000, 0.02),
            (3001, 0.02),
            (5999, 0.02),
            (6000, 0.002),
            (7999, 0.002),
            (8000, 0.0002),
            (8999, 0.0002),
            (9000, 0.00002),
            (20_000, 0.00002),
        ),
    ),
    'cifar_resnet': (
        0.1,
        12_800,
        128,
        (
            (0, 0.1),
            (8199, 0.1),
            (8200, 0.01),
            (8201, 0.01),
            (12_299, 0.01),
            (12_300, 0.001),
            (29_999, 0.001),
            (30_000, 0.0002),
            (30_001, 0.0002),
        ),
    ),
    'densenet': (
        0.1,
        6400,
        64,
        (
            (0, 0.1),
            (14_999, 0.1),
            (15_000, 0.01),
            (22_499, 0.01),
            (22_500, 0.001),
            (29_999, 0.001),
            (30_000, 0.0001),
        ),
    ),
    'cifar_alexnet': (
        0.1,
        12_800,
        128,
        (
            (0, 0.1),
            (9999, 0.1),
            (10_000, 0.01),
            (19_999, 0.01),
            (20_000, 0.001),
            (29_999, 0.001),
            (30_000, 0.0001),
        ),
    ),
}


def test_every_rule_has_a_table():
    assert MODEL_TABLES.keys() == schedules.MODEL_RULES.keys()


@pytest.mark.parametrize('rule', MODEL_TABLES)
def test_model_rule(rule):
    base_rate, examples, batch, table = MODEL_TABLES[rule]
    schedule = schedules.model_schedule(
        rule,
        base_rate,
        steps_per_epoch=examples / batch,
        global_batch_size=batch,
    )
    check(schedule, table)


@pytest.mark.parametrize(
    'model, data, rule, rate',
    (
        ('resnet50', 'imagenet', 'imagenet_resnet', 0.128),
        ('resnet50_v1.5', 'imagenet', 'imagenet_resnet', 0.128),
        ('resnet101_v2', 'imagenet', 'imagenet_resnet', 0.128),
        ('official_resnet18', 'imagenet', 'official_resnet', 0.1),
        ('official_resnet200_v2', 'imagenet', 'official_resnet', 0.1),
        ('resnet_v1_50', 'imagenet', 'imagenet_resnet', 0.128),
        ('resnet20', 'cifar10', 'cifar_resnet', 0.1),
        ('resnet110_v2', 'cifar10', 'cifar_resnet', 0.1),
        ('alexnet', 'cifar10', 'cifar_alexnet', 0.1),
        ('alexnet', 'imagenet', 'constant', 0.005),
        ('vgg16', 'imagenet', 'constant', 0.005),
        ('lenet', 'imagenet', 'constant', 0.005),
    ),
)
def test_models_name_their_rule(model, data, rule, rate):
    spec = models.get_spec(model, data)
    assert (spec.schedule, spec.learning_rate) == (rule, rate)


@pytest.mark.parametrize(
    'epochs, steps_per_epoch, steps',
    (
        (0, 10, 0),
        (0.5, 3, 1),
        (1, 390.625, 390),
        (0.29, 100, 29),
        (1.1, 10, 11),
        (30, 1_281_167 / 256, 150_136),
    ),
)
def test_epochs_become_whole_steps(epochs, steps_per_epoch, steps):
    assert schedules.to_steps(epochs, steps_per_epoch) == steps


RUN = dict(
    model='lenet',
    data_name='digits',
    device='cpu',
    batch_size=8,
    num_batches=1,
    num_warmup_batches=0,
)


@pytest.mark.parametrize(
    'values, rate',
    (
        # After one update: the rate of step 1.
        (dict(learning_rate=0.25), 0.25),
        (dict(init_learning_rate=0.25), 0.25),
        (dict(), 0.005),
        (
            # 1,442 digits to train with: 180 whole steps of 8.
            dict(learning_rate=0.18, num_learning_rate_warmup_epochs=1.0),
            0.001,
        ),
        (
            dict(
                piecewise_learning_rate_schedule='0.5;0.006;0.25',
            ),
            0.25,
        ),
        (
            dict(
                learning_rate=0.5,
                num_epochs_per_decay=0.006,
                learning_rate_decay_factor=0.1,
                minimum_learning_rate=0.07,
            ),
            0.07,
        ),
        (
            dict(
                learning_rate=0.5,
                learning_rate_schedule='cosine',
                num_batches=2,
                minimum_learning_rate=0.1,
            ),
            0.1,
        ),
    ),
)
def test_the_result_tells_the_rate_of_the_next_update(values, rate, capsys):
    result = kbench.run(**RUN | values)
    assert result.learning_rate == pytest.approx(rate, rel=1e-6)
    assert 'Learning rate:' in capsys.readouterr().out


@pytest.mark.parametrize(
    'values, text',
    (
        (
            dict(num_learning_rate_warmup_epochs=1.0),
            '--num_learning_rate_warmup_epochs=1.0 needs --learning_rate',
        ),
        (
            dict(num_epochs_per_decay=1.0, learning_rate_decay_factor=0.1),
            '--num_epochs_per_decay needs --learning_rate',
        ),
        (
            dict(learning_rate=0.1, num_epochs_per_decay=1.0),
            'set together or not at all',
        ),
        (
            dict(learning_rate=0.1, minimum_learning_rate=0.01),
            '--minimum_learning_rate=0.01 needs',
        ),
        (
            dict(piecewise_learning_rate_schedule='0.1;5'),
            "'0.1;5' is not legal",
        ),
        (
            dict(
                learning_rate=0.1,
                learning_rate_schedule='cosine',
                piecewise_learning_rate_schedule='0.1',
            ),
            'exclude each other',
        ),
    ),
)
def test_what_cannot_be_is_refused(values, text):
    with pytest.raises(params_lib.ParamsError) as caught:
        params_lib.make_params(**values)
    assert text in str(caught.value)
