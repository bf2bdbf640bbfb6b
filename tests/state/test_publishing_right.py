"""Of several instances on a node, the newest that lives publishes."""

import fcntl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.state.publishing_right import PublishingRight
from tests.support.waiting import PATIENCE_SECONDS


@contextmanager
def another_process(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """One that has taken the right."""
    command = [sys.executable, "-m", "tests.state.publisher_child", str(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "taken\n"
        try:
            yield process
        finally:
            process.kill()


def taken(folder: Path) -> PublishingRight:
    right = PublishingRight(folder)
    right.take()
    return right


def test_an_instance_alone_has_the_right_before_and_after_it_takes_it(tmp_path: Path) -> None:
    right = PublishingRight(tmp_path)

    assert right.held()
    right.take()
    right.take()
    assert right.held()
    assert len(list(tmp_path.glob("publisher-*"))) == 1


def test_the_newer_of_two_has_it(tmp_path: Path) -> None:
    old, new = taken(tmp_path), taken(tmp_path)

    assert not old.held()
    assert new.held()


def test_a_new_instance_that_cannot_publish_leaves_the_old_one_its_right(tmp_path: Path) -> None:
    old = taken(tmp_path)

    PublishingRight(tmp_path)

    assert old.held()


def test_taking_it_again_makes_nobody_newer(tmp_path: Path) -> None:
    old, new = taken(tmp_path), taken(tmp_path)

    old.take()

    assert not old.held()
    assert new.held()


def test_the_old_one_has_it_again_when_the_new_one_releases_it(tmp_path: Path) -> None:
    old, new = taken(tmp_path), taken(tmp_path)

    new.release()

    assert old.held()


def test_the_old_one_has_it_again_when_the_new_process_is_killed(tmp_path: Path) -> None:
    old = taken(tmp_path)
    with another_process(tmp_path) as new:
        assert not old.held()

        new.kill()
        new.wait(PATIENCE_SECONDS)

        assert old.held()
        assert len(list(tmp_path.glob("publisher-*"))) == 1


def test_killed_processes_leave_no_files_for_ever(tmp_path: Path) -> None:
    for _ in range(3):
        with another_process(tmp_path):
            pass

    right = taken(tmp_path)

    assert right.held()
    assert len(list(tmp_path.glob("publisher-*"))) == 1


def test_the_middle_one_of_three_has_it_when_the_newest_goes(tmp_path: Path) -> None:
    first, second, third = (taken(tmp_path) for _ in range(3))

    third.release()

    assert not first.held()
    assert second.held()


def test_a_full_or_missing_folder_is_an_error_of_a_kind_that_passes(tmp_path: Path) -> None:
    right = PublishingRight(tmp_path / "missing")

    with pytest.raises(RetryableError, match="No such file or directory"):
        right.take()

    assert right.held()


def test_while_another_one_takes_it_nobody_else_does(tmp_path: Path) -> None:
    old, new = taken(tmp_path), PublishingRight(tmp_path)
    with (tmp_path / "publishers.lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)

        with pytest.raises(RetryableError, match=r"publishers\.lock"):
            new.take()

    new.take()
    assert not old.held()


def test_the_files_are_for_the_owner_alone(tmp_path: Path) -> None:
    right = taken(tmp_path)

    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    right.release()
