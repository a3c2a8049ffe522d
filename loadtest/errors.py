"""Errors that end the command with one sentence. Knows exit codes; knows nothing of what failed."""


class LoadError(Exception):
    """The measurement could not be made: the server is away, a file cannot be read."""

    exit_code = 1


class UsageError(LoadError):
    """A flag is wrong; the message names it."""

    exit_code = 2
