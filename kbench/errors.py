"""The error that is the user's to mend."""


class UserError(ValueError):
    """Its text is one line that names what is wrong and what is legal.

    The shell prints the line and ends with a non-zero status, without a
    traceback.
    """


class Preempted(UserError):
    """The run was asked to end early, and saved what it could."""

    # 128 + 15: what a shell shows of a process that SIGTERM ended.
    exit_status = 143


class Interrupted(Preempted):
    """The user pressed Ctrl-C."""

    # 128 + 2: what a shell shows of a process that SIGINT ended.
    exit_status = 130
