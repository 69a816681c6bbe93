"""Every baseline keeps its slot's contract."""

from kri_core.testing import ScorerContract, SelectorContract, SplitContract


class TestHybrid(SplitContract):
    plugin = "hybrid"


class TestHybridWithABudget(SplitContract):
    plugin = "hybrid[anchor=4,recent=12,budget=16]"


class TestRecency(SplitContract):
    plugin = "recency[budget=16]"


class TestRecencyOfNothing(SplitContract):
    plugin = "recency[budget=0]"


class TestRandom(ScorerContract):
    plugin = "random[seed=3]"


class TestRandomMiddle(SelectorContract):
    plugin = "random-middle[anchor=1,recent=2,seed=3]"


class TestUniform(SelectorContract):
    plugin = "uniform"
