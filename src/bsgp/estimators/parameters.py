"""Signatures of constructors: an estimator's own parameters beside those of its base."""

import inspect
from collections.abc import Callable


def adds_to(base: Callable) -> Callable[[Callable], Callable]:
    """Show the parameters of a `base` constructor instead of `**parameters`, before those of the decorated one.

    scikit-learn reads an estimator's parameters from this signature.
    """

    def decorate(init: Callable) -> Callable:
        own = inspect.signature(init).parameters.values()
        added = [one for one in own if one.kind is inspect.Parameter.KEYWORD_ONLY]
        both = [*inspect.signature(base).parameters.values(), *added]
        setattr(init, "__signature__", inspect.Signature(both))  # noqa: B010, functions have it without declaring it
        return init

    return decorate
