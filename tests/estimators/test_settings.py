"""One spelling of every option: estimators, command line and their help agree."""

import inspect
from dataclasses import fields

from bsgp import BSGPClassifier, BSGPRegressor, Options
from bsgp.cli.fit_options import ModelOptions
from bsgp.estimators.settings import NOT_IN_CHECKPOINTS, Settings

OF_REGRESSION = ("noise", "exposure")


def test_estimators_have_the_parameters_of_the_settings_with_their_defaults():
    settings = {one.name: one.default for one in fields(Settings)}
    assert BSGPRegressor().get_params() == settings
    of_classes = {name: value for name, value in settings.items() if name not in OF_REGRESSION}
    assert BSGPClassifier().get_params() == {**of_classes, "class_weight": None}


def test_the_command_line_has_the_defaults_of_the_settings():
    defaults = {one.name: one.default for one in fields(Settings)}
    for one in fields(ModelOptions):
        assert one.name in defaults
        if one.name != "random_state":  # a command gives the same model twice
            assert one.default == defaults[one.name]


def test_every_parameter_is_documented_once_and_has_help():
    documented = inspect.getdoc(BSGPRegressor).partition("Attributes")[0]
    for one in fields(Settings):
        assert documented.count(f"\n{one.name} : ") == 1
        assert one.metadata["help"].endswith(".")


def test_options_are_those_of_the_settings():
    settings = Settings(depth=2, effort=0.5, inducing_prior="strauss", precision="float32")
    assert settings.options == Options(depth=2, effort=0.5, inducing_prior="strauss")
    assert set(NOT_IN_CHECKPOINTS) <= {one.name for one in fields(Settings)}


def test_chains_continue_under_other_lengths_only():
    first = Settings(effort=1.0)
    assert Settings(effort=3.0, max_seconds=5.0, thinning=7).samples_the_target_of(first)
    for other in (
        {"depth": 2},
        {"objective": "vfe"},
        {"likelihood_power": 0.5},
        {"method": "bsgp-u"},
        {"noise": "student"},
    ):
        assert not Settings(**other).samples_the_target_of(first)
