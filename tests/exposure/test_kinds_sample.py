"""A sample of the campaign of spellings; `make campaign ARGS="--only kinds"` runs all of them."""

from __future__ import annotations

import pytest

from tests.campaigns.kinds import cases, judged

SAMPLE = list(cases())[::12]


@pytest.mark.parametrize("name", SAMPLE)
def test_reweighted_models_say_what_their_exposures_say(name):
    assert judged(cases()[name], seed=1) in ("exact", "held", "refused")
