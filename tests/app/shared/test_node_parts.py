"""The parts of a node plugin that its verbs build as well."""

from pathlib import Path

from tensorfusion_dra.app.shared import node_parts
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.core.claims import enforcer as enforcer_rules
from tensorfusion_dra.core.claims.prepared import Limit
from tensorfusion_dra.core.devices import health
from tensorfusion_dra.core.devices.health import KnownCards
from tensorfusion_dra.state import saved_state
from tensorfusion_dra.state.saved_state import SavedState
from tests.support.builders.gpus import partition
from tests.support.builders.prepared_claims import prepared_claim, prepared_share

PARTS = [partition(number) for number in range(2)]


def test_limits_of_partitions_are_compared_with_what_the_node_plugin_read_last(
    tmp_path: Path,
) -> None:
    settings = Settings(node_name="node-01", kubelet_root=str(tmp_path))
    shares = [
        prepared_share(
            place,
            Limit(sm_percent=100, vram_bytes=each.vram_bytes),
            device=each.uuid.lower(),
            gpu_uuid=each.uuid,
        )
        for place, each in enumerate(PARTS)
    ]
    record = prepared_claim(*shares, enforcer="mig")

    def reasons() -> list[str]:
        found = enforcer_rules.judged(
            record, node_parts.enforcers(settings)["mig"], [], is_new=False
        )
        return [each.reason for each in found]

    before = reasons()
    known = KnownCards(cards={each.uuid: each for each in PARTS}, absent=frozenset({PARTS[1].uuid}))
    boot = node_parts.boot_id(settings)
    SavedState(settings.data_folder, saved_state.CARDS).save(health.as_json(known, boot_id=boot))

    assert before == ["SignsUnreadable"] * 2
    assert reasons() == ["LimitInHardware", "DeviceMissing"]
