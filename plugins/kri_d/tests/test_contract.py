"""Every plugin, in every mode, keeps its slot's contract."""

from kri_core.testing import ScorerContract, SelectorContract


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


class TestGreedy(SelectorContract):
    plugin = "kri-d-greedy"


class TestGreedyReverse(SelectorContract):
    plugin = "kri-d-greedy[direction=reverse]"
