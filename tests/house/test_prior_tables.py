"""The tables of priors in docs/recipe.md are those of the records."""

import pytest

import prior_study


@pytest.mark.parametrize("rows", ["validation", "test"])
def test_the_tables_of_priors_are_those_of_the_records(rows):
    assert prior_study.records(rows)
    assert prior_study.markdown(rows) in prior_study.PAGE.read_text(), "run benchmarks/prior_study.py --docs"
