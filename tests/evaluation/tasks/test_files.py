"""What a user brings: the schemas of EVAL 2, and CASES 43: each fault is one line."""

import json
from pathlib import Path

import pytest

from kri_core.errors import ConfigError
from kri_core.evaluation.tasks import Answer, Choice
from kri_core.evaluation.tasks.assembling import opening
from kri_core.evaluation.tasks.fidelity import Fidelity
from kri_core.evaluation.tasks.jsonl import Jsonl
from kri_core.evaluation.tasks.longhealth import LongHealth

PATIENTS = Path(__file__).with_name("longhealth.json")
FREE = {"document": "The gate is green.", "question": "What colour?", "answer": "green"}
CHOICE = {
    "document": "The gate is green.",
    "question": "Which one?",
    "options": ["the gate", "the wall"],
    "correct": "the gate",
}


def refusal(task, tokenizer):
    """The one line with which a task refuses its file."""
    with pytest.raises(ConfigError) as caught:
        list(task.documents(tokenizer))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_lines_about_one_document_are_one_document(bytewise, write_jsonl):
    other = FREE | {"document": "Nothing.", "id": "mine", "group": "g"}
    path = write_jsonl(FREE, "", FREE | {"question": "And now?"}, other)
    one, two = Jsonl(str(path)).documents(bytewise)
    answer, again = one.items

    text = (*opening(bytewise), *bytewise.encode("The gate is green."))
    assert one.token_ids == text
    assert isinstance(answer, Answer)
    assert (answer.id, again.id, two.items[0].id) == ("line-1", "line-3", "mine")
    assert bytewise.decode(answer.question) == "\n\nQuestion: What colour?\nAnswer:"
    assert bytewise.decode(answer.answer) == " green"
    assert answer.chance == {}
    assert (one.group == two.group, two.group) == (False, "g")


def test_options_of_a_line_are_those_of_a_choice(bytewise, write_jsonl):
    (document,) = Jsonl(str(write_jsonl(CHOICE))).documents(bytewise)
    (choice,) = document.items

    assert isinstance(choice, Choice)
    assert [bytewise.decode(option) for option in choice.options] == [" the gate", " the wall"]
    assert (choice.correct, choice.chance) == (0, {"mc": 0.5})


def test_answers_with_and_without_options_in_one_file_are_refused(bytewise, write_jsonl):
    for first, second, kinds in [
        (FREE, CHOICE, "options where the lines before have an answer"),
        (CHOICE, FREE, "an answer where the lines before have options"),
    ]:
        path = write_jsonl(first, second)
        wanted = f"{path} line 2 has {kinds}; make two files"
        assert refusal(Jsonl(str(path)), bytewise) == wanted


def test_the_template_of_a_prompt_is_a_parameter(bytewise, write_jsonl):
    """Braces of other kinds, in template and question, are left as they are."""
    path = write_jsonl(FREE | {"question": "{x}?"})
    (document,) = Jsonl(str(path), template="\n{a}{question} =").documents(bytewise)

    assert bytewise.decode(document.items[0].question) == "\n{a}{x}? ="
    with pytest.raises(ConfigError, match=r"the template 'Q:' needs \{question\} once; write"):
        Jsonl(str(path), template="Q:")


def test_a_missing_an_empty_and_a_binary_file_are_refused(bytewise, tmp_path):
    missing, empty, binary = (str(tmp_path / name) for name in ("missing", "empty", "binary"))
    Path(empty).write_text("\n \n")
    Path(binary).write_bytes(b"\xff\xfe\x00")

    for task in (Jsonl, LongHealth, Fidelity):
        assert refusal(task(missing), bytewise) == (
            f"{missing} cannot be read: No such file or directory; give a UTF-8 file"
        )
        assert refusal(task(empty), bytewise) == f"{empty} is empty; give a file with data"
        assert "binary cannot be read: it is not UTF-8; give" in refusal(task(binary), bytewise)
        assert "Is a directory" in refusal(task(str(tmp_path)), bytewise)


