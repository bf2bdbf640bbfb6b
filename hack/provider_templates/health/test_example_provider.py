"""The problems, and the driver's rules for health sources."""

from pathlib import Path

from example_provider import Source

from tensorfusion_dra import testing


def test_conforms(tmp_path: Path) -> None:
    testing.check_health_source(Source(tmp_path))


def test_file_of_a_card_is_its_problem(tmp_path: Path) -> None:
    card, other = testing.gpu(0), testing.gpu(1)
    (tmp_path / card.uuid).write_text("fan 2 stands still\n")

    found = testing.check_health_source(Source(tmp_path), gpus=[card, other])

    assert found == {card.uuid: ["example-provider"]}
