"""Findings about providers of other packages."""

from tensorfusion_dra.core.doctor import providers
from tensorfusion_dra.core.doctor.finding import Level

WHO = "provider rack (attributes, racks 1.0)"


def test_provider_that_answers_is_fine() -> None:
    found = providers.provider(WHO, given=["b", "a"], errors=[], refused=[])

    assert (found.level, found.found) == (Level.OK, "gives a, b")


def test_provider_without_an_answer_at_present_is_fine() -> None:
    found = providers.provider(WHO, given=[], errors=[], refused=[])

    assert (found.level, found.found) == (Level.OK, "gives nothing at present")


def test_failure_is_a_warning_with_its_error() -> None:
    found = providers.provider(WHO, given=[], errors=["ValueError('x')"], refused=["a: b"])

    assert (found.level, found.found) == (Level.WARNING, "ValueError('x')")
    assert "--disable-provider" in found.cure


def test_refused_name_is_a_warning() -> None:
    found = providers.provider(WHO, given=["a"], errors=[], refused=["model: taken"])

    assert (found.level, found.found) == (Level.WARNING, "left out: model: taken")


def test_provider_whose_name_is_taken_is_a_warning() -> None:
    found = providers.unused(WHO, "name: found rack")

    assert (found.level, found.found) == (Level.WARNING, "not used: name: found rack")
