"""Parameters: text in a stack, typed values in the plugin, canonical text back."""

from typing import Literal

import pytest
from attrs import field, frozen, validators
from hypothesis import given
from hypothesis import strategies as st

from kri_core.config import PluginRef
from kri_core.errors import ArtifactError, ConfigError
from kri_core.grammar import parse_scorer
from kri_core.params import changed_params, make_params


@frozen
class Params:
    weight: float = 0.5
    seed: int = field(default=0, validator=validators.ge(0))
    centre: bool = True
    fill: Literal["none", "recent", 8] = "none"
    note: str = "x"


@frozen
class Needy:
    depth: int
    width: int


def made(**texts):
    return make_params(Params, texts, "io")


def test_text_becomes_values_of_the_declared_types():
    assert made() == Params()
    assert made(weight="7", seed="3", centre="False", fill="8", note="a b") == Params(
        weight=7.0, seed=3, centre=False, fill=8, note="a b"
    )
    assert isinstance(made(weight="7").weight, float)


def test_only_what_differs_from_its_default_is_written_back():
    assert changed_params(None) == {}
    assert changed_params(Params()) == {}
    assert changed_params(made(weight="0.50", seed="00", centre="TRUE", fill="none")) == {}
    assert changed_params(made(weight="70e-2", seed="03", centre="false", fill="8")) == {
        "weight": "0.7",
        "seed": "3",
        "centre": "false",
        "fill": "8",
    }


@given(
    st.builds(
        Params,
        weight=st.floats(allow_nan=False, allow_infinity=False),
        seed=st.integers(0),
        centre=st.booleans(),
        fill=st.sampled_from(["none", "recent", 8]),
        note=st.sampled_from(["x", "y", "a b", "(~+)"]),
    )
)
def test_what_is_written_back_makes_the_same_params_again(params):
    written = str(PluginRef("io", changed_params(params)))

    assert make_params(Params, dict(parse_scorer(written).params), "io") == params


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (
            {"wieght": "1"},
            "'io' has no parameter 'wieght'; did you mean 'weight'? It has weight, s",
        ),
        ({"zzz": "1"}, "'io' has no parameter 'zzz'; it has weight, seed, centre, fill, note"),
        ({"weight": "heavy"}, "io's weight is a number; got 'heavy'"),
        ({"weight": "nan"}, "io's weight is a finite number; got 'nan'"),
        ({"weight": "-inf"}, "io's weight is a finite number; got '-inf'"),
        ({"seed": "1.0"}, "io's seed is a whole number; got '1.0'"),
        ({"seed": "9" * 5000}, "io's seed is a whole number; got '999"),
        ({"centre": "1"}, "io's centre is true or false; got '1'"),
        ({"fill": "Recent"}, "io's fill is one of none, recent, 8; got 'Recent'"),
        ({"seed": "-1"}, "'io': 'seed' must be >= 0: -1"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(texts, said):
    with pytest.raises(ConfigError) as caught:
        made(**texts)
    assert str(caught.value).startswith(said)


def test_parameters_without_defaults_must_be_given():
    assert make_params(Needy, {"depth": "1", "width": "2"}, "io") == Needy(1, 2)
    with pytest.raises(ConfigError, match=r"^'io' needs depth, width; write io\[depth=…\]$"):
        make_params(Needy, {}, "io")
    with pytest.raises(ConfigError, match=r"^'io' needs width; write io\[width=…\]$"):
        make_params(Needy, {"depth": "1"}, "io")


@frozen
class Empty:
    pass


@pytest.mark.parametrize("params_class", [None, Empty])
def test_a_plugin_without_parameters_takes_none(params_class):
    assert changed_params(make_params(params_class, {}, "io")) == {}
    with pytest.raises(ConfigError, match="'io' takes no parameters; got depth, width"):
        make_params(params_class, {"width": "1", "depth": "2"}, "io")


def refusing(error):
    def check(_params, _attribute, _value):
        raise error

    @frozen
    class Refusing:
        depth: int = field(default=0, validator=check)

    return Refusing


def test_whatever_a_validator_raises_is_about_the_parameters():
    for error, said in [
        (ValueError("too deep", 1, 2), "'io': too deep"),
        (TypeError("odd"), "'io': odd"),
        (ZeroDivisionError(), "'io': ZeroDivisionError"),
        (KeyError(3), "'io': KeyError: 3"),
    ]:
        with pytest.raises(ConfigError, match=f"^{said}$"):
            make_params(refusing(error), {"depth": "1"}, "io")
    with pytest.raises(ArtifactError, match=r"^mine$"):
        make_params(refusing(ArtifactError("mine")), {"depth": "1"}, "io")
