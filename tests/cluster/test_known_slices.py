"""What is known of the node's slices, whatever order lists, events and answers arrive in."""

from typing import Any

from tensorfusion_dra.cluster.slices import KnownSlices


def stored(version: int, *, name: str = "a", uid: str = "") -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    }


def versions(known: KnownSlices) -> dict[str, int]:
    return {
        item["metadata"]["name"]: int(item["metadata"]["resourceVersion"])
        for item in known.all() or []
    }


def listed(*items: dict[str, Any], version: int = 5) -> KnownSlices:
    known = KnownSlices()
    known.note_list(items, str(version))
    return known


def test_nothing_is_known_before_the_first_list() -> None:
    known = KnownSlices()
    known.note_stored(stored(3))

    assert known.all() is None
    assert listed().all() == []


def test_event_of_an_own_write_is_no_news() -> None:
    known = listed(stored(4))
    known.note_stored(stored(6))

    assert not known.note_event("MODIFIED", stored(6))
    assert versions(known) == {"a": 6}


def test_event_that_is_older_than_an_own_write_is_no_news() -> None:
    known = listed(stored(4))
    known.note_stored(stored(10))

    assert not known.note_event("MODIFIED", stored(9))
    assert versions(known) == {"a": 10}


def test_change_and_deletion_by_another_writer_are_news() -> None:
    known = listed(stored(4))

    assert known.note_event("MODIFIED", stored(6))
    assert known.note_event("ADDED", stored(7, name="b"))
    assert known.note_event("DELETED", stored(8))
    assert versions(known) == {"b": 7}


def test_answer_to_a_write_does_not_replace_a_later_change() -> None:
    known = listed(stored(4))
    known.note_event("MODIFIED", stored(7))

    known.note_stored(stored(6))

    assert versions(known) == {"a": 7}


def test_own_deletion_is_no_news_and_earlier_events_do_not_bring_the_object_back() -> None:
    known = listed(stored(4))
    known.note_deleted(stored(4))

    assert not known.note_event("MODIFIED", stored(5))
    assert not known.note_event("DELETED", stored(6))
    assert versions(known) == {}


def test_late_deletion_of_an_object_that_was_created_again_is_no_news() -> None:
    known = listed(stored(4, uid="first"))
    known.note_deleted(stored(4, uid="first"))
    known.note_stored(stored(8, uid="second"))

    assert not known.note_event("DELETED", stored(7, uid="first"))
    assert versions(known) == {"a": 8}


def test_list_that_is_older_than_own_writes_does_not_undo_them() -> None:
    known = listed(stored(4), stored(4, name="b"))
    known.note_stored(stored(10))
    known.note_stored(stored(11, name="c"))
    known.note_deleted(stored(4, name="b"))

    news = known.note_list([stored(4), stored(4, name="b")], "9")

    assert not news
    assert versions(known) == {"a": 10, "c": 11}


def test_list_brings_news_if_another_writer_has_changed_or_deleted_a_slice() -> None:
    assert listed(stored(4)).note_list([stored(8)], "9")
    assert listed(stored(4)).note_list([], "9")
    assert listed().note_list([stored(8)], "9")
    assert not listed(stored(4)).note_list([stored(4)], "9")


def test_versions_that_are_no_numbers_count_as_later() -> None:
    known = listed(stored(4))
    changed = stored(4)
    changed["metadata"]["resourceVersion"] = "opaque"

    assert known.note_event("MODIFIED", changed)
    assert not known.note_event("MODIFIED", changed)
