"""The rights of a node plugin follow its settings."""

from tensorfusion_dra.core import names
from tensorfusion_dra.core.doctor import required_rights as rights
from tensorfusion_dra.core.doctor.required_rights import Right


def verbs(table: tuple[Right, ...], resource: str) -> set[str]:
    return {right.verb for right in table if right.resource == resource}


def test_a_node_plugin_may_do_with_slices_what_it_does_with_them() -> None:
    table = rights.of_node_plugin()

    assert verbs(table, "resourceslices") == {"list", "watch", "create", "update", "delete"}
    assert verbs(table, "nodes") == verbs(table, "resourceclaims") == {"get"}


def test_the_status_of_a_claim_takes_the_granular_verb_for_this_driver_alone() -> None:
    (granular,) = (r for r in rights.of_node_plugin() if r.resource == "resourceclaims/driver")

    assert (granular.verb, granular.name) == ("associated-node:patch", names.DRIVER)
    assert not granular.vital
    assert str(granular) == (
        "associated-node:patch resourceclaims.resource.k8s.io/driver "
        "of the name tensor-fusion.ai.dra-driver"
    )


def test_pods_are_read_only_where_that_is_turned_on() -> None:
    assert verbs(rights.of_node_plugin(read_pods=True), "pods") == {"get"}
    assert verbs(rights.of_node_plugin(read_pods=False), "pods") == set()


def test_gpupools_and_nodes_are_followed_only_where_the_pool_comes_from_there() -> None:
    settings, named, selecting = (
        rights.of_node_plugin(pool_source=source)
        for source in ("settings", "object", "node-labels")
    )

    assert verbs(settings, "gpupools") == verbs(settings, "events") == set()
    assert verbs(named, "gpupools") == {"list", "watch"}
    assert verbs(settings, "nodes") == {"get"}
    assert verbs(named, "nodes") == verbs(selecting, "nodes") == {"get", "list", "watch"}


def test_no_right_is_listed_twice() -> None:
    table = rights.of_node_plugin(pool_source="node-labels")

    assert len({(r.verb, r.group, r.resource) for r in table}) == len(table)


def test_the_webhook_reads_pools_and_pods_and_writes_nothing() -> None:
    table = rights.of_webhook()

    assert {right.verb for right in table} == {"get", "list", "watch"}
    assert verbs(table, "gpupools") == {"list", "watch"}
    assert verbs(table, "pods") == {"get"}
