"""Files that the command writes, in private folders of this user and in shared folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from uvmalloc._cli.files import write_own


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def test_a_new_file_is_of_its_user_alone_and_is_written_again(shared: Path) -> None:
    file = shared / "file"
    before = os.umask(0)
    try:
        write_own(file, b"first")
        write_own(file, b"2")
    finally:
        os.umask(before)
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (b"2", 0o600)


def test_an_output_in_a_shared_folder_goes_through_no_link(tmp_path: Path, shared: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (shared / "link").symlink_to(precious)
    (shared / "dangling").symlink_to(tmp_path / "new")
    (shared / "name").hardlink_to(precious)
    for name in ("link", "dangling", "name"):
        with pytest.raises(OSError, match=name):
            write_own(shared / name, b"other")
    assert precious.read_text() == "precious"
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of another user")
def test_a_file_of_another_user_in_a_shared_folder_is_left_alone(shared: Path) -> None:
    file = shared / "file"
    file.write_text("theirs")
    os.chown(file, 65534, 65534)
    with pytest.raises(OSError, match="it belongs to another user"):
        write_own(file, b"ours")
    assert file.read_text() == "theirs"


def test_in_an_own_folder_links_and_devices_are_the_users_choice(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "new")
    write_own(tmp_path / "link", b"content")
    assert (tmp_path / "new").read_bytes() == b"content"
    write_own(Path("/dev/null"), b"content")
    assert Path("/dev/null").is_char_device()
