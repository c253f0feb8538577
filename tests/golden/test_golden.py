"""A sample of the golden record, all of what users see; ``make golden`` compares the rest, too."""

from __future__ import annotations

import pytest

from tests.golden.golden import compare, entries_of, found_in
from tests.golden.record import differences
from tests.helpers.report.browser import missing

# Names of each part; None: all of them, and what they say.
SAMPLE: dict[str, tuple[str, ...] | None] = {
    "convolutions": ("GCNConv signed weights", "GATConv heads", "ARMAConv"),
    "head-gallery": ("ReLU", "LayerNorm", "refused: BatchNorm of the batch"),
    "pools": ("attention", "top k"),
    "node-types": ("HeteroConv of GAT",),
    "links": ("GAE, source",),
    "outputs": ("labels", "values"),
    "lps": ("gaussian", "three groups", "near the threshold"),
    "heads": ("relu, 2",),
    "labels": ("labels 1",),
    "repairs": None,
    "ladder": None,
    "study": ("tolokers, markdown", "a small study", "every method"),
    "diagnosis": ("gat",),
    "pages": None,
    "diagnoses": None,
    "figures": None,
    "lines": None,
    "screens": None,
    "files": ("exposure", "solution", "repair-ladder", "repaired-model"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", SAMPLE)
def test_what_is_given_is_as_recorded(part):
    if part == "screens" and missing():
        pytest.skip(missing())
    names = SAMPLE[part]
    found = found_in(part, names)
    assert names is None or set(found) == set(names)
    assert compare(part, found, some=names is not None) == []


def test_the_order_of_groups_and_terms_is_not_recorded():
    from tests.golden.record import of_exposure
    from tests.helpers.repair.contract_exposures import shuffled_terms
    from tests.helpers.repair.toy_exposures import toy_exposure

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
    from tests.golden.golden import main

    with pytest.raises(SystemExit, match="2"):
        main(["nonsense"])
    assert "nonsense" in capsys.readouterr().err
    assert "ReLU" in entries_of("head-gallery")
