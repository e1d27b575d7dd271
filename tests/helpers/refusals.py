"""What the tests of refusals share."""

import pytest


def message(call, *arguments, **options) -> str:
    """The error of a call: a plain ValueError of a single line."""
    with pytest.raises(ValueError, match=r".") as caught:
        call(*arguments, **options)
    assert type(caught.value) is ValueError
    assert "\n" not in str(caught.value)
    return str(caught.value)
