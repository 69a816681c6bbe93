"""Tiny models for every test; kri_core.testing.tiny makes others."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def tiny_llama():
    """Grouped queries; shared by all tests, so leave it as it is."""
    from kri_core.testing import tiny

    return tiny.tiny_llama()


@pytest.fixture(scope="session")
def tiny_qwen2():
    """Biases on queries, keys and values."""
    from kri_core.testing import tiny

    return tiny.tiny_qwen2()


@pytest.fixture(scope="session")
def tiny_qwen3():
    """Norms on queries and keys."""
    from kri_core.testing import tiny

    return tiny.tiny_qwen3()


@pytest.fixture(scope="session")
def tiny_cartridge(tiny_llama):
    """Six blocks of eight tokens and a tail of two, made by tiny_llama."""
    from kri_core.testing import tiny

    return tiny.tiny_cartridge(tiny_llama)


@pytest.fixture(scope="session")
def tiny_model_directory(tmp_path_factory):
    """A Llama directory that load_model takes."""
    from kri_core.testing import tiny

    return tiny.save_tiny(tmp_path_factory.mktemp("models") / "tiny-llama")
