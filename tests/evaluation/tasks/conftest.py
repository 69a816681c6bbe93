"""Two tokenizers: one token per byte, and the embedded model's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kri_core.models import model_directory

SYSTEM_TURN = "<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n"


class FileTokenizer:
    """A `tokenizers` tokenizer without special tokens around a text."""

    def __init__(self, tokenizer, turn):
        self.tokenizer, self.turn = tokenizer, turn

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, token_ids):
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=False)

    def open_turn(self, system):
        return self.turn.format(system=system)


@pytest.fixture(scope="session")
def bytewise():
    """One token per byte; its template takes a system message."""
    from kri_core.testing.tiny import tiny_tokenizer

    turn = "<s><|system|>{system}<|end|><|user|>"
    return FileTokenizer(tiny_tokenizer().backend_tokenizer, turn)


@pytest.fixture(scope="session")
def embedded():
    """The embedded model's tokenizer, read without transformers."""
    from tokenizers import Tokenizer

    path = model_directory("smollm2-135m") / "tokenizer.json"
    if not path.is_file():
        pytest.skip("the embedded model is not here; make model")
    return FileTokenizer(Tokenizer.from_file(str(path)), SYSTEM_TURN)


@pytest.fixture
def write_jsonl(tmp_path):
    """A file of one JSON value a line; a text goes in as it is."""

    def write(*lines) -> Path:
        path = tmp_path / "questions.jsonl"
        texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
        path.write_text("\n".join(texts), encoding="utf-8")
        return path

    return write
