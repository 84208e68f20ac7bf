"""An optional library that is not there: what a user of the packages is told. About 0.1 s."""

from __future__ import annotations

import pytest

from sim2real.errors import MissingExtraError
from sim2real.extras import require


def test_what_is_there_is_imported() -> None:
    assert require("json.decoder", "edge").JSONDecoder


@pytest.mark.parametrize("module", ["a_library_that_is_not_there", "json.a_part_that_is_not_there"])
def test_what_is_not_there_is_named_with_what_brings_it(module: str) -> None:
    with pytest.raises(MissingExtraError) as caught:
        require(module, "edge")
    assert str(caught.value) == f"{module} is not installed: needs the 'edge' extra: pip install 'sim2real[edge]'"
