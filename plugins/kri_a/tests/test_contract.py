"""Every scorer, in every mode, keeps the scorer's contract."""

from kri_core.testing import ScorerContract


class TestLastToken(ScorerContract):
    plugin = "kri-a"


class TestPrefill(ScorerContract):
    plugin = "attention-prefill"


class TestPrefillByCount(ScorerContract):
    plugin = "attention-prefill[exposure=count]"


class TestPrefillWithoutSinks(ScorerContract):
    plugin = "attention-prefill[n_sink=3,sink=drop]"


class TestPrefillOfAWindow(ScorerContract):
    plugin = "attention-prefill[exposure=none,window=7]"


class TestSnapkv(ScorerContract):
    plugin = "snapkv[window=7]"


class TestSnapkvOfTheWholeDocument(ScorerContract):
    plugin = "snapkv"


class TestH2o(ScorerContract):
    plugin = "h2o"


class TestTova(ScorerContract):
    plugin = "tova"
