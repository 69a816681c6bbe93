"""Every selector keeps its slot's contract."""

from kri_core.testing import SelectorContract


class TestMmr(SelectorContract):
    plugin = "mmr"


class TestMmrOfNovelty(SelectorContract):
    plugin = "mmr[detrend=5,norm=rank,weight=0]"


class TestFacility(SelectorContract):
    plugin = "facility"


class TestLogdet(SelectorContract):
    plugin = "logdet[beta=2]"


class TestResidual(SelectorContract):
    plugin = "residual[alpha=1]"


class TestSolo(SelectorContract):
    plugin = "solo"
