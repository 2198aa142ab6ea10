"""Parameters as values: the table, the checks, the file."""

import dataclasses
import json

import pytest

import kbench
from kbench import params as params_lib
from kbench.params import checks, table

# Name, type and default as the published contract has them; what kbench
# adds beyond it is not here.
CONTRACT = {
    'model': 'trivial',
    'eval': False,
    'eval_interval_secs': 0,
    'forward_only': False,
    'print_training_accuracy': False,
    'batch_size': 0,
    'batch_group_size': 1,
    'num_batches': 100,
    'num_epochs': None,
    'num_warmup_batches': None,
    'autotune_threshold': None,
    'num_gpus': 1,
    'gpu_indices': '',
    'display_every': 10,
    'moving_average_decay': None,
    'data_dir': None,
    'data_name': None,
    'data_subset': 'train',
    'resize_method': 'bilinear',
    'eval_method': 'vgg',
    'distortions': True,
    'use_datasets': True,
    'cache_data': False,
    'fuse_decode_and_crop': True,
    'distort_color_in_yiq': False,
    'device': None,
    'data_format': None,
    'local_parameter_device': 'gpu',
    'num_intra_threads': None,
    'num_inter_threads': 0,
    'trace_file': None,
    'graph_file': None,
    'gpu_memory_frac_for_testing': 0.0,
    'use_tf_layers': True,
    'tf_random_seed': 1234,
    'winograd_nonfused': True,
    'sync_on_finish': False,
    'staged_vars': False,
    'force_gpu_compatible': True,
    'xla': False,
    'mkl': False,
    'kmp_blocktime': 30,
    'kmp_affinity': 'granularity=fine,verbose,compact,1,0',
    'kmp_settings': 1,
    'optimizer': 'sgd',
    'learning_rate': None,
    'num_epochs_per_decay': 0.0,
    'learning_rate_decay_factor': 0.0,
    'minimum_learning_rate': 0.0,
    'piecewise_learning_rate_schedule': None,
    'num_learning_rate_warmup_epochs': 0.0,
    'momentum': 0.9,
    'rmsprop_decay': 0.9,
    'rmsprop_momentum': 0.9,
    'rmsprop_epsilon': 1.0,
    'gradient_clip': None,
    'weight_decay': 0.00004,
    'label_smoothing': 0.0,
    'use_fp16': False,
    'fp16_loss_scale': None,
    'fp16_enable_auto_loss_scale': False,
    'fp16_inc_loss_scale_every_n': 1000,
    'fp16_vars': False,
    'compute_dtype': None,
    'variable_update': 'parameter_server',
    'all_reduce_spec': None,
    'job_name': '',
    'ps_hosts': '',
    'worker_hosts': '',
    'controller_host': None,
    'task_index': 0,
    'server_protocol': 'grpc',
    'cross_replica_sync': True,
    'summary_verbosity': 0,
    'save_summaries_steps': 0,
    'save_model_secs': 0,
    'save_model_steps': None,
    'max_ckpts_to_keep': 5,
    'train_dir': None,
    'eval_dir': None,
    'ckpt_scope': None,
    'result_storage': None,
}


def test_names_and_defaults_are_the_contract():
    values = dataclasses.asdict(kbench.make_params())
    for name, default in CONTRACT.items():
        assert name in values
        assert values[name] == default and type(values[name]) is type(default)


def test_the_list_of_ignored_parameters_is_closed():
    ignored = {r.name for r in table.TABLE.values() if r.kind == table.IGNORED}
    assert ignored == {
        'use_tf_layers',
        'use_datasets',
        'force_gpu_compatible',
    }


@pytest.mark.parametrize('row', table.TABLE.values(), ids=lambda r: r.name)
def test_every_default_is_legal_and_explained(row):
    assert checks.check_value(row, row.default) == row.default
    assert row.help.endswith('.') and len(row.help) > 8


def test_params_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        kbench.make_params().model = 'vgg16'


def test_zero_is_a_value():
    params = kbench.make_params(
        num_warmup_batches=0, weight_decay=0, learning_rate=0
    )
    assert params.num_warmup_batches == 0
    assert params.weight_decay == 0.0 and params.learning_rate == 0.0


