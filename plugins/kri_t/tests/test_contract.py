"""kri-t with every pool, and kri-t-q by every source, keep the scorer's contract."""

from kri_core.testing import ScorerContract


class TestTopM(ScorerContract):
    plugin = "kri-t"


class TestMax(ScorerContract):
    plugin = "kri-t[pool=max]"


class TestLogSumExp(ScorerContract):
    plugin = "kri-t[pool=lse]"


class TestMean(ScorerContract):
    plugin = "kri-t[max_offset=4096,pool=mean]"


class TestAsked(ScorerContract):
    plugin = "kri-t-q"


class TestAskedOverTheWholeDocument(ScorerContract):
    plugin = "kri-t-q[blend=1.0,source=full]"


class TestAskedOfLayer0(ScorerContract):
    plugin = "kri-t-q[source=layer0]"


class TestAskedOfLateLayers(ScorerContract):
    plugin = "kri-t-q-late"


class TestAskedOfLateLayersOverTheWholeDocument(ScorerContract):
    plugin = "kri-t-q-late[pool=max,source=full]"