def test_one_bad_line_in_ten_thousand_is_named(bytewise, write_jsonl):
    lines = [FREE] * 10_000
    lines[7122] = '{"document": "The gate is green.", "question": "What col'
    path = write_jsonl(*lines)

    said = refusal(Jsonl(str(path)), bytewise)
    assert said.startswith(f"{path} line 7123 is not JSON: Unterminated string")
    assert said.endswith("; repair or remove it")


BAD_LINES = [
    ([1], "is a JSON list; give an object"),
    (FREE | {"question": " "}, "has ' ' as 'question'; give a text"),
    (FREE | {"answer": 3}, "has 3 as 'answer'; give a text"),
    ({"question": "Q", "answer": "A"}, "has nothing as 'document'; give a text"),
    (FREE | CHOICE, "needs either 'answer' or both 'options' and 'correct'"),
    ({"document": "D", "question": "Q"}, "needs either 'answer' or both 'options' and 'correct'"),
    (FREE | {"correct": "green"}, "needs either 'answer' or both 'options' and 'correct'"),
    (FREE | {"anwser": "green"}, "has the key 'anwser'; it may have document, question, answer"),
    (CHOICE | {"options": ["the gate"]}, "has no two texts as 'options'; give a list of them"),
    (CHOICE | {"options": ["the gate", 4]}, "has 4 as 'options'; give a text"),
    (
        CHOICE | {"correct": "the door"},
        "has 'the door' as its answer, which is not among its 2 options; write it as one of them",
    ),
    (CHOICE | {"correct": 0}, "has 0 as 'correct'; give a text"),
    (
        CHOICE | {"options": ["the gate", "the wall", "the wall "]},
        "has the option 'the wall' twice; make the options differ",
    ),
]


@pytest.mark.parametrize(("line", "wanted"), BAD_LINES)
def test_a_bad_line_is_refused(bytewise, write_jsonl, line, wanted):
    path = write_jsonl("", line, FREE)

    assert f"{path} line 2 {wanted}" in refusal(Jsonl(str(path)), bytewise)


def test_two_lines_of_one_id_are_refused(bytewise, write_jsonl):
    path = write_jsonl(FREE | {"id": "a"}, FREE, FREE | {"id": "a"})

    wanted = f"{path} line 3 has the id 'a' of line 1; rename one"
    assert refusal(Jsonl(str(path)), bytewise) == wanted


def test_a_patient_is_a_document_and_a_group(bytewise):
    documents = list(LongHealth(str(PATIENTS)).documents(bytewise))
    texts = json.loads(PATIENTS.read_text())["patient_01"]["texts"]
    first = documents[0]
    cherries, sessions = first.items

    assert [document.group for document in documents] == ["patient_01", "patient_02"]
    assert bytewise.decode(first.token_ids).endswith(f"{texts['text_0']}\n\n{texts['text_1']}")
    assert (cherries.id, sessions.id) == ("patient_01/0", "patient_01/1")
    assert (cherries.correct, sessions.correct) == (1, 3)
    assert [bytewise.decode(option) for option in cherries.options] == [
        " Apples",
        " Cherries",
        " Pears",
        " Plums",
        " Walnuts",
    ]
    assert bytewise.decode(cherries.question) == (
        "\n\nQuestion: What was the patient picking when she fell?\nAnswer:"
    )


def broken_patients(tmp_path, change):
    patients = json.loads(PATIENTS.read_text())
    change(patients["patient_01"])
    path = tmp_path / "patients.json"
    path.write_text(json.dumps(patients))
    return path


