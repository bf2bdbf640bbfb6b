"""The newest live instance on a node holds the lease to publish."""

import fcntl
from pathlib import Path

import pytest

from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.state.publisher_lease import PublisherLease
from tests.state.child import line, running_child
from tests.support.waiting import PATIENCE_SECONDS


def taken(folder: Path) -> PublisherLease:
    lease = PublisherLease(folder)
    lease.take()
    return lease


def test_newest_of_the_instances_that_took_the_lease_holds_it(tmp_path: Path) -> None:
    old, new = PublisherLease(tmp_path), PublisherLease(tmp_path)
    assert old.held()
    old.take()
    old.take()
    assert old.held()
    assert len(list(tmp_path.glob("publisher-*"))) == 1

    new.take()
    assert (old.held(), new.held()) == (False, True)

    new.release()
    assert old.held()


@pytest.mark.process
def test_lease_returns_to_the_old_instance_when_the_new_process_is_killed(tmp_path: Path) -> None:
    old = taken(tmp_path)
    with running_child("take_lease", tmp_path) as new:
        assert line(new) == "taken"
        assert not old.held()

        new.kill()
        new.wait(PATIENCE_SECONDS)

        assert old.held()


@pytest.mark.process
def test_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    for _ in range(3):
        with running_child("take_lease", tmp_path) as process:
            assert line(process) == "taken"

    assert taken(tmp_path).held()
    assert len(list(tmp_path.glob("publisher-*"))) == 1


def test_missing_folder_is_a_retryable_error(tmp_path: Path) -> None:
    lease = PublisherLease(tmp_path / "missing")

    with pytest.raises(RetryableError, match="No such file or directory"):
        lease.take()

    assert lease.held()


def test_only_one_instance_takes_the_lease_at_a_time(tmp_path: Path) -> None:
    old, new = taken(tmp_path), PublisherLease(tmp_path)
    with (tmp_path / "publishers.lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)

        with pytest.raises(RetryableError, match=r"publishers\.lock"):
            new.take()

    new.take()
    assert not old.held()
