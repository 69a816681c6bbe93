"""Every rule of EVAL 1 about needle8's documents and questions."""

import os
import re
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kri_core.errors import ConfigError
from kri_core.evaluation.tasks import Reading
from kri_core.evaluation.tasks.assembling import MARGIN, bury
from kri_core.evaluation.tasks.copies import NearbyCopies, NiahCopy
from kri_core.evaluation.tasks.draws import Draws
from kri_core.evaluation.tasks.needle import Needle8, Needle8Fast, Needle8Long
from kri_core.evaluation.tasks.prose import (
    NAMES,
    OBJECTS,
    PLACES,
    SECONDS,
    SUBJECTS,
    TIMES,
    VERBS,
    sentences,
)

FACT = re.compile(r" The access code for ([A-Z][a-z]+) is (\d{5})\.")
SENTENCE = re.compile(
    " ".join(f"({'|'.join(words)})" for words in (SUBJECTS, VERBS, OBJECTS, PLACES, TIMES))
    + f"|{'|'.join(SECONDS)}"
)
PREFIX = (
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
    "Read the document and answer the question.\n\nDocument:\n"
)


def told(tokenizer, document):
    """Each fact's name and code as they stand in the document's text."""
    return dict(FACT.findall(tokenizer.decode(document.token_ids)))


def filler_sentences(tokenizer, document):
    """Sentences before the first needle and after the last one, the cut one included."""
    text = tokenizer.decode(document.token_ids).partition("Document:\n")[2]
    before, *_, after = FACT.sub("\0", text).split("\0")
    return len(re.findall(r"\.", before)), len([part for part in after.split(".") if part.strip()])


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), tokens=st.integers(2600, 4000), needles=st.integers(2, 10))
def test_every_document_keeps_the_rules(bytewise, seed, tokens, needles):
    document = next(Needle8(tokens, 1, seed, needles).documents(bytewise))
    codes = told(bytewise, document)

    assert len(document.token_ids) == tokens
    assert len(codes) == needles == len(document.items)
    assert len({code[0] for code in codes.values()}) == needles
    assert min(filler_sentences(bytewise, document)) >= MARGIN
    for item in document.items:
        name = item.id.partition("/")[2]
        (span,) = item.evidence
        needle = bytewise.decode(document.token_ids[span.start : span.stop])
        assert needle == f" The access code for {name} is {codes[name]}."
        assert bytewise.decode(item.question) == f"\n\nThe access code for {name} is"
        assert [bytewise.decode(option) for option in item.options] == [
            f" {codes[other.id.partition('/')[2]]}" for other in document.items
        ]
        assert bytewise.decode(item.options[item.correct]) == f" {codes[name]}"


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_the_probes_ask_nothing_that_is_evaluated(bytewise, seed):
    document = next(Needle8(tokens=3000, docs=1, seed=seed).documents(bytewise))
    generic, domain = document.probes
    (probe,) = domain.texts
    stranger = re.fullmatch(r"\n\nThe access code for ([A-Z][a-z]+) is", probe)[1]

    assert generic.texts == ("\n\nThe most important facts in this document are",)
    assert stranger in NAMES
    assert stranger not in bytewise.decode(document.token_ids)
    assert probe not in {item.text for item in document.items}


def test_a_needle_may_be_in_any_other_place(bytewise):
    """Both extreme slots are drawn: two sentences before the first needle, two after the last."""
    task = Needle8(tokens=2300, docs=60)
    margins = [filler_sentences(bytewise, document) for document in task.documents(bytewise)]

    assert min(before for before, _ in margins) == MARGIN
    assert min(after for _, after in margins) == MARGIN


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_the_text_goes_on_where_the_document_ends(bytewise, seed):
    """Across the end every sentence is a whole one; only the last of the 65 tokens may cut one."""
    document = next(Needle8(tokens=3000, docs=1, seed=seed).documents(bytewise))
    (following,) = {item.continuation for item in document.items}
    text = bytewise.decode((*document.token_ids, *following))
    *told, cut = FACT.sub("", text.partition("Document:\n")[2]).split(".")

    assert len(following) == 1 + 64
    assert document.items[0].readings()[1] == Reading(following, answer=1)
    assert [sentence for sentence in told if not SENTENCE.fullmatch(sentence.strip())] == []
    assert len(cut) < 120


@pytest.mark.model
@pytest.mark.parametrize(
    ("task", "tokens"), [(Needle8, 2048), (Needle8Fast, 1024), (Needle8Long, 4096)]
)
def test_the_embedded_model_gets_the_format_of_the_trial(embedded, task, tokens):
    prefix = embedded.encode(PREFIX)
    documents = list(task().documents(embedded))

    assert len(documents) == 25
    for document in documents:
        assert len(document.token_ids) == tokens
        assert list(document.token_ids[: len(prefix)]) == prefix
        assert len(document.items) == 8
        codes = told(embedded, document)
        for item in document.items:
            name = item.id.partition("/")[2]
            assert list(item.question) == embedded.encode(f"\n\nThe access code for {name} is")
            (span,) = item.evidence
            needle = embedded.decode(document.token_ids[span.start : span.stop])
            assert needle == f" The access code for {name} is {codes[name]}."


@pytest.mark.model
def test_one_forward_decides_between_the_first_digits(embedded):
    """This tokenizer splits digits, so the space before the code is read, not answered."""
    item = next(Needle8(docs=1).documents(embedded)).items[0]
    reading, _ = item.readings()

    assert embedded.decode(reading.token_ids[: reading.answer]) == f"{item.text} "
    assert len(reading.token_ids) - reading.answer == 5
    assert sorted(map(embedded.decode, [[token] for token in reading.among])) == sorted(
        embedded.decode(option)[1] for option in item.options
    )
    assert reading.num_rows == 3 + 5  # what kl is measured on


