"""Networks in TensorFlow 1 with the names that tf_cnn_benchmarks gives."""

import collections

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1


class Net:
    """A network under construction.

    Args:
        images: NHWC placeholder.
        top: outer scope: `v`, or `v0` in the replicated modes.
    """

    def __init__(self, images, top='v'):
        self.x = images
        self.top = top
        self.scope = ''
        self.counts = collections.Counter()
        self.variables = {}

    def _number(self, kind):
        self.counts[kind] += 1
        return f'{kind}{self.counts[kind] - 1}'

    def _variable(self, name, shape):
        name = f'{self.top}/cg/{self.scope}{name}'
        start = np.random.default_rng(len(self.variables))
        end = name.rpartition('/')[2]
        if end in ('gamma', 'moving_variance'):
            value = start.uniform(0.5, 1.5, shape)
        else:
            fan_in = np.prod(shape[:-1]) if len(shape) > 1 else 100
            value = start.normal(0, fan_in**-0.5, shape)
        variable = v1.get_variable(
            name, initializer=value.astype(np.float32), use_resource=False
        )
        self.variables[name] = variable
        return variable

    def batch_norm(self, x, prefix='', scale=True, epsilon=1e-5):
        name = prefix + self._number('batchnorm')
        size = [x.shape[-1]]
        beta = self._variable(f'{name}/beta', size)
        gamma = tf.ones(size)
        if scale:
            gamma = self._variable(f'{name}/gamma', size)
        mean = self._variable(f'{name}/moving_mean', size)
        variance = self._variable(f'{name}/moving_variance', size)
        return tf.nn.batch_normalization(
            x, mean, variance, beta, gamma, epsilon
        )

    def conv(self, x, filters, size, stride=1, norm=True, relu=True):
        name = self._number('conv')
        shape = [size, size, x.shape[-1], filters]
        kernel = self._variable(f'{name}/conv2d/kernel', shape)
        if stride > 1:
            pad = (size - 1) // 2
            pads = [[0, 0], [pad, pad], [pad, pad], [0, 0]]
            x = tf.nn.conv2d(tf.pad(x, pads), kernel, stride, 'VALID')
        else:
            x = tf.nn.conv2d(x, kernel, 1, 'SAME')
        if norm:
            x = self.batch_norm(x, f'{name}/')
        else:
            x += self._variable(f'{name}/biases', [filters])
        return tf.nn.relu(x) if relu else x

    def affine(self, x, units, relu=True):
        name = self._number('affine')
        shape = [x.shape[-1], units]
        x = x @ self._variable(f'{name}/weights', shape)
        x += self._variable(f'{name}/biases', [units])
        return tf.nn.relu(x) if relu else x

    def block(self, x, depth, stride):
        """A bottleneck of version 1, its shortcut made first."""
        self.scope = self._number('resnet_v1') + '/'
        shortcut = x
        if x.shape[-1] != 4 * depth:
            shortcut = self.conv(x, 4 * depth, 1, stride, relu=False)
        x = self.conv(x, depth, 1, stride)
        x = self.conv(x, depth, 3)
        x = self.conv(x, 4 * depth, 1, relu=False)
        self.scope = ''
        return tf.nn.relu(shortcut + x)


def resnet50(net, num_classes):
    x = net.conv(net.x, 64, 7, 2)
    # At sizes where one side of padding equals two.
    x = tf.nn.max_pool2d(x, 3, 2, 'SAME')
    for stage, count in enumerate((3, 4, 6, 3)):
        for index in range(count):
            halves = index == 0 and stage > 0
            x = net.block(x, 64 * 2**stage, 2 if halves else 1)
    return net.affine(tf.reduce_mean(x, [1, 2]), num_classes, relu=False)


def vgg11(net, num_classes):
    x = net.x
    for filters, count in ((64, 1), (128, 1), (256, 2), (512, 2), (512, 2)):
        for _ in range(count):
            x = net.conv(x, filters, 3, norm=False)
        x = tf.nn.max_pool2d(x, 2, 2, 'VALID')
    x = tf.reshape(x, [-1, np.prod(x.shape[1:])])
    x = net.affine(net.affine(x, 4096), 4096)
    return net.affine(x, num_classes, relu=False)


def write(build, folder, num_classes, size, top='v'):
    """Writes a checkpoint of step 5 with tf.compat.v1.train.Saver.

    Returns:
        Images, and the logits that the network gives for them.
    """
    with tf.Graph().as_default():
        images = v1.placeholder(tf.float32, [2, size, size, 3])
        net = Net(images, top)
        logits = build(net, num_classes)
        step = v1.train.get_or_create_global_step()
        pixels = np.random.default_rng(0).uniform(-1, 1, images.shape)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(step.assign(5))
            v1.train.Saver(v1.global_variables()).save(
                session, f'{folder}/model.ckpt', 5, write_meta_graph=False
            )
            return pixels, session.run(logits, {images: pixels})


def random_values(shapes):
    """A random array for each name."""
    return {
        name: np.random.default_rng(number).normal(size=shape)
        for number, (name, shape) in enumerate(shapes.items())
    }


def write_names(shapes, folder):
    """Writes a checkpoint of random values; returns them by name."""
    values = random_values(shapes)
    with tf.Graph().as_default(), v1.Session() as session:
        for name, value in values.items():
            v1.get_variable(
                name,
                initializer=value.astype(np.float32),
                use_resource=False,
            )
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(
            session, f'{folder}/model.ckpt', 1, write_meta_graph=False
        )
    return values
