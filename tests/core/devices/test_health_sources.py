"""Problems of health sources as troubles of a card."""

from tensorfusion_dra.core.devices import health_sources
from tensorfusion_dra.core.devices.health_sources import Problem


def test_text_of_256_characters_is_kept_behind_the_name_of_its_source() -> None:
    problems = [Problem(reason="fan-stopped", text="x" * length) for length in (256, 257)]

    kept, cut = health_sources.troubles(problems, source="fans")

    assert kept.text == cut.text == "fans: " + "x" * 256
