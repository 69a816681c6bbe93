"""The default probe texts are many, different, and start a new paragraph."""

from kri_core.probe_texts import DEFAULT_PROBE_TEXTS


def test_there_are_at_least_eight_different_ones():
    assert len(set(DEFAULT_PROBE_TEXTS)) == len(DEFAULT_PROBE_TEXTS) >= 8


def test_each_starts_a_new_paragraph_and_ends_where_an_answer_would_begin():
    for text in DEFAULT_PROBE_TEXTS:
        assert text.startswith("\n\n")
        assert text.strip() == text[2:]
