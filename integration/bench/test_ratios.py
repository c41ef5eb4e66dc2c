"""Ratios and verdicts on rounds that were measured side by side."""

import pytest

from integration.bench import ratios


def test_rounds_are_compared_in_pairs():
    result = ratios.compare([100, 200, 400], [110, 180, 400], more_is_better=True)
    assert result["ratio"]["values"] == [1.1, 0.9, 1.0]
    assert result["ratio"]["median"] == 1.0
    assert (result["ratio"]["min"], result["ratio"]["max"]) == (0.9, 1.1)
    assert result["tcp"]["median"] == 200


def test_a_figure_of_zero_has_no_ratio():
    assert ratios.compare([0, 1], [1, 1], True)["ratio"] is None


@pytest.mark.parametrize("more_is_better, above, below", [(True, "better", "worse"),
                                                          (False, "worse", "better")])
def test_a_verdict_needs_every_round_to_agree(more_is_better, above, below):
    def said(values):
        return ratios.verdict(ratios.spread(values), 0.02, more_is_better)
    assert said([1.1, 1.2, 1.1, 1.3, 1.2]) == above
    assert said([0.9, 0.8, 0.9, 0.7, 0.8]) == below
    assert said([1.1, 1.2, 1.1, 1.3, 0.99]) == ratios.UNCLEAR
    assert said([0.9, 0.8, 0.9, 0.7, 1.01]) == ratios.UNCLEAR


def test_a_verdict_needs_more_than_the_noise_of_tcp_itself():
    assert ratios.verdict(ratios.spread([1.03] * 5), 0.05, True) == ratios.UNCLEAR
    assert ratios.verdict(ratios.spread([0.97] * 5), 0.05, True) == ratios.UNCLEAR


def test_a_verdict_needs_five_rounds():
    assert ratios.verdict(ratios.spread([2.0] * 4), 0.01, True) == ratios.TOO_FEW
    assert ratios.verdict(ratios.spread([2.0] * 5), 0.01, True) == "better"


def test_noise_is_the_typical_distance_from_the_median():
    assert ratios.noise([100, 100, 100]) == 0
    assert ratios.noise([90, 100, 110, 100, 500]) == pytest.approx(0.1)
