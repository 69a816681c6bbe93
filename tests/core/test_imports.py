"""What a plugin may import, and that it costs no torch until it is used."""

import re
from pathlib import Path

import pytest

import kri_core


@pytest.mark.parametrize("name", kri_core.__all__)
def test_every_public_name_resolves(name):
    assert getattr(kri_core, name) is not None


def test_the_type_checker_sees_exactly_the_public_names():
    """`TYPE_CHECKING` imports and the lazy table are written by hand, side by side."""
    source = Path(kri_core.__file__).read_text()
    block = re.search(r"if TYPE_CHECKING:\n(.*?)\n\n__version__", source, re.DOTALL)[1]
    imported = re.findall(r"\b\w+\b", re.sub(r"from \S+ import", "", block))

    assert sorted(imported) == kri_core.__all__ == sorted(kri_core._HOME_OF)


def test_a_name_that_is_not_public_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'kri_core' has no attribute 'Routes'"):
        kri_core.Routes  # noqa: B018


def loaded_by(environment, code):
    names = environment.python(f"import sys\n{code}\nprint(*sys.modules)").split()
    return {name for name in names if name.split(".")[0] in {"torch", "numpy", "transformers"}}


@pytest.mark.parametrize(
    "code",
    [
        "import kri_core",
        "from kri_core import *",
        "from kri_core import hookimpl, Router, parse, Prior, Cartridge",
        "from kri_core import Router, parse; Router.from_config(parse('A1R2K13'))",
        "import kri_core.testing",
    ],
)
def test_no_torch_is_loaded_by(environment, code):
    assert loaded_by(environment, code) == set()


def test_torch_would_be_seen(environment):
    """A negative control."""
    assert "torch" in loaded_by(environment, "import torch")


def test_importing_the_core_alone_loads_none_of_its_modules(environment):
    """Lazy: the listing of a large environment starts with this import."""
    listed = environment.python("import sys, kri_core; print(*sys.modules)").split()

    assert [name for name in listed if name.startswith("kri_core.")] == []
