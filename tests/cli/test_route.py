"""`route`: the choice, the reasons, the page."""

import shutil

from kri_core.testing.tiny import save_tiny

ROUTE = ("route", "--cartridge", "doc.safetensors")


def test_position_only_stacks_need_no_prior(kri, here):
    shown = kri(*ROUTE, "--stack", "recency[budget=3]", "--json").json

    assert shown["selected_blocks"] == [18, 19, 20]
    assert shown["total_blocks"] == 21
    assert shown["stack"] == "recency[budget=3]"


def test_every_kept_block_is_explained_with_its_text(kri, here):
    """Block 0 holds <s> and the first 15 bytes."""
    done = kri(*ROUTE, "--stack", "A1R1K1", "--prior", "priors/doc_kri-d.pt", "--explain", "--json")
    blocks = {item["block"]: item for item in done.json["blocks"]}

    assert blocks[0]["why"] == "pinned as anchor"
    assert blocks[0]["text"].endswith("The pump is set")
    assert blocks[20]["why"] == "pinned as recent"
    best = [item for item in blocks.values() if item["rank"] == 1]
    assert [item["kept"] for item in best] == [True]
    assert best[0]["score"] == max(blocks[b]["score"] for b in range(1, 20))


def test_the_explanation_is_readable_too(kri, here):
    done = kri(*ROUTE, "--stack", "A1R1K1", "--prior", "priors/doc_kri-d.pt", "--explain")

    assert "rank 1 of the mid, score" in done.out
    assert "The pump is set" in done.out


def test_the_page_stands_alone_and_escapes_the_document(kri, here, tmp_path):
    (tmp_path / "doc.txt").write_text("<script>alert(1)</script> & more, so that blocks fill up.")
    cart, page = tmp_path / "doc.safetensors", tmp_path / "page.html"
    kri("cartridge", "build", "--model", "model", "--text", tmp_path / "doc.txt", "--out", cart)

    done = kri("route", "--cartridge", cart, "--stack", "A1R1K1(random)", "--html", page)
    html = page.read_text()
    assert done.code == 0, done.err
    assert "<script" not in html
    assert "&lt;script" in html
    assert "http" not in html


def test_a_cartridge_without_its_model_shows_blocks_by_number(kri, here, tmp_path):
    """The tokenizer is looked up where the cartridge says; that it is gone is said, not hidden."""
    save_tiny(tmp_path / "gone")
    cart = tmp_path / "doc.safetensors"
    kri("cartridge", "build", "--model", tmp_path / "gone", "--text", "doc.txt", "--out", cart)
    shutil.rmtree(tmp_path / "gone")

    done = kri("route", "--cartridge", cart, "--stack", "recency[budget=1]", "--explain")
    assert done.code == 0
    assert "no text is shown: model" in done.err
    assert "pinned as recent" in done.out


def test_a_cartridge_finds_its_model_from_another_folder(kri, here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cart = here / "doc.safetensors"

    done = kri("route", "--cartridge", cart, "--stack", "recency[budget=1]", "--explain")
    assert "no text" not in done.err
