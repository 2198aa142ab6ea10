"""The command line: `python -m kbench`, `kbench`."""

import os
import sys
from collections.abc import Sequence

import kbench
from kbench import commands, errors, flags, reporting, serve


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line.

    Args:
        argv: arguments without the program name; None: those of the process.

    Returns:
        The exit status: 0, 1 when a run failed, 2 when it was refused, 130
        after Ctrl-C, 143 after SIGTERM.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    reporting.route_logging()
    status = _status(arguments)
    if serve.joined:
        serve.leave(status)
    return status


def _status(arguments: list[str]) -> int:
    try:
        return _main(arguments)
    except errors.UserError as error:
        reporting.error(error)
        if isinstance(error, errors.Preempted):
            return error.exit_status
        return 2 if isinstance(error, kbench.params_lib.ParamsError) else 1
    except BrokenPipeError:
        # The reader of our output is gone: nothing more to say, not even
        # when the interpreter flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        reporting.error('interrupted')
        return 130


def _main(arguments: list[str]) -> int:
    command = commands.find(arguments)
    if command is not None:
        return command(arguments[1:])
    if {'-h', '--help', '-help'} & set(arguments):
        reporting.out(flags.help_text('python -m kbench'))
        return 0
    rest = flags.parse(['kbench', *arguments])
    if rest:
        raise kbench.params_lib.ParamsError(
            f'{rest[0]!r} is no command and no --parameter; commands are '
            f'{", ".join(commands.NAMES)}'
        )
    kbench.run_params(flags.make_params_from_flags())
    return 0


if __name__ == '__main__':
    sys.exit(main())
