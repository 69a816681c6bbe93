"""The presses of the installed kvpress that score tokens by themselves."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from kri_core import ConfigError, PluginError

if TYPE_CHECKING:
    from kvpress import ScorerPress

REFUSED = {  # what they need and a bake does not have
    "criticalkv": "rescales another press's scores and has none of its own; name that press",
    "expectedattentionstats": "fetches query statistics from a hub; use kvpress:expectedattention, "
    "which takes them from the document",
    "kvzap": "fetches a trained surrogate of the model from a hub; use a press without training",
    "observedattention": "needs each layer's whole attention matrix, which is never held; use h2o "
    "or attention-prefill of kri-plugin-a, which read it in chunks",
    "qfilter": "fetches filters trained for the model from a hub; use a press without training",
}


def press_name(text: str) -> str:
    """`KnormPress`, `knorm` and `Non_Causal-Attn` as knorm and noncausalattn.

    No dashes, so that a name is canonical where kvpress is not installed to tell where they go.
    """
    return text.lower().replace("-", "").replace("_", "").removesuffix("press")


def make_press(name: str, compression_ratio: float) -> ScorerPress:
    """The press of that name, with kvpress's own defaults beside the ratio."""
    if find_spec("kvpress") is None:
        raise PluginError(
            f"kvpress:{name} needs NVIDIA's kvpress, which is not installed; "
            "pip install 'kri-plugin-kvpress[kvpress]', in an environment whose transformers may "
            "be below 5.3"
        )
    import kvpress

    if name in REFUSED:
        raise ConfigError(f"kvpress:{name} {REFUSED[name]}")
    presses = {
        press_name(key): value
        for key, value in vars(kvpress).items()
        if isinstance(value, type)
        and issubclass(value, kvpress.ScorerPress)
        and value is not kvpress.ScorerPress
    }
    if name not in presses:
        known = ", ".join(sorted(presses.keys() - REFUSED))
        raise ConfigError(f"kvpress has no ScorerPress called {name!r}; it has {known}")
    return presses[name](compression_ratio=compression_ratio)
