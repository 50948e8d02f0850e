"""examples/model_server.py: three models on a device that holds one."""

from __future__ import annotations

from pathlib import Path

from bench.groups.requests import run


def test_each_answer_is_right_while_models_take_turns() -> None:
    outcome = run(clients=4, requests=8)
    assert outcome.wrong == []
    assert outcome.answered > 16
    assert all(each["sleeps"] > 1 for each in outcome.ended.values()), outcome.ended
    assert sum(each["device_bytes"] for each in outcome.ended.values()) <= 96 << 20


def test_each_answer_is_right_while_models_sleep_in_files_and_the_disk_is_full(
    folder_on_disk: Path,
) -> None:
    outcome = run(clients=4, requests=8, folder=folder_on_disk)
    assert outcome.wrong == []
    assert outcome.unfiled == 3, "no model got into a file while the disk was full"
    assert outcome.filed_bytes >= 96 << 20
