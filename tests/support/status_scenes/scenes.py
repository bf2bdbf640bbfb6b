"""Views of made-up nodes: for screenshots of the status page, and for its tests."""

from dataclasses import replace

from tensorfusion_dra.core.claims import verdicts
from tensorfusion_dra.core.claims.operation import EndedOperation, OperationKind, Result, Stage
from tensorfusion_dra.core.claims.use import Used
from tensorfusion_dra.core.claims.verdicts import CurrentVerdict
from tensorfusion_dra.core.devices.gpu import LeftOut, Qos
from tensorfusion_dra.core.devices.health import HealthProblem, ProblemKind, Unhealthy
from tensorfusion_dra.core.kubernetes.quantity import GIB, NANO, Quantity
from tensorfusion_dra.core.observed import (
    ApiServerView,
    CardAmounts,
    NodeView,
    OtherCapacity,
    PublishingView,
    RegistrationState,
    RegistrationView,
    StoreView,
    XidCount,
)
from tensorfusion_dra.enforcers import choice
from tensorfusion_dra.enforcers.tensor_fusion.enforcer import TensorFusion
from tests.support.status_scenes.builders import (
    CORDONED,
    ENFORCED,
    NO_PROCESS,
    STALE,
    Card,
    Tenant,
    ago,
    node,
    operation,
    share,
)


def typical() -> NodeView:
    """Return a node with four cards: one quiet, one oversubscribed, one free, one sick."""
    trouble = HealthProblem(
        kind=ProblemKind.XID, reason="xid-79", text="XID 79: GPU has fallen off the bus"
    )
    application = XidCount(
        code=31, text="XID 31", marks_card=False, count=3, last_at=ago(minutes=7)
    )
    sessions = OtherCapacity(
        name="example.com/encoder_sessions",
        quantity=Quantity.whole(16),
        consumed=Quantity.whole(3),
    )
    fallen = XidCount(code=79, text=trouble.text, marks_card=True, count=1, last_at=ago(minutes=18))
    return node(
        Card(
            tenants=(
                Tenant(
                    name="speech/asr-train-0",
                    tflops=120,
                    gib=32,
                    percent=50,
                    limit_gib=40,
                    asked={"tflops": "156", "vram": "40Gi"},
                ),
                Tenant(name="speech/asr-eval-2", tflops=31.2, gib=8),
                Tenant(name="vision/segment-7f9c", tflops=62.4, gib=16, qos=Qos.HIGH),
                Tenant(name="notebooks/maria", tflops=15.6, gib=6, found=NO_PROCESS, minutes=2),
            )
        ),
        Card(
            capacity=CardAmounts(nano_tflops=468 * NANO, vram_bytes=112 * GIB),
            tenants=(
                Tenant(name="vision/detect-0", tflops=156, gib=40, used=(31.2, 44)),
                Tenant(name="vision/detect-1", tflops=156, gib=40, used=(12, 9)),
                Tenant(
                    name="notebooks/jun",
                    tflops=78,
                    gib=16,
                    found=STALE,
                    minutes=1.6,
                    used=(15.5, 18),
                ),
            ),
            xids=(application,),
            others=(sessions,),
        ),
        Card(taints=(CORDONED,)),
        Card(
            tenants=(Tenant(name="llm/pretrain-0", tflops=312, gib=80, exclusive=True),),
            unhealthy=Unhealthy(worst=trouble, since=ago(minutes=18)),
            xids=(fallen,),
            foreign=Used(vram_bytes=3 * GIB, sm_percent=2, processes=1),
        ),
        operations=_operations(),
    )


def small() -> NodeView:
    """Return a node with a card, a share and an operation of each kind in typical()."""
    view = typical()
    cards = view.cards[1:4:2]
    on_them = {card.device.name for card in cards}
    return replace(
        view,
        cards=cards,
        shares=tuple(share for share in view.shares if share.share.device in on_them)[1:],
        operations=view.operations[1:3],
        left_out=(LeftOut(subject="0000:41:00.0", reason="MIG is enabled, expected it disabled"),),
    )


def crowded() -> NodeView:
    """Return a node with eight cards of 50 shares each."""
    teams = ("speech", "vision", "llm", "notebooks", "search", "ads", "robotics")
    return node(
        *(
            Card(
                tenants=tuple(
                    Tenant(
                        name=f"{teams[(card + number // 9) % len(teams)]}/worker-{card}-{number}",
                        tflops=6 if number % 7 else 3.2,
                        gib=1 if number % 3 else 2,
                        found=STALE if (card, number) == (2, 17) else ENFORCED,
                    )
                    for number in range(50)
                )
            )
            for card in range(8)
        )
    )


def quiet() -> NodeView:
    """Return a node on which all is well: two cards, one share, no recent operations."""
    return node(Card(tenants=(Tenant(name="speech/asr-train-0", tflops=120, gib=32),)), Card())


