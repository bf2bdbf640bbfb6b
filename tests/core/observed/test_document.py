"""The view of a node as JSON."""

import json
from dataclasses import replace

from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.core.observed import document
from tensorfusion_dra.core.observed.node_view import (
    ApiServerView,
    NodeView,
    PublishingView,
    RegistrationView,
)
from tests.support.status_scenes import builders, scenes


def test_document_has_every_card_and_share_of_the_view() -> None:
    view = scenes.typical()

    found = document.as_json(view)

    assert [card["uuid"] for card in found["cards"]] == [card.uuid for card in view.cards]
    assert [(share["namespace"], share["claim"]) for share in found["shares"]] == [
        (share.claim.namespace, share.claim.name) for share in view.shares
    ]
    assert len(found["operations"]) == len(view.operations)
    assert found["node"] == {
        "name": "gpu-node-07.example",
        "pool": "research/gpu-node-07.example",
        "version": "0.1.0",
        "startedAt": "2026-03-11T23:12:44.000+00:00",
    }


def test_card_shows_its_physical_and_its_virtual_amounts() -> None:
    _, card, *_ = document.as_json(scenes.typical())["cards"]

    assert card["oversubscribed"] is True
    assert card["physical"] == {"tflops": 312.0, "vramBytes": 80 * GIB}
    assert card["capacity"] == {"tflops": 468.0, "vramBytes": 112 * GIB}
    assert card["consumed"] == {"tflops": 390.0, "vramBytes": 96 * GIB}
    assert card["free"] == {"tflops": 78.0, "vramBytes": 16 * GIB}
    assert card["xids"] == [
        {
            "xid": 31,
            "message": "XID 31",
            "marksCard": False,
            "count": 3,
            "lastAt": "2026-03-14T03:05:44.000+00:00",
        }
    ]
    assert card["otherCapacities"] == [
        {"name": "example.com/encoder_sessions", "quantity": "16", "consumed": "3"}
    ]


def test_damage_of_the_ledger_is_counted() -> None:
    damaged = document.as_json(scenes.broken())["ledger"]

    assert damaged == {"quarantined": 1, "restored": 5, "lost": 2}
    assert not any(document.as_json(scenes.quiet())["ledger"].values())


def test_sick_card_shows_its_reason_and_since_when() -> None:
    *_, card = document.as_json(scenes.typical())["cards"]

    assert card["health"] == {
        "healthy": False,
        "absent": False,
        "reason": "xid-79",
        "message": "XID 79: GPU has fallen off the bus",
        "since": "2026-03-14T02:54:44.000+00:00",
    }


def test_share_shows_who_what_and_whether_its_limit_holds() -> None:
    shares = {share["claim"]: share for share in document.as_json(scenes.typical())["shares"]}

    assert shares["jun-gpu"] == {
        "namespace": "notebooks",
        "claim": "jun-gpu",
        "claimUID": builders.claim_uid("notebooks/jun-gpu"),
        "pods": ["jun"],
        "request": "gpu",
        "shareID": "5a5a5a5a-0000-4000-8000-000000000001",
        "device": "gpu-8f3a0001-51c2-4d0e-9b7a-2f6d10c4e001",
        "uuid": "GPU-8f3a0001-51c2-4d0e-9b7a-2f6d10c4e001",
        "requested": {"tflops": 78.0, "vramBytes": 16 * GIB},
        "limit": {"computePercent": 25, "vramBytes": 16 * GIB, "tflops": 78.0},
        "wanted": {"computePercent": 25, "vramBytes": 16 * GIB},
        "isolation": "soft",
        "qos": "medium",
        "enforcer": "tensor-fusion",
        "exclusive": False,
        "adminAccess": False,
        "enforcement": {
            "state": "NotEnforced",
            "reason": "HeartbeatStale",
            "message": "the last heartbeat of the hypervisor is 96 s old; start it again",
            "since": "2026-03-14T03:11:08.000+00:00",
        },
    }


def test_failed_prepare_shows_its_stages_in_order_and_where_it_failed() -> None:
    failed = document.as_json(scenes.typical())["operations"][2]

    assert failed["result"] == "claim_error"
    assert failed["lastStage"] == "admit"
    assert failed["seconds"] == 0.0057
    assert [each["stage"] for each in failed["stages"]] == ["queue", "read", "resolve", "admit"]
    assert failed["error"].startswith("claim ads/rank-3-gpu: vram-limit:")


def test_what_is_not_known_is_null_or_empty() -> None:
    found = document.as_json(
        NodeView(
            node="n",
            pool="",
            version="1",
            started_at=builders.NOW,
            observed_at=builders.NOW,
            registration=RegistrationView(),
            api_server=ApiServerView(),
            publishing=PublishingView(),
        )
    )

    assert found["registration"] == {"state": "waiting", "since": None, "error": ""}
    assert found["apiServer"]["lastSuccessAt"] is None
    assert found["publishing"]["generation"] is None
    assert (found["cards"], found["shares"], found["operations"]) == ([], [], [])


def test_control_characters_are_escaped_and_long_texts_cut() -> None:
    view = scenes.hostile()

    (card,) = document.as_json(view)["cards"]
    shares = document.as_json(view)["shares"]

    assert len(card["health"]["message"]) == 1000
    assert "\\n" in card["health"]["message"]
    texts = json.dumps([card, shares], ensure_ascii=False)
    assert not any(char in texts for char in "\x1b\n\u202e")


def test_share_of_an_unknown_card_has_no_compute_limit_in_tflops() -> None:
    view = scenes.quiet()
    unknown = replace(view.shares[0], limit_nano_tflops=None)

    (share,) = document.as_json(replace(view, shares=(unknown,)))["shares"]

    assert share["limit"] == {"computePercent": 39, "vramBytes": 32 * GIB, "tflops": None}
