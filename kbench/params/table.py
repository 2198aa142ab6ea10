"""Every parameter of kbench, one row each.

A row is the only place that knows a parameter's name, type, default, range
and help text. `Params`, the command line and `parameters.json` follow from it.
"""

import dataclasses
from typing import Any

_TYPES = {'string': str, 'int': int, 'float': float, 'bool': bool}

ACTIVE = 'active'  # changes what runs
MAPPED = 'mapped'  # selects the modern equivalent of a mechanism now gone
IGNORED = 'ignored'  # accepted, with one notice when set


@dataclasses.dataclass(frozen=True)
class Param:
    """One parameter.

    Attributes:
        name: name of the flag and of the attribute of `Params`.
        type: `string`, `int`, `float` or `bool`.
        default: value when nothing is said; may be None.
        help: what it does, with unit and meaning of special values.
        group: heading under which `--help` lists it.
        kind: `active`, `mapped` or `ignored`.
        choices: the legal values, when they can be listed.
        minimum: lowest legal value; `exclusive` excludes it.
        maximum: highest legal value.
        alias: a second name of the same parameter.
    """

    name: str
    type: str
    default: Any
    help: str
    group: str = ''
    kind: str = ACTIVE
    choices: tuple = ()
    minimum: float | None = None
    maximum: float | None = None
    exclusive: bool = False
    alias: str = ''

    @property
    def python_type(self) -> type:
        """The Python type of a value that is not None."""
        return _TYPES[self.type]


def _string(name, default, text, **kwargs):
    return Param(name, 'string', default, text, **kwargs)


def _int(name, default, text, minimum=0, **kwargs):
    return Param(name, 'int', default, text, minimum=minimum, **kwargs)


def _float(name, default, text, minimum=0.0, **kwargs):
    return Param(name, 'float', default, text, minimum=minimum, **kwargs)


def _bool(name, default, text, **kwargs):
    return Param(name, 'bool', default, text, **kwargs)


VARIABLE_UPDATES = (
    'parameter_server',
    'replicated',
    'independent',
    'distributed_replicated',
    'distributed_all_reduce',
    'collective_all_reduce',
)
# What a mode can run on: one process (local), parameter servers and workers
# (servers), or workers that are all alike (peers).
TOPOLOGIES = {
    'parameter_server': ('local', 'servers'),
    'replicated': ('local',),
    'independent': ('local',),
    'distributed_replicated': ('servers',),
    'distributed_all_reduce': ('local', 'peers'),
    'collective_all_reduce': ('local', 'peers'),
}

# Modes that add gradients by all_reduce_spec.
ALL_REDUCE = ('replicated', 'distributed_all_reduce', 'collective_all_reduce')

