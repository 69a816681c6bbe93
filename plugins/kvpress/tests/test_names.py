"""How a press is named, and what is said where kvpress is not installed."""

from importlib.util import find_spec

import pytest
from kri_plugin_kvpress.presses import make_press, press_name

from kri_core import ConfigError, PluginError, parse
from kri_core.registry import Registry
from kri_core.stack import Stack


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("knorm", "knorm"),
        ("SnapKVPress", "snapkv"),
        ("expected_attention", "expectedattention"),
        ("non-causal-attn", "noncausalattn"),
    ],
)
def test_a_press_is_found_however_it_is_written(written, name):
    assert press_name(written) == name


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("kvpress:knorm", "kvpress:knorm"),
        ("KVPress:Expected_Attention[pool=mean]", "kvpress:expectedattention"),
        ("kvpress[press=SnapKV,pool=max]", "kvpress:snapkv[pool=max]"),
        ("kri-plugin-kvpress:kvpress[press=knorm]", "kri-plugin-kvpress:kvpress[press=knorm]"),
    ],
)
def test_a_stack_is_written_back_with_the_one_name_of_its_press(written, canonical):
    """By metadata and a light module alone: a prior is served where kvpress is not installed."""
    stack = Stack.load(parse(f"A1R2K13({written})"), Registry.discover())

    assert str(stack.config) == f"A1R2K13({canonical})"
    assert parse(str(stack.config)) == stack.config


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ("", r"'kvpress' needs press; write kvpress\[press=…\]"),
        ("[press=knorm,pool=median]", "pool is one of mean, max, sum; got 'median'"),
        ("[press=knorm,compression_ratio=1]", "'compression_ratio' must be < 1: 1.0"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(params, message):
    with pytest.raises(ConfigError, match=message):
        Stack.load(parse(f"whole(kvpress{params})"), Registry.discover())


@pytest.mark.skipif(find_spec("kvpress") is not None, reason="kvpress is installed")
def test_without_kvpress_the_error_says_what_to_install():
    with pytest.raises(PluginError) as caught:
        make_press("knorm", 0.5)

    assert str(caught.value) == (
        "kvpress:knorm needs NVIDIA's kvpress, which is not installed; "
        "pip install 'kri-plugin-kvpress[kvpress]', in an environment whose transformers may be "
        "below 5.3"
    )
