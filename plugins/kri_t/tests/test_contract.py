"""kri-t, with every pool, keeps the scorer's contract."""

from kri_core.testing import ScorerContract


class TestTopM(ScorerContract):
    plugin = "kri-t"


class TestMax(ScorerContract):
    plugin = "kri-t[pool=max]"


class TestLogSumExp(ScorerContract):
    plugin = "kri-t[pool=lse]"


class TestMean(ScorerContract):
    plugin = "kri-t[max_offset=4096,pool=mean]"
