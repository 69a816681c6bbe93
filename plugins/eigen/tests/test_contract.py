"""Every centrality, with every weighing of heads, keeps the scorer's contract."""

from kri_core.testing import ScorerContract


class TestEigen(ScorerContract):
    plugin = "eigen"


class TestEigenWithoutTheFirstBlock(ScorerContract):
    plugin = "eigen[sink=block]"


class TestEigenOfAllHeadsAlike(ScorerContract):
    plugin = "eigen[heads=uniform,n_sink=0]"


class TestEigenByEntropy(ScorerContract):
    plugin = "eigen[heads=entropy]"


class TestEigenByConcentration(ScorerContract):
    plugin = "eigen[heads=concentration]"


class TestEigenBySoftmaxGain(ScorerContract):
    plugin = "eigen[heads=softmax_gain]"


class TestKatz(ScorerContract):
    plugin = "katz"


class TestPagerank(ScorerContract):
    plugin = "pagerank"


class TestEigenSynthq(ScorerContract):
    plugin = "eigen-synthq"


class TestEigenSynthqWithoutTheFirstBlock(ScorerContract):
    plugin = "eigen-synthq[sink=block]"


class TestEigenSynthqOfKeys(ScorerContract):
    plugin = "eigen-synthq[queries=keys]"
