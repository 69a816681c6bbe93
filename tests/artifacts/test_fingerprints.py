"""The same inputs give the same hashes in every process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

FINGERPRINTS = textwrap.dedent("""
    import torch
    from kri_core.artifacts import seal
    from kri_core.identity import ModelIdentity

    model = ModelIdentity("m", "r", "Tiny", '{"theta":10000}', "w", "t")
    kv = torch.arange(64.0).reshape(2, 1, 2, 2, 4, 2)
    tail = torch.zeros(1, 2, 2, 1, 2)
    for trained in (False, True):
        cartridge = seal("c", 4, model, range(9), kv, tail, trained)
        print(model.fingerprint, cartridge.sha256, cartridge.prefix_hash)
""")


def test_hashes_are_equal_in_four_processes_whatever_the_hash_seed():
    children = []
    for seed in (None, "0", "random", "random"):
        env = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
        env |= {} if seed is None else {"PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", FINGERPRINTS]
        children.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    answers = [child.communicate()[0] for child in children]

    assert len(set(answers)) == 1
    first, second = answers[0].splitlines()
    assert len(first.split()) == 3
    assert first != second
