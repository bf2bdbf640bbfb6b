"""Islands of cards, and the driver's rules for providers."""

from nvlink_island import ATTRIBUTE, SWITCH, NvlinkIslands, islands

from tensorfusion_dra import testing


def test_chain_of_links_is_one_island() -> None:
    links = {"b": ["c"], "c": ["b", "d"], "d": ["c"], "a": [], "e": ["f"], "f": ["e"]}

    assert islands(links) == {"a": "a", "b": "b", "c": "b", "d": "b", "e": "e", "f": "e"}


def test_cards_at_a_switch_are_one_island() -> None:
    assert islands({"a": [SWITCH], "b": [SWITCH], "c": []}) == {"a": "a", "b": "a", "c": "c"}


def test_link_that_only_one_end_reports_counts() -> None:
    assert islands({"a": [], "b": ["a"], "c": ["b"]}) == dict.fromkeys("abc", "a")


def test_conforms() -> None:
    first, second = (testing.gpu(index) for index in range(2))

    given = testing.check_attributes(
        NvlinkIslands(lambda gpus: {gpu.uuid: [first.uuid] for gpu in gpus}), gpus=[first, second]
    )

    assert given[first.uuid] == given[second.uuid] == {ATTRIBUTE: first.uuid}


def test_simulated_cards_have_no_links_and_need_no_nvml() -> None:
    cards = [testing.gpu(index, simulated=True) for index in range(2)]
    provider = NvlinkIslands()

    provider.begin(testing.reading(*cards))

    assert provider(cards[0], testing.node()) == {ATTRIBUTE: cards[0].uuid}
