"""The error that is the user's to mend."""


class UserError(ValueError):
    """Its text is one line that names what is wrong and what is legal.

    The shell prints the line and ends with a non-zero status, without a
    traceback.
    """
