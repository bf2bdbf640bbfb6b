"""Requests to the API server, by verb, resource and status."""

import pytest

from tensorfusion_dra.metrics.prometheus import NODE_PLUGIN, WEBHOOK, ApiRequests

RESOURCES = "/apis/resource.k8s.io/v1"


def counted(requests: ApiRequests) -> dict[tuple[str, ...], float]:
    """Return the numbers of requests by verb, resource and code."""
    (family,) = requests.counter.collect()
    return {tuple(sample.labels.values()): sample.value for sample in family.samples}


@pytest.mark.parametrize(
    ("method", "path", "verb", "resource"),
    [
        ("GET", "/apis/resource.k8s.io", "get", "groups"),
        ("GET", f"{RESOURCES}/resourceslices", "list", "resourceslices"),
        ("WATCH", f"{RESOURCES}/resourceslices", "watch", "resourceslices"),
        ("POST", f"{RESOURCES}/resourceslices", "create", "resourceslices"),
        ("PUT", f"{RESOURCES}/resourceslices/a", "update", "resourceslices"),
        ("DELETE", f"{RESOURCES}/resourceslices/a", "delete", "resourceslices"),
        ("GET", f"{RESOURCES}/namespaces/d/resourceclaims/c", "get", "resourceclaims"),
        (
            "PATCH",
            f"{RESOURCES}/namespaces/d/resourceclaims/c/status",
            "patch",
            "resourceclaims/status",
        ),
        ("GET", "/api/v1/nodes/node-01", "get", "nodes"),
        ("GET", "/api/v1/pods", "list", "pods"),
        ("GET", "/api/v1/namespaces/d/pods/p", "get", "pods"),
        ("POST", "/api/v1/namespaces/d/events", "create", "events"),
        ("GET", "/apis/tensor-fusion.ai/v1/gpupools", "list", "gpupools"),
        # Names of namespaces and objects may look like resources.
        ("GET", "/api/v1/namespaces/pods/pods/nodes", "get", "pods"),
        ("GET", "/version", "get", "other"),
        ("GET", "/api/v1/secrets/a", "get", "other"),
        ("BREW", "/api/v1/nodes/a", "other", "nodes"),
    ],
)
def test_verb_and_resource_of_a_request(method: str, path: str, verb: str, resource: str) -> None:
    requests = ApiRequests(())

    requests.answered(method, 200, "", path=path)
    requests.answered(method, 503, "text", path=path)
    requests.unanswered(method, "text", path=path)
    requests.watch_event()

    assert counted(requests) == {
        (verb, resource, "200"): 1,
        (verb, resource, "503"): 1,
        (verb, resource, "none"): 1,
    }


@pytest.mark.parametrize("known", [NODE_PLUGIN, WEBHOOK])
def test_known_requests_exist_at_0(known: tuple[tuple[str, str], ...]) -> None:
    found = counted(ApiRequests(known))

    assert set(found.values()) == {0}
    assert {(verb, resource) for verb, resource, _ in found} == set(known)
    codes = {"200", "401", "403", "404", "409", "429", "500", "503", "none"}
    assert {code for *request, code in found if request == ["get", "pods"]} == codes


def test_names_in_paths_make_no_new_labels() -> None:
    requests = ApiRequests(())

    for number in range(1000):
        requests.answered("GET", 200, "", path=f"/apis/g{number}/v1/r{chr(97 + number % 26)}/x")

    assert counted(requests) == {("get", "other", "200"): 1000}