@pytest.mark.model
def test_the_published_task_is_this_one(embedded):
    """The first document of each board's task; a change would make old results other results."""
    tasks = (Needle8, Needle8Fast, Needle8Long, NiahCopy, NearbyCopies)

    found = {task.__name__: next(task().documents(embedded)).digest[:12] for task in tasks}
    assert found == {
        "Needle8": "986020c0c933",
        "Needle8Fast": "73cd22f8f117",
        "Needle8Long": "4521496da649",
        "NiahCopy": "cc3d747b28ac",
        "NearbyCopies": "0335958c6274",
    }


@pytest.mark.model
def test_every_name_is_one_token_of_the_embedded_model(embedded):
    assert [name for name in NAMES if len(embedded.encode(f" {name}")) != 1] == []


def test_names_are_common_and_no_filler_holds_one():
    words = {
        word
        for choices in (SUBJECTS, VERBS, OBJECTS, PLACES, TIMES, SECONDS)
        for text in choices
        for word in re.findall(r"\w+", text)
    }

    assert len(set(NAMES)) == len(NAMES) >= 50
    assert not words & set(NAMES)
    assert not any(re.search(r"\d", word) for word in words)


@pytest.mark.parametrize("choices", [SUBJECTS, VERBS, OBJECTS, PLACES, TIMES, SECONDS])
def test_filler_has_twenty_choices_of_each_kind(choices):
    assert len(set(choices)) == len(choices) == 20


def test_about_a_third_of_the_sentences_is_followed_by_a_second():
    """3 000 sentences, p = 1/3: four standard errors are 0.034."""
    stream = sentences(Draws("filler"))
    drawn = [next(stream) for _ in range(4000)]
    seconds = sum(text[1:-1] in SECONDS for text in drawn)

    assert seconds / (len(drawn) - seconds) == pytest.approx(1 / 3, abs=0.034)


def test_documents_and_seeds_differ(bytewise):
    one = list(Needle8(tokens=3000, docs=3).documents(bytewise))
    other = list(Needle8(tokens=3000, docs=3, seed=1).documents(bytewise))

    assert len({document.token_ids for document in one + other}) == 6
    assert [document.group for document in one] == ["000", "001", "002"]


IN_ANOTHER_PROCESS = """
import sys
from tokenizers import Tokenizer
from kri_core.evaluation.tasks.needle import Needle8

class Bytewise:
    tokenizer = Tokenizer.from_file(sys.argv[1])

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def open_turn(self, system):
        return f"<s><|system|>{system}<|end|><|user|>"

document = next(Needle8(tokens=3000, docs=1).documents(Bytewise()))
print(document.digest)
"""


def test_another_process_and_hash_seed_make_the_same_document(bytewise, tmp_path):
    """The digest is written down, so that no release changes the task unnoticed."""
    path = tmp_path / "tokenizer.json"
    bytewise.tokenizer.save(str(path))
    printed = {
        subprocess.run(
            [sys.executable, "-c", IN_ANOTHER_PROCESS, str(path)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("0", "1")
    }
    document = next(Needle8(tokens=3000, docs=1).documents(bytewise))

    assert printed == {document.digest}
    assert document.digest[:12] == "5f5a783ece33"


def test_too_few_tokens_are_refused(bytewise):
    wanted = r"900 tokens have room for \d needles with this tokenizer, not for 8; give more tokens"
    with pytest.raises(ConfigError, match=wanted):
        next(Needle8(tokens=900).documents(bytewise))
    with pytest.raises(ConfigError, match="10 tokens have room for 0 needles"):
        next(Needle8(tokens=10).documents(bytewise))


def test_a_single_code_is_weighed_against_codes_of_another_first_digit(bytewise):
    document = next(NiahCopy(tokens=2048, docs=1).documents(bytewise))
    (item,) = document.items
    ((_, code),) = told(bytewise, document).items()

    assert [bytewise.decode(option) for option in item.options] == [
        f" {digit}{code[1:]}" for digit in range(10)
    ]
    assert bytewise.decode(item.options[item.correct]) == f" {code}"
    assert item.chance == {"mc": 0.1}


def test_each_copied_fact_is_told_four_times_in_other_words_before_the_next_one(bytewise):
    document = next(NearbyCopies(tokens=6000, docs=1).documents(bytewise))
    starts = []
    for item in document.items:
        name, code = item.id.partition("/")[2], bytewise.decode(item.options[item.correct])[1:]
        copies = [bytewise.decode(document.token_ids[s.start : s.stop]) for s in item.evidence]
        assert len(set(copies)) == 4
        assert all(name in copy and code in copy for copy in copies)
        starts.append(sorted(span.start for span in item.evidence))

    ranges = sorted((first[0], first[-1]) for first in starts)
    assert all(end < begin for (_, end), (begin, _) in pairwise(ranges))


def test_needles_are_in_random_order_and_places(bytewise):
    """Each of two facts comes first in about half of 200 documents: ± 4 standard errors."""
    first = 0
    for seed in range(200):
        haystack = bury(bytewise, [[" One."], [" Two."]], 1200, 0, Draws(seed))
        (one,), (two,) = haystack.spans
        first += one.start < two.start

    assert 72 <= first <= 128
