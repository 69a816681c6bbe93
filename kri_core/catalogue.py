"""Names the family is known by: aliases, and where a plugin that is not installed can be had."""

from __future__ import annotations

import re

ALIASES = {  # ALGORITHMS 13; `_` and case are folded before the look-up
    "cacheblend": "xa",
    "eigvec-centrality": "eigen",
    "kri-d-sum": "kri-energy",
    "kri-energy-mask": "kri-energy",
    "kri-geo": "kmeans-keys",
    "kri-t-content": "kri-t",
    "topk": "top-k",
    "triattention": "kri-t",
}

_PACKAGES = {  # distribution → the plugins it brings
    "kri-plugin-a": "kri-a attention-prefill snapkv h2o tova",
    "kri-plugin-d": "kri-d-kv-sum kri-d kri-d-direct kri-energy kri-d-greedy",
    "kri-plugin-diverse": "mmr facility logdet residual solo",
    "kri-plugin-eigen": "eigen eigen-synthq katz pagerank",
    "kri-plugin-g": "kri-g kri-g-gate",
    "kri-plugin-hybrid": "hybrid recency random random-middle uniform",
    "kri-plugin-kmeans": "kmeans-keys keydiff knorm",
    "kri-plugin-kvpress": "kvpress",
    "kri-plugin-q": "kri-q kri-q-centre kri-q-cumulant quest",
    "kri-plugin-t": "kri-t kri-t-q kri-t-q-late",
    "kri-plugin-xa25": "xa xa15 xa25",
}
DISTRIBUTION_OF = {name: dist for dist, names in _PACKAGES.items() for name in names.split()}

# A plugin that stands for many → the parameter that names one of them (docs/adr/0006):
# kvpress:knorm is kvpress[press=knorm], not plugin knorm of a package kvpress.
FAMILIES = {"kvpress": "press"}


def folded_name(name: str) -> str:
    """Lower case, dashes for underscores."""
    return name.strip().lower().replace("_", "-")


def canonical_name(name: str) -> str:
    """A folded name, aliases resolved."""
    folded = folded_name(name)
    return ALIASES.get(folded, folded)


def canonical_distribution(name: str) -> str:
    """A distribution's name as pip compares it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()
