"""Every scorer, by every source, keeps the scorer's contract."""

from kri_core.testing import ScorerContract


class TestKriQ(ScorerContract):
    plugin = "kri-q"


class TestKriQAsUpstream(ScorerContract):
    plugin = "kri-q[similarity=cosine,source=layer0]"


class TestKriQByMaxima(ScorerContract):
    plugin = "kri-q[pool_heads=max,pool_tokens=max,source=full]"


class TestCentre(ScorerContract):
    plugin = "kri-q-centre[pool_tokens=mean]"


class TestCumulant(ScorerContract):
    plugin = "kri-q-cumulant"


class TestCumulantOverTheWholeDocument(ScorerContract):
    plugin = "kri-q-cumulant[pool_heads=max,source=full]"


class TestQuest(ScorerContract):
    plugin = "quest"


class TestQuestByMaxima(ScorerContract):
    plugin = "quest[pool_tokens=max,source=layer0]"
