"""The site holds every page, and its generated pages every command, header and name."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import uvmalloc
import yaml

ROOT = Path(__file__).resolve().parents[2]
GENERATED = {f"docs/reference/{name}.md" for name in ("command-line", "headers", "python")}
NO_ENTRY = {"docs/internals/rationale", "docs/measurements"}  # other pages lead to these


def site_pages():
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "scripts" / "site_pages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def entries(nav: object) -> set[str]:
    if isinstance(nav, str):
        return {nav}
    values = nav if isinstance(nav, list) else list(nav.values()) if isinstance(nav, dict) else []
    return {entry for value in values for entry in entries(value)}


def test_the_menu_has_every_document_once() -> None:
    menu = entries(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    documents = {str(file.relative_to(ROOT)) for file in (ROOT / "docs").rglob("*.md")}
    top = {name for name in menu if not name.startswith("docs/")}
    assert top <= set(site_pages().BEGIN)
    wanted = {name for name in documents if str(Path(name).parent) not in NO_ENTRY}
    wanted |= {name for name in documents if name.endswith("rationale/README.md")} | GENERATED
    assert menu - top == wanted


def test_files_that_pages_link_to_are_on_the_site() -> None:
    files = {str(file.relative_to(ROOT)) for file in site_pages().files_of_site()}
    assert {"README.md", "docs/pictures/first-run.svg", "examples/first_run.py"} <= files
    assert {"sim/README.md", "preload/calls.def"} <= files


def test_the_generated_pages_are_complete() -> None:
    pages = site_pages()
    commands = pages.command_line()
    for command in ("run", "sim", "doctor", "report", "plan", "top", "trace csv"):
        assert f"\n## uvmalloc {command}\n" in commands
    assert "| `--budget SIZE` |" in commands
    names = pages.python_interface()
    assert all(f"heading: uvmalloc.{name}," in names for name in uvmalloc.__all__)
    assert "::: uvmalloc.groups.groups\n" in names  # the function, not the module
    headers = pages.headers()
    for header in (ROOT / "include" / "uvmalloc").rglob("*.h*"):
        assert f"[{header.relative_to(ROOT / 'include')}]" in headers


def test_the_pages_are_written_to_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["site_pages.py", str(tmp_path / "pages")])
    site_pages().main()
    for name in GENERATED | {"README.md", "docs/install.md", "CHANGELOG.md"}:
        assert (tmp_path / "pages" / name).is_file(), name
