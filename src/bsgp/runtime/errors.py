"""Errors that callers distinguish by type."""


class DivergenceError(RuntimeError):
    """A chain or an optimisation reached non-finite values."""

    def __init__(self, message: str, event: object = None):
        super().__init__(message)
        self.event = event
        """The event of the run that ended it, if there is one."""


class LostPeerError(RuntimeError):
    """Another process of the run no longer answers."""