@pytest.mark.parametrize(
    'values',
    [
        {'num_gpus': True},
        {'num_gpus': 1.0},
        {'num_gpus': '1'},
        {'xla': 1},
        {'model': 3},
        {'model': None},
        {'learning_rate': True},
        {'learning_rate': float('inf')},
        {'gradient_clip': 0.0},
        {'label_smoothing': -0.1},
        {'summary_verbosity': 4},
        {'init_learning_rate': 0.1, 'learning_rate': 0.2},
        {'trace_file': 'a.json', 'eval': True, 'train_dir': 'a'},
        {'variable_update': 'horovod'},
        {'gradient_clip': 1.0, 'gradient_clip_norm': 1.0},
    ],
)
def test_refused(values):
    with pytest.raises(kbench.UserError) as caught:
        kbench.make_params(**values)
    text = str(caught.value)
    assert '\n' not in text
    assert any(f'--{name}' in text for name in [*values, 'learning_rate'])


def test_whole_numbers_are_fine_where_a_float_is_wanted():
    value = kbench.make_params(momentum=1).momentum
    assert value == 1.0 and type(value) is float


def test_an_empty_string_is_none_where_that_is_the_default():
    assert kbench.make_params(trace_file='').trace_file is None
    for values in ({'num_batches': ''}, {'optimizer': ''}):
        with pytest.raises(kbench.UserError):
            kbench.make_params(**values)


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    path = tmp_path / 'parameters.json'
    path.mkdir()
    with pytest.raises(kbench.UserError, match=f'{path} cannot be written'):
        kbench.save_params(kbench.make_params(), str(tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ['parameters.json']


def test_saved_and_loaded_parameters_are_equal(tmp_path):
    params = kbench.make_params(
        model='vgg16', learning_rate=0.1, data_name='cifar10', xla=True
    )
    path = kbench.save_params(params, str(tmp_path))
    assert path == str(tmp_path / 'parameters.json')
    assert kbench.load_params(str(tmp_path)) == params
    assert [p.name for p in tmp_path.iterdir()] == ['parameters.json']


@pytest.mark.parametrize(
    'text, part',
    [
        ('[]', 'object'),
        ('{"modle": "x"}', '--model'),
        ('{"num_gpus": "x"}', '--num_gpus'),
        ('{', 'JSON'),
    ],
)
def test_a_bad_file_is_named(text, part, tmp_path):
    (tmp_path / 'parameters.json').write_text(text)
    with pytest.raises(kbench.UserError) as caught:
        kbench.load_params(str(tmp_path))
    assert str(tmp_path) in str(caught.value) and part in str(caught.value)


def test_evaluation_inherits_what_it_is_not_told(tmp_path):
    trained = kbench.make_params(
        model='lenet',
        data_name='digits',
        use_fp16=True,
        moving_average_decay=0.9,
        num_gpus=4,
        train_dir=str(tmp_path),
    )
    kbench.save_params(trained, str(tmp_path))
    told = {'eval': True, 'train_dir': str(tmp_path), 'batch_size': 7}
    params = kbench.make_params(**params_lib.inherit_for_eval(told))
    assert params.model == 'lenet' and params.data_name == 'digits'
    assert params.use_fp16 and params.moving_average_decay == 0.9
    assert params.batch_size == 7 and params.num_gpus == 1
    told['compute_dtype'] = 'float32'
    params = kbench.make_params(**params_lib.inherit_for_eval(told))
    assert params.compute_dtype == 'float32' and not params.use_fp16


def test_a_file_of_the_past_with_fewer_names_loads(tmp_path):
    (tmp_path / 'parameters.json').write_text(json.dumps({'model': 'vgg11'}))
    assert kbench.load_params(str(tmp_path)).model == 'vgg11'


def test_environment_variables():
    plain = params_lib.environment(kbench.make_params())
    assert plain == {
        'TF_ENABLE_WINOGRAD_NONFUSED': '1',
        'TF_SYNC_ON_FINISH': '0',
    }
    full = params_lib.environment(
        kbench.make_params(
            mkl=True,
            num_intra_threads=3,
            kmp_blocktime=1,
            autotune_threshold=2,
            winograd_nonfused=False,
            sync_on_finish=True,
        )
    )
    assert full == {
        'TF_ENABLE_WINOGRAD_NONFUSED': '0',
        'TF_SYNC_ON_FINISH': '1',
        'TF_AUTOTUNE_THRESHOLD': '2',
        'KMP_BLOCKTIME': '1',
        'KMP_AFFINITY': 'granularity=fine,verbose,compact,1,0',
        'KMP_SETTINGS': '1',
        'OMP_NUM_THREADS': '3',
    }
