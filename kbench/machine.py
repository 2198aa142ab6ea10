"""The machine and the software of a run, for its record."""

import importlib.metadata
import os
import platform
import socket
import subprocess
import sys
from typing import Any

# Environment variables that change what TensorFlow and its libraries do.
_PREFIXES = ('TF_', 'NCCL_', 'KMP_', 'OMP_', 'XLA_', 'CUDA_VISIBLE_')
_PACKAGES = (
    'tensorflow',
    'keras',
    'numpy',
    'absl-py',
    'tensorflow-datasets',
    'protobuf',
)


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that compute."""
    found = {'python': platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    # Only once it is there: a run may end before it needs TensorFlow.
    tf = sys.modules.get('tensorflow')
    if tf is not None:
        build = tf.sysconfig.get_build_info()
        for name in ('cuda_version', 'cudnn_version'):
            if build.get(name):
                found[name] = str(build[name])
    return found


def variables() -> dict[str, str]:
    """The environment variables that matter to a measurement."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(_PREFIXES)
    }


def _processor() -> str:
    try:
        with open('/proc/cpuinfo', encoding='utf-8') as file:
            for line in file:
                if line.startswith('model name'):
                    return line.partition(':')[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
    except (ValueError, OSError):
        return None


def _usable_processors() -> int:
    if hasattr(os, 'sched_getaffinity'):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def hardware() -> dict[str, Any]:
    """Processors, memory in bytes, and GPUs by name."""
    found = {
        'processor': _processor(),
        'processors': os.cpu_count(),
        'usable_processors': _usable_processors(),
        'memory_bytes': _memory_bytes(),
    }
    tf = sys.modules.get('tensorflow')
    if tf is not None:
        found['gpus'] = [
            tf.config.experimental.get_device_details(gpu).get(
                'device_name', gpu.name
            )
            for gpu in tf.config.list_physical_devices('GPU')
        ]
    return found


def threads() -> dict[str, int]:
    """Sizes of TensorFlow's thread pools; 0 left the choice to it."""
    tf = sys.modules.get('tensorflow')
    if tf is None:
        return {}
    return {
        'intra_op': tf.config.threading.get_intra_op_parallelism_threads(),
        'inter_op': tf.config.threading.get_inter_op_parallelism_threads(),
    }


def host() -> dict[str, str]:
    """Name and system of this machine."""
    return {'name': socket.gethostname(), 'system': platform.platform()}


def _git(*arguments):
    return subprocess.run(
        ['git', *arguments],
        cwd=os.path.dirname(os.path.abspath(__file__)),
        capture_output=True,
        text=True,
        check=True,
        timeout=10,
    ).stdout.strip()


def commit() -> dict[str, Any] | None:
    """The commit that kbench runs from; None where it is installed.

    Returns:
        `id`, and `modified`: whether files of the package differ from it.
    """
    try:
        # An installed copy may lie within a checkout of something else.
        _git('ls-files', '--error-unmatch', os.path.basename(__file__))
        return {
            'id': _git('rev-parse', 'HEAD'),
            'modified': bool(_git('status', '--porcelain', '--', '.')),
        }
    except (OSError, subprocess.SubprocessError):
        return None
