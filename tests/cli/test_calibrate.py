"""`calibrate`: where it writes, and what it refuses."""

import pytest

from kri_core.artifacts import read_calibration


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("KRI_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_it_goes_where_bakes_look(kri, here, home):
    done = kri("calibrate", "--model", "model", "--text", "doc.txt")
    header = kri("cartridge", "inspect", "doc.safetensors", "--json").json

    assert done.code == 0, done.err
    name = f"{header['model']['fingerprint']}.safetensors"
    assert done.out == f"{home / 'calibrations' / name}\n"
    found = read_calibration(home / "calibrations" / name)
    assert found.num_tokens == 349 - 4
    assert found.centre.shape == (3, 4, 4)


def test_out_is_written_instead(kri, here, home, tmp_path):
    out = tmp_path / "c.safetensors"
    done = kri("calibrate", "--model", "model", "--text", "doc.txt", "--out", out)

    assert (done.code, done.out) == (0, f"{out}\n")
    assert read_calibration(out).num_tokens == 345
    assert not home.exists()


def test_a_text_that_cannot_be_read_is_refused(kri, here):
    done = kri("calibrate", "--model", "model", "--text", "missing.txt")

    assert done.code == 2
    assert "--text missing.txt cannot be read" in done.err
    assert "give a UTF-8 file" in done.err