@pytest.mark.parametrize(
    ("place", "wanted"),
    [
        ({"start": [0.2], "end": [0.5]}, ["bcdef"]),  # "cde", and a token more at each end
        ({"start": [0.0, 0.9], "end": [0.2, 1.0]}, ["abc", "ij"]),
        ({"start": [0.5], "end": [0.5]}, ["ef"]),
        ({"start": [0.2, 0.3], "end": [0.5]}, ["abcdefghij"]),  # no shares: the whole text
        ({"start": [20], "end": [50]}, ["abcdefghij"]),
        ("near the end", ["abcdefghij"]),
        (None, ["abcdefghij"]),
    ],
)
def test_an_answer_s_location_becomes_the_tokens_that_cover_it(bytewise, tmp_path, place, wanted):
    """A text of ten bytes, a token each."""

    def change(patient):
        patient["texts"] = {"text_0": "Nothing.", "text_1": "abcdefghij"}
        patient["questions"] = patient["questions"][:1]
        patient["questions"][0]["answer_location"] = {"text_1": place}

    path = broken_patients(tmp_path, change)
    document = next(LongHealth(str(path)).documents(bytewise))
    (item,) = document.items

    found = [bytewise.decode(document.token_ids[s.start : s.stop]) for s in item.evidence]
    assert found == wanted


def test_a_question_without_a_location_has_no_evidence(bytewise, tmp_path):
    path = broken_patients(tmp_path, lambda p: p["questions"][0].pop("answer_location"))

    assert next(LongHealth(str(path)).documents(bytewise)).items[0].evidence == ()


BAD_PATIENTS = [
    (lambda p: p.pop("texts"), " has no 'texts'; give an object of texts by id"),
    (lambda p: p["texts"].update(text_1=""), " has '' as 'text_1'; give a text"),
    (lambda p: p.pop("questions"), " has no 'questions'; give a list of them"),
    (lambda p: p["questions"].append(1), " has a question that is no object; give one"),
    (
        lambda p: p["questions"][1].pop("answer_e"),
        " question 1 has nothing as 'answer_e'; give a text",
    ),
    (
        lambda p: p["questions"][1].update(correct="Eleven"),
        " question 1 has 'Eleven' as its answer, which is not among its 5 options; write it",
    ),
    (
        lambda p: p["questions"][0].update(answer_e="Apples"),
        " question 0 has the option 'Apples' twice; make the options differ",
    ),
    (
        lambda p: p["questions"][0].update(answer_location={"text_9": {}}),
        " question 0 has its answer in 'text_9', which is no text; name one",
    ),
]


@pytest.mark.parametrize(("change", "wanted"), BAD_PATIENTS)
def test_a_bad_patient_is_refused(bytewise, tmp_path, change, wanted):
    path = broken_patients(tmp_path, change)

    assert f"{path} patient_01{wanted}" in refusal(LongHealth(str(path)), bytewise)


def test_a_file_that_is_no_object_of_patients_is_refused(bytewise, tmp_path):
    path = tmp_path / "patients.json"
    for text, wanted in [
        ("[]", "is a JSON list; give an object"),
        ("{}", "has no patient; give the whole file"),
        ('{"a": 1}', "a is no object; give texts and questions"),
        ("[" * 100_000, "is not JSON"),
    ]:
        path.write_text(text)
        assert f"{path} {wanted}" in refusal(LongHealth(str(path)), bytewise)


def test_fidelity_cuts_a_text_into_windows(bytewise, tmp_path):
    """An opening of 120 bytes, then 80 + 1 + 10 tokens of the text per window: 3 windows of 300."""
    path = tmp_path / "text.txt"
    text = "".join(chr(97 + at % 26) for at in range(300))
    path.write_text(text)
    first = len(opening(bytewise))
    documents = list(Fidelity(str(path), tokens=first + 80, compared=10).documents(bytewise))

    assert len(documents) == 3
    for index, document in enumerate(documents):
        (item,) = document.items
        assert bytewise.decode(document.token_ids[first:]) == text[index * 91 :][:80]
        assert bytewise.decode(item.question + item.answer) == text[index * 91 + 80 :][:11]
        assert (len(item.question), item.draft) == (1, 10)


def test_fidelity_refuses_a_text_shorter_than_a_window(bytewise, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("short")
    first = len(opening(bytewise))

    assert refusal(Fidelity(str(path), tokens=first + 10, compared=4), bytewise) == (
        f"{path} has 5 tokens and one window of {first + 10} takes 15, {first} of the {first + 10} "
        "being the prompt's opening; give a longer text or other tokens"
    )
