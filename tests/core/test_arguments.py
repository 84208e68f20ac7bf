"""The checks of arguments: all numbers within are let through, none outside, and files only where they can be made."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim2real.arguments import check_number, check_seed, check_writable
from sim2real.errors import InputError


def accepts(value: float, *, low: float, high: float, inclusive: bool) -> bool:
    try:
        check_number("--x", value, low=low, high=high, inclusive=inclusive)
    except InputError:
        return False
    return True


@given(st.floats(), st.floats(-10, 10), st.floats(11, 1e9), st.booleans())
def test_a_number_passes_exactly_if_it_lies_within(value: float, low: float, high: float, inclusive: bool) -> None:
    expected = math.isfinite(value) and (low <= value if inclusive else low < value) and value <= high
    assert accepts(value, low=low, high=high, inclusive=inclusive) == expected
    assert not accepts(low, low=low, high=high, inclusive=False)
    assert accepts(low, low=low, high=high, inclusive=True)
    assert accepts(high, low=low, high=high, inclusive=inclusive)


@pytest.mark.parametrize(("value", "told"), [(math.nan, "nan"), (math.inf, "inf"), (-1.0, "-1"), (1e300, "1e300")])
def test_the_error_names_the_option_what_is_allowed_and_what_came(value: float, told: str) -> None:
    message = f"--seconds: expected a number > 0 and at most 1e6, got {told}"
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        check_number("--seconds", value)
    with pytest.raises(InputError, match=r"expected a number at least 0\.5 and at most 2, got"):
        check_number("--seconds", value, low=0.5, high=2, inclusive=True)


@given(st.integers())
def test_a_seed_has_63_bits(value: int) -> None:
    if 0 <= value < 2**63:
        check_seed(value)
    else:
        with pytest.raises(InputError, match=r"^--seed: expected an integer from 0 to 2\^63 - 1, got "):
            check_seed(value)


def test_a_file_can_be_made_beside_others_in_new_folders_and_over_an_old_one(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("kept")
    for place in ("new", "old", "a/b/new"):
        check_writable("--latency", tmp_path / place)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old").read_text() == "kept"


def test_a_file_cannot_be_made_in_place_of_a_folder_below_a_file_or_without_permission(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = {
        str(tmp_path): "got a folder",
        str(tmp_path / "file" / "new"): "cannot be written .Not a directory",
        # Nobody may make files there, not even root.
        "/proc/sim2real/new": "cannot be written",
        str(tmp_path / ("x" * 250)): "cannot be written .File name too long",
    }
    for place, told in refused.items():
        with pytest.raises(InputError, match=rf"^--latency {re.escape(place)}: .*{told}"):
            check_writable("--latency", Path(place))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
