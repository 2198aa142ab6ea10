"""What a step measures."""

import numpy as np
import pytest
import tensorflow as tf

from kbench import loop, metrics

NAN = np.nan


@pytest.mark.parametrize(
    'logits, label, k, right',
    (
        ([3, 1, 2], 0, 1, 1),
        ([3, 1, 2], 2, 1, 0),
        ([3, 1, 2], 2, 2, 1),
        ([3, 1, 2], 1, 2, 0),
        # Fewer classes than k.
        ([3, 1, 2], 1, 5, 1),
        ([NAN, NAN, NAN], 0, 1, 0),
        ([NAN, NAN, NAN], 0, 5, 0),
        ([np.inf, 1, 2], 0, 1, 0),
    ),
)
def test_top_k(logits, label, k, right):
    found = metrics.top_k(
        tf.constant([logits], tf.float32), tf.constant([label]), k
    )
    assert found.dtype == tf.float32
    assert found.numpy().tolist() == [right]


@pytest.mark.parametrize('dtype', ('float16', 'bfloat16', 'float32'))
def test_accuracies_of_probabilities_and_labels(dtype):
    logits = tf.constant(np.eye(8)[[1, 2, 3, 4]], dtype)
    for labels in ([1, 2, 0, 7], np.eye(8, dtype=np.float32)[[1, 2, 0, 7]]):
        top_1, top_5 = metrics.accuracies([logits], tf.constant(labels))
        assert float(top_1) == 0.5
        # Ties count for all: the seven zeros are all second.
        assert float(top_5) == 1.0


def test_columns_are_distinct():
    columns = (
        metrics.LOSS,
        metrics.TOP_1,
        metrics.TOP_5,
        metrics.FINITE,
        metrics.LOSS_SCALE,
        metrics.GRADIENT_NORM,
    )
    assert columns == tuple(range(6))


def test_a_record_keeps_the_columns_and_no_histograms():
    record = loop.Record(images_per_step=8)
    wide = np.arange(1000, dtype=np.float32)
    record.add(loop.FinishedStep(wide, 0.5, 0.1))
    narrow = np.arange(3, dtype=np.float32)
    record.add(loop.FinishedStep(narrow, 0.5, 0.1))
    np.testing.assert_array_equal(record.metrics[0], np.arange(6))
    # A view would keep the whole alive.
    assert record.metrics[0].base is None
    assert record.metrics[1] is narrow