_GROUPS = {
    'What runs': (
        _string(
            'model',
            'trivial',
            'Name of the model; docs/models.md lists them.',
        ),
        _string(
            'list_models',
            None,
            'Print the table of models and end; a value such as resnet* '
            'filters the names.',
        ),
        _string(
            'format',
            'text',
            'Form of the table of models.',
            choices=('text', 'json'),
        ),
        _bool(
            'eval',
            False,
            'Evaluate the checkpoint in train_dir instead of training. What '
            'is not set (model, data) comes from its parameters.json.',
        ),
        _int(
            'eval_interval_secs',
            0,
            'With eval: seconds between looks for a newer checkpoint, until '
            'the training has ended; 0 evaluates once.',
        ),
        _int(
            'eval_timeout_secs',
            0,
            'With eval_interval_secs: end when no new checkpoint has come '
            'for so many seconds; 0 waits for the end of the training.',
        ),
        _int(
            'num_eval_batches',
            None,
            'Evaluate only so many batches of the held-out images.',
            minimum=1,
        ),
        _int(
            'eval_during_training_every_n_steps',
            None,
            'Evaluate in the middle of a training, every so many steps and '
            'after the last one. The time is not counted.',
            minimum=1,
        ),
        _float(
            'eval_during_training_every_n_epochs',
            None,
            'The same, every so many epochs.',
            exclusive=True,
        ),
        _float(
            'stop_at_top_1_accuracy',
            None,
            'End the training when an evaluation during it finds this share '
            'of the images right.',
            maximum=1.0,
        ),
        _bool(
            'forward_only',
            False,
            'Benchmark inference: no gradients, no update.',
        ),
        _bool(
            'benchmark_input',
            False,
            'Measure the input pipeline alone: images/s, and the share of '
            'each stage.',
        ),
        _bool(
            'benchmark_all_reduce',
            False,
            'Measure how fast gradients are added over the devices, without '
            'training: all_reduce_spec, or every algorithm in turn. What '
            'cannot run here is listed with the reason.',
        ),
        _string(
            'all_reduce_sizes',
            '',
            'With benchmark_all_reduce: bytes of the tensors to add, such as '
            "4k,1M,64M; empty for the model's gradients.",
        ),
        _bool(
            'print_training_accuracy',
            False,
            'Show top-1 and top-5 accuracy of the training batches on the '
            'step lines.',
        ),
        _int(
            'batch_size',
            0,
            "Images per device and step; 0 takes the model's default.",
        ),
        _int(
            'batch_group_size',
            1,
            'Batches that the input pipeline prepares ahead, per device.',
            minimum=1,
        ),
        _int(
            'num_batches',
            100,
            'Timed steps after the warm-up. Leave it unset with num_epochs.',
            minimum=1,
        ),
        _float(
            'num_epochs',
            None,
            'Length of the run in epochs, in place of num_batches.',
            exclusive=True,
        ),
        _int(
            'num_warmup_batches',
            None,
            'Steps before the timing starts; they train too. Unset: 10, or '
            'more where autotune_threshold asks for it.',
        ),
        _int(
            'autotune_threshold',
            None,
            'Sets TF_AUTOTUNE_THRESHOLD: how often cuDNN times an algorithm '
            'before it chooses. Raises the default warm-up.',
            minimum=1,
        ),
        _int(
            'num_gpus',
            1,
            'Compute devices of this process; with device=cpu logical CPU '
            'devices.',
            minimum=1,
        ),
        _string(
            'gpu_indices',
            '',
            'Comma-separated indices of the physical GPUs, in ring order.',
        ),
        _int('display_every', 10, 'Steps between step lines.', minimum=1),
        _float(
            'moving_average_decay',
            None,
            'Keep an exponential moving average of all weights with decay '
            'min(decay, (1+n)/(10+n)) at step n; evaluation uses it.',
            maximum=1.0,
        ),
    ),
    'Data': (
        _string(
            'data_dir',
            None,
            'Folder of the data; unset: synthetic data, or the digits that '
            'come along with data_name=digits.',
        ),
        _string(
            'data_name',
            None,
            'Which data set it is; unset: recognised from the folder.',
        ),
        _string(
            'data_subset',
            'train',
            'The split to read. With eval unset means the validation split.',
            choices=('train', 'validation', 'test'),
        ),
        _int(
            'num_classes',
            None,
            'Classes of the model, where the data should not say.',
            minimum=2,
        ),
        _int(
            'num_train_examples',
            None,
            'Images of a training epoch, where the data should not say.',
            minimum=1,
        ),
        _int(
            'num_eval_examples',
            None,
            'Evaluate only so many of the held-out images.',
            minimum=1,
        ),
        _bool(
            'download',
            False,
            'Let TFDS download and prepare data_name into data_dir.',
        ),
        _string(
            'resize_method',
            'bilinear',
            'How training images get their size; round_robin goes through '
            'the others by position in the batch.',
            choices=(
                'crop',
                'nearest',
                'bilinear',
                'bicubic',
                'area',
                'round_robin',
            ),
        ),
        _string(
            'eval_method',
            'vgg',
            'Evaluation crop. vgg: shorter side to 1.15 times the image '
            'size, centre crop; inception: centre 87.5 %, then resize.',
            choices=('vgg', 'inception'),
        ),
        _bool(
            'distortions',
            True,
            'Random box crop and colour distortion in training; false '
            'leaves only the random crop and flip.',
        ),
        _bool(
            'use_datasets',
            True,
            'Accepted for old command lines: tf.data is the only pipeline.',
            kind=IGNORED,
        ),
        _bool(
            'cache_data',
            False,
            'Read one record, keep it in memory and repeat it, which takes '
            'the storage out of a measurement.',
        ),
        _bool(
            'fuse_decode_and_crop',
            True,
            'Decode only the part of a JPEG that the crop keeps.',
        ),
        _bool(
            'distort_color_in_yiq',
            False,
            'Distort hue and saturation in YIQ in place of HSV.',
        ),
        _string(
            'augment',
            None,
            'Further random operations on each training image.',
            choices=('randaugment', 'autoaugment'),
        ),
        _float(
            'mixup',
            0.0,
            'Parameter of the beta distribution that mixes two images of a '
            'batch; 0: off.',
        ),
        _float(
            'cutmix',
            0.0,
            'The same for a rectangle of one image pasted into another.',
            maximum=1.0,
        ),
        _float(
            'random_erasing',
            0.0,
            'Probability that a rectangle of a training image is erased.',
            maximum=1.0,
        ),
        _bool(
            'skip_bad_images',
            False,
            'Skip and count images that cannot be read, in place of ending.',
        ),
        _string(
            'data_service',
            None,
            'host:port of the dispatcher of a tf.data service whose workers '
            'run the training pipeline.',
        ),
    ),
    'Devices and runtime': (
        _string(
            'device',
            None,
            'cpu or gpu; unset: gpu where there is one, else cpu.',
            choices=('cpu', 'gpu'),
        ),
        _string(
            'data_format',
            None,
            'NHWC or NCHW; unset: NCHW for float32 on a GPU, else NHWC.',
            choices=('NHWC', 'NCHW'),
        ),
        _string(
            'local_parameter_device',
            'gpu',
            'Where parameter_server without a cluster keeps the variables; '
            'on a machine without GPU always the cpu.',
            choices=('cpu', 'gpu'),
        ),
        _int(
            'num_intra_threads',
            None,
            'Threads within an operation; 0: the runtime chooses. Unset: 1 '
            'where the host does nothing but read images, else 0.',
        ),
        _int(
            'num_inter_threads',
            0,
            'Threads across operations; 0: the runtime chooses.',
        ),
        _string(
            'trace_file',
            None,
            'Write a profile of a few steps after the warm-up: a Chrome '
            'trace where the name ends in .json or .json.gz, else a '
            'TensorBoard profile folder. Three untimed steps are added.',
        ),
        _string(
            'tfprof_file',
            None,
            'Write a table of the time by operation type over the same steps, '
            'as text.',
        ),
        _string(
            'graph_file',
            None,
            'Write the graph of the train step, as text where the name '
            'ends in txt.',
        ),
        _float(
            'gpu_memory_frac_for_testing',
            0.0,
            "Fraction of each GPU's memory that may be used; 0: all of it.",
            maximum=1.0,
        ),
        _bool(
            'use_tf_layers',
            True,
            'Accepted for old command lines: Keras layers are the only ones.',
            kind=IGNORED,
        ),
        _int(
            'tf_random_seed',
            1234,
            'Seed of weights, data order and augmentation: the same seed '
            'gives the same losses.',
        ),
        _bool(
            'winograd_nonfused',
            True,
            'Sets TF_ENABLE_WINOGRAD_NONFUSED.',
        ),
        _bool('sync_on_finish', False, 'Sets TF_SYNC_ON_FINISH.'),
        _bool(
            'staged_vars',
            False,
            'parameter_server only: compute gradients on weights one step '
            'old, so that fetching them overlaps computing.',
        ),
        _bool(
            'force_gpu_compatible',
            True,
            'Accepted for old command lines: TensorFlow 2 pins what it '
            'copies to a GPU.',
            kind=IGNORED,
        ),
        _bool(
            'xla',
            False,
            'Compile the computation of each replica with XLA. Slower on CPUs.',
        ),
        _bool(
            'deterministic',
            False,
            'Only deterministic operations, on GPUs too.',
        ),
        _bool(
            'mkl',
            False,
            'Set the three KMP_ variables below and OMP_NUM_THREADS '
            '(num_intra_threads, if set) before TensorFlow starts.',
        ),
        _int('kmp_blocktime', 30, 'KMP_BLOCKTIME, in milliseconds.'),
        _string(
            'kmp_affinity',
            'granularity=fine,verbose,compact,1,0',
            'KMP_AFFINITY.',
        ),
        _int('kmp_settings', 1, 'KMP_SETTINGS, 0 or 1.', maximum=1),
    ),
    'Optimisation': (
        _string(
            'optimizer',
            'sgd',
            'sgd, momentum (Nesterov), rmsprop, adam, adamw, lars or lamb.',
            choices=(
                'sgd',
                'momentum',
                'rmsprop',
                'adam',
                'adamw',
                'lars',
                'lamb',
            ),
        ),
        _float(
            'learning_rate',
            None,
            "Initial learning rate; unset: the model's own rate and schedule.",
            alias='init_learning_rate',
        ),
        _float(
            'num_epochs_per_decay',
            0.0,
            'Multiply the learning rate, every so many epochs, ...',
        ),
        _float(
            'learning_rate_decay_factor',
            0.0,
            '... by this factor. Both or neither, with learning_rate.',
        ),
        _float(
            'minimum_learning_rate',
            0.0,
            'Floor of that decay, and end of learning_rate_schedule=cosine.',
        ),
        _string(
            'piecewise_learning_rate_schedule',
            None,
            'lr0;epoch1;lr1;epoch2;lr2...: lr0 until epoch1, then lr1, ...',
        ),
        _float(
            'num_learning_rate_warmup_epochs',
            0.0,
            'Epochs in which the rate rises linearly from 0 to its value.',
        ),
        _string(
            'learning_rate_schedule',
            None,
            'cosine: from learning_rate down to minimum_learning_rate over '
            'the length of the run.',
            choices=('cosine',),
        ),
        _float(
            'momentum',
            0.9,
            'Momentum of momentum and lars.',
            maximum=1.0,
        ),
        _float('rmsprop_decay', 0.9, 'Decay of rmsprop.', maximum=1.0),
        _float('rmsprop_momentum', 0.9, 'Momentum of rmsprop.', maximum=1.0),
        _float(
            'rmsprop_epsilon',
            1.0,
            'Epsilon of rmsprop, inside the square root.',
        ),
        _float(
            'gradient_clip',
            None,
            'Clip each element of the mean gradient to [-c, c].',
            exclusive=True,
        ),
        _float(
            'gradient_clip_norm',
            None,
            'Scale the mean gradient down to this global norm.',
            exclusive=True,
        ),
        _int(
            'num_grad_accumulation',
            1,
            'Batches of batch_size images whose mean gradient makes one '
            'update.',
            minimum=1,
        ),
        _float(
            'weight_decay',
            0.00004,
            'Factor of the L2 loss, counted once whatever the number of '
            'devices; with adamw, lars and lamb the factor of their own '
            'decay. Biases and the scales and offsets of batch norms are '
            'exempt.',
        ),
        _bool(
            'weight_decay_all',
            False,
            'Decay every trainable variable, as tf_cnn_benchmarks did.',
        ),
        _bool(
            'list_weight_decay',
            False,
            'Print which variables are decayed, and end.',
        ),
        _float(
            'label_smoothing',
            0.0,
            'Share of the target that is spread over all classes.',
            maximum=1.0,
        ),
        _bool(
            'stop_on_nan',
            False,
            'End the run with an error when the loss is not finite.',
        ),
        _int(
            'recover_on_nan',
            0,
            'When the loss is not finite, go back to the last checkpoint and '
            'on behind the batch that did it, at most so many times.',
        ),
    ),
    'Precision': (
        _bool(
            'use_fp16',
            False,
            'Compute in float16, keep variables in float32.',
        ),
        _float(
            'fp16_loss_scale',
            None,
            "Fixed loss scale; unset: the model's own; 1: none.",
            minimum=1.0,
        ),
        _bool(
            'fp16_enable_auto_loss_scale',
            False,
            'Dynamic loss scale: halved on overflow, when the step is '
            'skipped, and doubled after fp16_inc_loss_scale_every_n steps '
            'without.',
        ),
        _int(
            'fp16_inc_loss_scale_every_n',
            1000,
            'Good steps before the dynamic loss scale doubles.',
            minimum=1,
        ),
        _bool('fp16_vars', False, 'Keep the variables in float16 too.'),
        _bool(
            'fp16_compress_gradients',
            False,
            'Send gradients between devices in float16.',
        ),
        _string(
            'compute_dtype',
            None,
            'float32, bfloat16 or float16; use_fp16 is short for the last.',
            choices=('float32', 'bfloat16', 'float16'),
        ),
    ),
    'Variable updates and clusters': (
        _string(
            'variable_update',
            'parameter_server',
            'How the variables are distributed and updated.',
            choices=VARIABLE_UPDATES,
            kind=MAPPED,
        ),
        _string(
            'all_reduce_spec',
            None,
            'How gradients are added over the devices: '
            'alg[#shards][/alg[#shards]][:limit:spec], with limits such as '
            '32k; docs/clusters.md lists what each becomes.',
            kind=MAPPED,
        ),
        _string(
            'job_name',
            '',
            'Role of this process: ps, worker or controller.',
            choices=('', 'ps', 'worker', 'controller'),
        ),
        _string(
            'ps_hosts',
            '',
            'Comma-separated host:port of the parameter servers.',
        ),
        _string(
            'worker_hosts',
            '',
            'Comma-separated host:port of the workers.',
        ),
        _string(
            'controller_host',
            None,
            'host:port of the coordinator, where it is its own process.',
        ),
        _int(
            'task_index',
            0,
            'Index of this process within its job.',
        ),
        _string(
            'server_protocol',
            'grpc',
            'Protocol between the processes of a cluster.',
            choices=('grpc',),
        ),
        _bool(
            'cross_replica_sync',
            True,
            'False: asynchronous updates, in a parameter_server cluster: each '
            "worker's gradient is an update of its own.",
        ),
        _string(
            'cluster',
            '',
            'slurm: read the processes of the job from the variables of a '
            'Slurm step. Empty: from the host flags or TF_CONFIG.',
            choices=('', 'slurm'),
        ),
        _int(
            'slurm_ps',
            0,
            'With cluster=slurm: how many tasks are parameter servers; the '
            'others are workers.',
        ),
        _int(
            'ps_shard_bytes',
            0,
            'Variables above this many bytes are divided among the parameter '
            'servers, into parts of up to this size but no more than there '
            'are servers; 0 keeps each on one.',
        ),
        _int(
            'bytes_per_pack',
            0,
            'All-reduce: bytes that travel together; 0 lets all go at once.',
        ),
        _int(
            'collective_timeout_secs',
            300,
            'Seconds after which an all-reduce that a worker does not join '
            'fails.',
            minimum=1,
        ),
        _int(
            'cluster_timeout_secs',
            600,
            'Seconds to wait for the other processes at the start.',
            minimum=1,
        ),
    ),
    'Checkpoints, summaries, results': (
        _int(
            'summary_verbosity',
            0,
            '0 nothing; 1 scalars; 2 histogram of all gradients; 3 '
            'histograms of each gradient and variable, and images. Needs '
            'save_summaries_steps.',
            maximum=3,
        ),
        _int(
            'save_summaries_steps',
            0,
            'Steps between summaries for TensorBoard, in train_dir; 0: none.',
        ),
        _int(
            'save_model_secs',
            0,
            'Seconds between checkpoints; 0: only at the end.',
        ),
        _int(
            'save_model_steps',
            None,
            'Steps between checkpoints.',
            minimum=1,
        ),
        _int(
            'max_ckpts_to_keep',
            5,
            'How many checkpoints stay; the older ones are removed.',
            minimum=1,
        ),
        _string(
            'train_dir',
            None,
            'Folder of checkpoints and parameters.json. A run that finds a '
            'checkpoint there resumes from it.',
        ),
        _string(
            'eval_dir',
            None,
            'Folder of evaluation results; unset: train_dir/eval.',
        ),
        _string(
            'ckpt_scope',
            None,
            'old:new renames the variables of a checkpoint when it is read: '
            'scope old becomes scope new.',
        ),
        _string(
            'checkpoint',
            None,
            'The checkpoint to evaluate or to go on from, instead of the '
            'newest of train_dir; with eval also a .keras or .h5 file of '
            'Keras, or a checkpoint of tf_cnn_benchmarks.',
        ),
        _string(
            'init_checkpoint',
            None,
            'Start a new training from the weights of this checkpoint or '
            'file of Keras, at step 0; a train_dir that holds checkpoints '
            'goes on from those.',
        ),
        _string(
            'ckpt_data_format',
            'NCHW',
            'In which layout a checkpoint of tf_cnn_benchmarks was trained.',
            choices=('NCHW', 'NHWC'),
        ),
        _string(
            'on_save_error',
            'warn',
            'When a checkpoint in the middle of a run cannot be written: go '
            'on with a warning, or stop.',
            choices=('warn', 'stop'),
        ),
        _string(
            'export',
            None,
            'Folder that gets a SavedModel and a .keras file of the weights '
            'at the end of a training, or with eval of the checkpoint.',
        ),
        _string(
            'result_storage',
            None,
            'Where the record of the run goes: a path that ends in .json or '
            '.jsonl, or a database URL such as sqlite:///runs.db.',
        ),
    ),
}

TABLE: dict[str, Param] = {
    row.name: dataclasses.replace(row, group=group)
    for group, rows in _GROUPS.items()
    for row in rows
}

ALIASES: dict[str, str] = {
    row.alias: row.name for row in TABLE.values() if row.alias
}
