"""`uvmalloc doctor --bundle`: what the archive holds, and that nothing private is in it."""

from __future__ import annotations

import gzip
import io
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from uvmalloc._cli import bundle
from uvmalloc._cli.main import main
from uvmalloc._cli.private import REMOVED, Filter
from uvmalloc.libraries import Libraries

FILES = {"doctor.txt", "doctor.json", "versions.json", "machine.json", "variables.json",
         "libraries.json"}  # fmt: skip
PLANTED = ("hunter2", "jdoe", "build-host-7", "s3cr3t", "hf_AbCdEf0123456789", "gho_" + "x" * 36)
REPORT = {
    "version": "0.1.0",
    "program": "python /home/jdoe/work/train.py --api-key s3cr3t --password=hunter2",
    "active": True,
    "pid": 7,
    "reason": "https://jdoe:hunter2@build-host-7.example/x, token: hf_AbCdEf0123456789",
    "launched": {
        "command": ["python", "/home/jdoe/work/train.py", "--auth-token", "s3cr3t", "--steps", "3"],
        "auth_token": "s3cr3t",
    },
    "environment_of_jdoe": "GH=gho_" + "x" * 36,
}


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Returns a folder with a report. User, host, home folder and variables have known names."""
    home = tmp_path / "home" / "jdoe"
    home.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("LOGNAME", "jdoe")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    monkeypatch.setenv("MY_PROJECT", "s3cr3t")
    monkeypatch.setenv("PYTORCH_HUB_TOKEN", "hunter2")
    monkeypatch.setenv("UVMALLOC_REPORT_DIR", str(home / "reports"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("LD_AUDIT", str(home / "s3cr3t" / "audit.so"))
    monkeypatch.setattr("socket.gethostname", lambda: "build-host-7.example")
    (tmp_path / "run.json").write_text(json.dumps(REPORT))
    return tmp_path


def unpacked(file: Path) -> dict[str, str]:
    with tarfile.open(file) as tar:
        members = tar.getmembers()
        assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in members} == {(0, 0, "", "", 0)}
        streams = {m.name: tar.extractfile(m) for m in members}
        return {
            name.removeprefix("uvmalloc-bundle/"): stream.read().decode()
            for name, stream in streams.items()
            if stream is not None
        }


def test_the_archive_holds_what_is_needed_and_nothing_private(
    planted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--bundle", "out.tar.gz", "--report", "run.json", "--yes"]) == 0
    files = unpacked(planted / "out.tar.gz")
    assert files.keys() == FILES | {"report-1.json"}
    everything = gzip.decompress((planted / "out.tar.gz").read_bytes()).decode()
    shown = capsys.readouterr().out
    for secret in PLANTED:
        assert secret not in everything
        assert secret not in shown
    for text in files.values():
        assert text in shown, "all of it is shown"
    variables = json.loads(files["variables.json"])
    assert variables["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert variables["UVMALLOC_REPORT_DIR"] == "~/reports"
    assert variables["PYTORCH_HUB_TOKEN"] == REMOVED
    prefixes = ("UVMALLOC_", "PYTORCH_", "CUDA_VISIBLE_DEVICES")
    assert all(name.startswith(prefixes) for name in variables)
    report = json.loads(files["report-1.json"])
    assert report["launched"]["command"][2:] == ["--auth-token", REMOVED, "--steps", "3"]
    assert report["program"].startswith("python /home/<user>/work/train.py --api-key <removed>")
    diagnosis = json.loads(files["doctor.json"])
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?|unknown", diagnosis["build"]["commit"])
    assert diagnosis["hooks"] == ["audit.so"]
    assert json.loads(files["versions.json"])["python"] == sys.version.split()[0]
    assert json.loads(files["machine.json"])["kernel"].startswith("Linux ")


def test_libraries_are_listed_with_the_build_ids_that_readelf_finds(
    planted: Path, libraries: Libraries
) -> None:
    plugin = libraries.plugins()[0]
    found = bundle.contents([], {}, Filter([], [], []))
    listed = json.loads(found["libraries.json"])
    assert any(name.endswith("/libtorch_cpu.so") for name in listed)
    for name in (str(libraries.uvmalloc.resolve()), str(plugin)):
        said = subprocess.run(["readelf", "-n", name], capture_output=True, text=True, check=True)
        build_id = re.search(r"Build ID: ([0-9a-f]+)", said.stdout)
        assert listed[name] == (build_id[1] if build_id else "no build id")
    assert sum(bool(re.fullmatch("[0-9a-f]{16,}", each)) for each in listed.values()) > 3


@pytest.mark.parametrize("content", [b"", b"\x7fELF\x01" + bytes(60), b"\x7fELF\x02\x01", b"text"])
def test_what_is_no_library_has_no_build_id(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "lib.so"
    file.write_bytes(content)
    with pytest.raises((ValueError, bundle.struct.error)):
        bundle.build_id(file)


@pytest.mark.parametrize(("answer", "is_written"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_nothing_is_written_without_a_yes(
    planted: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: str,
    is_written: bool,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    assert main(["doctor", "--bundle"]) == (0 if is_written else 1)
    file = planted / "uvmalloc-bundle.tar.gz"
    assert file.exists() == is_written
    said = capsys.readouterr()
    assert "==== doctor.txt (" in said.out
    assert ("wrote uvmalloc-bundle.tar.gz" if is_written else "nothing was written") in said.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("out.tar.gz",), "FILE is 'out.tar.gz'; accepted: only with --bundle"),
        (("--report", "run.json"), "--report is 'run.json'; accepted: only with --bundle"),
        (("--yes",), "--yes is 'True'; accepted: only with --bundle"),
        (("--bundle", "no/out.tar.gz", "--yes"), "FILE is 'no/out.tar.gz'; accepted: a file in a"),
        (("--bundle", "--report", "none.json", "--yes"), "cannot read none.json"),
        (("--bundle", "--report", "text", "--yes"), "text is not a report"),
    ],
)
def test_wrong_uses_are_one_line(
    planted: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    (planted / "text").write_text("no report")
    assert main(["doctor", *arguments]) != 0
    captured = capsys.readouterr()
    assert captured.err.startswith(f"uvmalloc: error: {said}")
    assert captured.err.count("\n") == 1
    assert not list(planted.glob("*.tar.gz"))


# ---- the filter

FILTER = Filter(
    ["jdoe", "al", "root"], ["node-3.cluster", "node-3", "torch"], ["/data/people/jdoe", "/root"]
)


@pytest.mark.parametrize(
    ("text", "filtered"),
    [
        ("/data/people/jdoe/x /data/people/jdoe2/x", "~/x /data/people/jdoe2/x"),
        ("/root/.venv:/rootfs", "~/.venv:/rootfs"),
        ("JDOE on node-3 and NODE-3.cluster", "<user> on <host> and <host>"),
        ("al_x signal al", "<user>_x signal <user>"),
        ("/home/someone/x '/Users/Some.One'", "/home/<user>/x '/Users/<user>'"),
        ("--token abc --token-file /x", f"--token {REMOVED} --token-file {REMOVED}"),
        ("password: 'p w'", f"password: '{REMOVED} w'"),
        ('{"client_secret": "abc"}', f'{{"client_secret": "{REMOVED}"}}'),
        ("HF_TOKEN=abc;X=1", f"HF_TOKEN={REMOVED};X=1"),
        ("https://u:p@host/x", f"https://{REMOVED}@host/x"),
        ("key ghp_" + "a" * 36, f"key {REMOVED}"),
        ("eyJhbGciOiJI.eyJzdWIiOiIx.abc-def", REMOVED),
        ("sk-" + "a" * 32, REMOVED),
        ("--header=Authorization: Bearer a.b-c", f"--header=Authorization: {REMOVED} {REMOVED}"),
        ("-H 'X: Basic dTpw'", f"-H 'X: Basic {REMOVED}'"),
        (
            "--pwd x --db-pass y --auth z --key=k",
            " ".join(f"{name}{REMOVED}" for name in ("--pwd ", "--db-pass ", "--auth ", "--key=")),
        ),
        ("PYTORCH_AUTH=x https://s/f?sig=y", f"PYTORCH_AUTH={REMOVED} https://s/f?sig={REMOVED}"),
        ("a -----BEGIN RSA PRIVATE KEY-----\nMII\nx", f"a {REMOVED}"),
        ("mail jane.doe@example.org", "mail <address>"),
        ("author: x, keys: 3, passes: 2, signal: 9", "author: x, keys: 3, passes: 2, signal: 9"),
        (
            "UVMALLOC_BUDGET 8 GiB, 640 tokenised words",
            "UVMALLOC_BUDGET 8 GiB, 640 tokenised words",
        ),
        ("root and torch are common", "root and torch are common"),
    ],
)
def test_private_words_are_replaced(text: str, filtered: str) -> None:
    assert FILTER.text(text) == filtered


def test_values_keep_their_form() -> None:
    value = {"api_key": "abc", "n": [1, None, 2.5, True], "jdoe": {"token": 7, "x": ("--key", "y")}}
    assert FILTER.value(value) == {
        "api_key": REMOVED, "n": [1, None, 2.5, True],
        "<user>": {"token": 7, "x": ["--key", REMOVED]},
    }  # fmt: skip