def broken() -> NodeView:
    """Return a node on which nothing works."""
    return node(
        registration=RegistrationView(
            state=RegistrationState.REFUSED, since=ago(minutes=1), error="plugin is not supported"
        ),
        api_server=ApiServerView(
            last_success_at=ago(minutes=30),
            last_error_at=ago(seconds=2),
            last_error="GET /api/v1/nodes/gpu-node-07.example: connection refused",
        ),
        publishing=PublishingView(
            dropped_gates=("DRADeviceTaints",),
            error="POST /apis/resource.k8s.io/v1/resourceslices: connection refused",
            error_since=ago(minutes=30),
        ),
        cards_missing="this node's GPUs could not be read yet",
        left_out=(LeftOut(subject="0000:41:00.0", reason="MIG is enabled, expected it disabled"),),
        shares=(share(Tenant(name="speech/asr-train-0", tflops=120, gib=32, found=None), 3),),
        shares_error="store: busy for 5 s",
        store=StoreView(restored=5, damaged=2),
        enforcer=CurrentVerdict(
            verdict=verdicts.not_enforced(
                verdicts.LIMITER_MISSING,
                "/run/tensor-fusion/libcuda_limiter.so: not found: every claim for a part of a GPU "
                f"waits; {choice.remedy(TensorFusion())}",
            ),
            since=ago(minutes=30),
        ),
        pool="",
    )


def hostile() -> NodeView:
    """Return a node whose names and texts try to run in the page, or to break its layout."""
    evil = "<img src=x onerror=\"window.broken='img'\"><script>window.broken='script'</script>"
    bad = verdicts.not_enforced(
        "</style><script>window.broken='style'</script>", f"'\"&{evil}\x1b[2J"
    )
    trouble = HealthProblem(kind=ProblemKind.XID, reason=evil, text=f"{evil}\n{'very long ' * 300}")
    tenants = (
        Tenant(name=f"{evil}/{evil}", tflops=20, gib=8, found=bad),
        Tenant(name="n/__proto__", tflops=20, gib=8),
        Tenant(name=f"team/{'a' * 253}", tflops=20, gib=8),
        Tenant(name="team/\u202eevil\u202c", tflops=20, gib=8),
    )
    view = node(
        Card(
            tenants=tenants,
            product_name=evil,
            unhealthy=Unhealthy(worst=trouble, since=ago(minutes=3)),
        ),
        node=evil,
        left_out=(LeftOut(subject=evil, reason=evil),),
        cards_missing="",
        operations=(
            operation(
                OperationKind.PREPARE,
                f"{evil}/{evil}",
                (Stage.ADMIT, 5),
                seconds_ago=4,
                result=Result.CLAIM_ERROR,
                error=evil,
            ),
        ),
    )
    return replace(view, registration=replace(view.registration, error=evil))


def _operations() -> tuple[EndedOperation, ...]:
    prepare, unprepare = OperationKind.PREPARE, OperationKind.UNPREPARE

    def prepared(name: str, seconds_ago: float, *parts: float) -> EndedOperation:
        stages = (
            *(Stage.QUEUE, Stage.READ, Stage.LOOKUP, Stage.RESOLVE),
            *(Stage.ADMIT, Stage.FLUSH, Stage.WRITE),
        )
        return operation(prepare, name, *zip(stages, parts, strict=True), seconds_ago=seconds_ago)

    return (
        prepared("notebooks/maria-gpu", 118, 0.2, 3.4, 0.1, 0.8, 1.1, 3.9, 1.2),
        operation(
            unprepare,
            "notebooks/tom-gpu",
            (Stage.QUEUE, 0.1),
            (Stage.WITHDRAW, 1.9),
            (Stage.FLUSH, 3.1),
            (Stage.WRITE, 0.3),
            seconds_ago=171,
        ),
        operation(
            prepare,
            "ads/rank-3-gpu",
            (Stage.QUEUE, 0.2),
            (Stage.READ, 4.0),
            (Stage.RESOLVE, 0.9),
            (Stage.ADMIT, 0.6),
            seconds_ago=264,
            result=Result.CLAIM_ERROR,
            error="claim ads/rank-3-gpu: vram-limit: found 4Gi, expected at least its request 8Gi",
        ),
        prepared("vision/detect-1-gpu", 2530, 9.6, 2.2, 0.1, 0.7, 0.9, 4.4, 1.0),
        prepared("vision/detect-0-gpu", 2530, 0.3, 6.1, 0.1, 0.7, 1.0, 4.2, 1.1),
        prepared("speech/asr-eval-2-gpu", 2544, 0.2, 2.9, 0.1, 0.6, 0.9, 3.7, 0.9),
    )
