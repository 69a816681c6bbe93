"""Every scorer keeps the slot's contract."""

from kri_core.testing import ScorerContract


class TestKmeansKeys(ScorerContract):
    plugin = "kmeans-keys"


class TestKmeansKeysOfOneLayer(ScorerContract):
    plugin = "kmeans-keys[budgets=2-4,layers=0]"


class TestKeydiff(ScorerContract):
    plugin = "keydiff"


class TestKnorm(ScorerContract):
    plugin = "knorm"
