"""The commands and programs of the pages for users run as written, on the simulated device."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from uvmalloc._cli.environment import Machine, on_simulated_device
from uvmalloc.libraries import Libraries

from tests.pages import LANGUAGES, PAGES, ROOT, Block, blocks_of, figures

NAMES = [str(page.relative_to(ROOT)) for page in PAGES]

# What the pages call the reader's programs.
WITH_TORCH = """
import torch
print((torch.ones(1 << 20, device="cuda") + 1).sum().item())
"""
WITH_CUDA = """
import ctypes
runtime, pointer = ctypes.CDLL("libcudart.so.13"), ctypes.c_void_p()
assert runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(4 << 20)) == 0
assert runtime.cudaFree(pointer) == 0
"""


@pytest.fixture
def shell(
    libraries: Libraries, clean_environment: dict[str, str], tmp_path: Path
) -> dict[str, str]:
    """Returns the environment of a reader with a GPU, and uvmalloc and Python on the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, module in {"uvmalloc": "uvmalloc", "torchrun": "torch.distributed.run"}.items():
        command = folder / name
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
        command.chmod(0o755)
    path = os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])
    machine = Machine(devices=2)
    return {**on_simulated_device(clean_environment, libraries, machine, None), "PATH": path}


def run(block: Block, shell: dict[str, str], folder: Path) -> str:
    """Runs the block as a reader would, and returns what it prints."""
    if block.language == "python":
        program = folder / (block.file or "block.py")
        program.write_text(block.text)
        command = ["uvmalloc", "run", "--no-report", "--", "python", program.name]
    else:
        command = ["bash", "-euo", "pipefail", "-c", block.text]
    finished = subprocess.run(
        command, cwd=folder, env=shell, text=True, timeout=180, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert finished.returncode == block.exit_code, f"{block.text}\n{finished.stdout}"
    return finished.stdout


def missing_lines(wanted: str, printed: str) -> list[str]:
    """Returns the lines that were not printed. `[...]` stands for any text."""
    plain = " ".join(printed.split())
    return [
        line
        for line in wanted.splitlines()
        if not re.search(
            ".*".join(re.escape(" ".join(part.split())) for part in line.split("[...]")), plain
        )
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_blocks_of_a_page_run_as_written(
    name: str, shell: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "examples").symlink_to(ROOT / "examples")
    program = WITH_TORCH if name == "docs/install.md" else WITH_CUDA
    for stand_in in ("train.py", "search.py", "ranks.py"):
        (folder / stand_in).write_text(program)
    printed = ""
    for block in blocks_of(ROOT / name):
        if block.is_code and not block.reason_not_to_run:
            printed = run(block, shell, folder)
        elif block.comment == "output":
            assert missing_lines(block.text, printed) == []


@pytest.mark.parametrize("name", NAMES)
def test_the_syntax_of_all_blocks_is_right(name: str) -> None:
    for block in blocks_of(ROOT / name):
        assert block.language in LANGUAGES, block
        if block.language == "python":
            compile(block.text, name, "exec")
        elif block.language == "sh":
            checked = subprocess.run(
                ["bash", "-n"], input=block.text, text=True, capture_output=True, check=False
            )
            assert checked.returncode == 0, f"{block.text}\n{checked.stderr}"
        elif block.language == "yaml":
            yaml.safe_load(block.text)


@pytest.mark.parametrize("name", NAMES)
def test_every_block_is_fenced_and_each_comment_is_understood(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"^    [^ *].*", outside.replace("\n      ", " "), re.MULTILINE) == []
    known = re.compile(
        r"not run: (needs|builds|would) .+|file: \S+\.py|exit code: \d+|output"
        r"|scripts/lists.py writes this table|end of the table"
    )
    assert [c for c in re.findall(r"<!-- (.*?) -->", text) if not known.fullmatch(c)] == []


def test_the_reasons_in_the_table_are_those_of_the_library() -> None:
    page = (ROOT / "docs" / "out-of-memory.md").read_text(encoding="utf-8")
    table = page.partition("| the message says |")[2].partition("\n\n")[0]
    texts = re.findall(r"^\| `([^`]+)`", table, re.MULTILINE)
    assert len(texts) == 6
    sources = "".join(
        file.read_text(encoding="utf-8")
        for folder in ("allocator", "pytorch/plugin")
        for file in (ROOT / folder).rglob("*.?pp")
    )
    assert [text for text in texts if text.removesuffix(" ...") not in sources] == []


def test_the_pages_are_short_and_most_blocks_run() -> None:
    counted = figures()
    assert counted["user_words"] <= 12_000
    assert counted["examples_run"] > 2 * counted["examples_not_run"] > 0
