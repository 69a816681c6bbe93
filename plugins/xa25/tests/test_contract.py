"""Every repair keeps its slot's contract."""

from kri_core.testing import RepairContract


class TestXa25(RepairContract):
    plugin = "xa25"


class TestXa15(RepairContract):
    plugin = "xa15"


class TestXa(RepairContract):
    plugin = "xa"


class TestXaOfNothing(RepairContract):
    plugin = "xa[ratio=0]"


class TestXaOfEverything(RepairContract):
    plugin = "xa[ratio=1]"


class TestGradual(RepairContract):
    plugin = "xa[mode=gradual,reference=query_first,deviation=kv,check_layer=2,ratio=0.9]"
