"""What pages say twice agrees, what they link to is there, and decisions stay short."""

from __future__ import annotations

import re

LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def test_the_readme_shows_the_plugin_of_the_guide_in_under_40_lines(root, files_shown):
    shown = files_shown(root / "README.md")

    assert shown == files_shown(root / "docs" / "writing-a-plugin.md")
    readme = (root / "README.md").read_text(encoding="utf-8")
    section = readme.split("## Write your own\n")[1].split("\n## ")[0]
    assert section.count("\n") < 40


def test_every_relative_link_leads_somewhere(root):
    pages = [*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("changelog.d/README.md")]
    broken = [
        f"{page.relative_to(root)} → {target}"
        for page in pages
        for target in LINK.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]

    assert len(pages) > 5
    assert broken == []


def test_a_decision_record_has_four_parts_in_40_lines(root):
    records = sorted(root.glob("docs/adr/*.md"))

    assert [record.name[:4] for record in records] == [f"{n + 1:04}" for n in range(len(records))]
    for record in records:
        text = record.read_text(encoding="utf-8")
        assert re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE) == [
            "Context",
            "Decision",
            "Consequence",
            "Rejected",
        ]
        assert text.count("\n") <= 40


def test_the_contract_page_names_every_hook_and_exit_code(root):
    from kri_core import errors, hookspecs

    page = (root / "docs" / "contract.md").read_text(encoding="utf-8")
    hooks = [hook for spec in hookspecs.SLOTS.values() for hook in vars(spec) if "kri_" in hook]
    raised = [kind for kind in vars(errors).values() if hasattr(kind, "exit_code")]

    assert len(hooks) == 8
    assert [hook for hook in hooks if f"`{hook}`" not in page] == []
    assert [
        kind.__name__ for kind in raised if f"| {kind.exit_code} | `{kind.__name__}` |" not in page
    ] == []


def test_the_import_contracts_name_every_plugin_of_the_repository(root):
    import tomllib

    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    named = set(settings["tool"]["importlinter"]["root_packages"]) - {"kri_core"}

    assert named == {package.name for package in root.glob("plugins/*/kri_plugin_*")}
