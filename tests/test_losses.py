"""Cross entropy, smoothing, auxiliary heads and L2, to the digit."""

import numpy as np
import pytest
import tensorflow as tf
from numerics_helpers import MODES, Linear, create_replicas, loss_of

import kbench
from kbench import losses

LOGITS = np.array([[2.0, -1.0, 0.5], [0.0, 3.0, -2.0]])
LABELS = np.array([0, 2])


def np_cross_entropy(logits, targets):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return -(targets * log).sum(axis=-1)


def np_smoothed(labels, share, count=3):
    return np.eye(count)[labels] * (1 - share) + share / count


@pytest.mark.parametrize('share', (0.0, 0.1, 0.5, 1.0))
@pytest.mark.parametrize('one_hot', (False, True))
def test_label_smoothing(share, one_hot):
    labels = np.eye(3, dtype=np.float32)[LABELS] if one_hot else LABELS
    found = losses.softmax_cross_entropy(
        tf.constant(LOGITS, tf.float32), tf.constant(labels), share
    )
    expected = np_cross_entropy(LOGITS, np_smoothed(LABELS, share))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize('dtype', (tf.float16, tf.bfloat16))
def test_softmax_is_float32(dtype):
    """2,000 equal logits: their sum of exponentials needs float32."""
    logits = tf.fill([1, 2000], tf.constant(10.0, dtype))
    found = losses.softmax_cross_entropy(logits, tf.constant([7]))
    assert found.dtype == tf.float32
    np.testing.assert_allclose(found, [np.log(2000)], rtol=1e-6)


@pytest.mark.parametrize('share', (0.0, 0.1))
def test_auxiliary_heads_count_with_their_weight(share):
    heads = [LOGITS, LOGITS[::-1], LOGITS * 2]
    loss = losses.make_classification_loss(
        label_smoothing=share, aux_loss_weight=0.4
    )
    found = loss(
        [tf.constant(head, tf.float32) for head in heads], tf.constant(LABELS)
    )
    main, *auxiliary = [
        np_cross_entropy(head, np_smoothed(LABELS, share)).mean()
        for head in heads
    ]
    np.testing.assert_allclose(found, main + 0.4 * sum(auxiliary), rtol=1e-6)


@pytest.mark.parametrize('dtype', ('float32', 'float16', 'bfloat16'))
def test_l2_is_half_the_sum_of_squares_in_float32(dtype):
    weights = [tf.fill([300], tf.constant(20.0, dtype)), tf.ones([2], dtype)]
    found = losses.L2(1.0, [True, True]).loss(weights)
    assert found.dtype == tf.float32
    # 120,000 does not exist in float16.
    assert float(found) == 60_000 + 1


def test_l2_of_nothing_is_zero():
    for l2 in (losses.L2(), losses.L2(0.5, [False])):
        assert float(l2.loss([tf.ones([2])])) == 0


@pytest.mark.parametrize('num_replicas', (1, 2))
@pytest.mark.parametrize('mode', MODES)
def test_l2_counts_once(mode, num_replicas, devices):
    """loss = x.w + d/2 w^2, so w' = w - lr (x + d w) for any replicas."""
    start, images = np.array([2.0, -1.0]), np.array([[0.5, 0.25]])
    training = Linear(
        create_replicas(mode, devices(num_replicas)),
        start,
        rate=0.1,
        weight_decay=0.5,
    )
    vector = training.run(*[images] * num_replicas)
    expected = (images[0] * start).sum() + 0.25 * (start**2).sum()
    assert loss_of(vector) == pytest.approx(expected, rel=1e-6)
    for copy in training.copies(training.weight):
        np.testing.assert_allclose(
            copy, start - 0.1 * (images[0] + 0.5 * start), rtol=1e-6
        )


@pytest.mark.parametrize(
    'path, decayed',
    (
        ('conv1/kernel', True),
        ('depth/depthwise_kernel', True),
        ('conv1/bias', False),
        ('stage1/unit_bn/gamma', False),
        ('bn/beta', False),
        ('bias', False),
        ('bias/kernel', True),
    ),
)
def test_exemptions(path, decayed):
    assert losses.is_decayed(path) is decayed
    assert losses.is_decayed(path, decay_all=True)


@pytest.mark.parametrize('decay_all', (False, True))
def test_list_weight_decay(decay_all, capsys):
    result = kbench.run(
        model='resnet20',
        device='cpu',
        list_weight_decay=True,
        weight_decay_all=decay_all,
    )
    assert result is None
    rows = [line.split('\t') for line in capsys.readouterr().out.splitlines()]
    decayed = {path for word, path in rows if word == 'decayed'}
    exempt = {path for word, path in rows if word == 'exempt'}
    assert len(decayed) + len(exempt) == len(rows)
    ends = {path.rpartition('/')[2] for path in exempt}
    if decay_all:
        assert not exempt
    else:
        assert ends == {'gamma', 'beta', 'bias'}
        assert {path.rpartition('/')[2] for path in decayed} == {'kernel'}
    # 19 convolutions and the dense layer; each convolution has a batch norm.
    assert len(rows) == 20 + 2 * 19 + 1


def loss_of_run(**values):
    result = kbench.run(
        model='resnet20',
        device='cpu',
        batch_size=2,
        num_batches=1,
        num_warmup_batches=0,
        **values,
    )
    return result.losses[0]


def test_weight_decay_all_decays_the_scales_too(capsys):
    plain = loss_of_run(weight_decay=0.0)
    some = loss_of_run(weight_decay=0.5)
    whole = loss_of_run(weight_decay=0.5, weight_decay_all=True)
    # Gammas are ones, 16 of 7 layers, 32 of 6, 64 of 6; the others zeros.
    gammas = 16 * 7 + 32 * 6 + 64 * 6
    assert whole - some == pytest.approx(0.25 * gammas, rel=1e-5)
    assert some > plain
    assert '+ 0.5 * L2' in capsys.readouterr().out


def test_a_rule_with_its_own_decay_has_no_l2_in_the_loss(capsys):
    plain = loss_of_run(weight_decay=0.0, optimizer='adamw')
    decayed = loss_of_run(weight_decay=0.5, optimizer='adamw')
    assert plain == decayed
    assert 'L2' not in capsys.readouterr().out
