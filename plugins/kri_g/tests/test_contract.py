"""Both scorers, in every mode, keep the scorer's contract."""

from kri_core.testing import ScorerContract


class TestGradient(ScorerContract):
    plugin = "kri-g"


class TestGradientOfTokensOfTheTextItself(ScorerContract):
    plugin = "kri-g[reduce=sum_of_norms,targets=text]"


class TestGate(ScorerContract):
    plugin = "kri-g-gate"


class TestGateOfEitherSign(ScorerContract):
    plugin = "kri-g-gate[sign=absolute,targets=text]"
