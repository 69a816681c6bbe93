"""The core's own plugins keep the contracts that strangers' have to keep."""

from kri_core.testing import SelectorContract, SplitContract


class TestTag(SplitContract):
    plugin = "A1R2K13"


class TestTagWithoutPins(SplitContract):
    plugin = "A0R0K16"


class TestTagWithoutMid(SplitContract):
    plugin = "A2R6K0"


class TestWhole(SplitContract):
    plugin = "whole"


class TestTopK(SelectorContract):
    plugin = "top-k"


class TestTopKOfRanks(SelectorContract):
    plugin = "top-k[detrend=5,norm=rank,pool=max]"
