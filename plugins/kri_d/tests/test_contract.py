"""Both scorers, in every mode, keep the scorer's contract."""

from kri_core.testing import ScorerContract


class TestKvSum(ScorerContract):
    plugin = "kri-d-kv-sum"


class TestKvSumOfTheLastFiveRelative(ScorerContract):
    plugin = "kri-d-kv-sum[layers=last5,norm=relative]"


class TestKvSumByReprefill(ScorerContract):
    plugin = "kri-d-kv-sum[removal=reprefill]"


class TestKl(ScorerContract):
    plugin = "kri-d"


class TestKlByReprefill(ScorerContract):
    plugin = "kri-d[removal=reprefill]"


class TestDirect(ScorerContract):
    plugin = "kri-d-direct"


class TestEnergy(ScorerContract):
    plugin = "kri-energy"
