"""What the comparison with the golden record calls a difference."""

from __future__ import annotations

import pytest

from tests.golden.golden import entries_of, main
from tests.golden.record import differences, of_exposure
from tests.helpers.repair.contract_exposures import shuffled_terms
from tests.helpers.repair.toy_exposures import toy_exposure


def test_the_order_of_groups_and_terms_is_not_recorded():
    exposure = toy_exposure("mixhop")
    assert not [*differences(of_exposure(exposure), of_exposure(shuffled_terms(exposure)[0]))]


@pytest.mark.parametrize(
    ("expected", "found", "said"),
    [
        ([1.0, 2.0], [1.0, 2.0 + 1e-10], 0),
        ([1.0, 2.0], [1.0, 2.0 + 1e-8], 1),
        ([1e-300, 2e-300], [1e-300, 3e-300], 1),
        ({"margin": [1.0]}, {"margin": [1.0 + 5e-8]}, 0),
        ({"verdict": "+-"}, {"verdict": "++"}, 1),
        ({"a": [1.0]}, {"a": [1.0, 1.0]}, 1),
        ({"a": 1}, {"b": 1}, 2),
    ],
)
def test_what_counts_as_a_difference(expected, found, said):
    assert len([*differences(expected, found)]) == said


def test_a_part_that_does_not_exist_is_named(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["nonsense"])
    assert "nonsense" in capsys.readouterr().err
    assert "ReLU" in entries_of("head-gallery")
