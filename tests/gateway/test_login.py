"""Callers log in with the cluster's users, and may do through the gateway what the cluster allows them."""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.brokers import eventually
from tests.gateway.conftest import HTTP_TIMEOUT_S, Gateway, start_gateway
from tests.gateway.secured_cluster import PASSWORD, SecuredCluster, secured_cluster
from tidemill.client.admin.topics import ResourceType as ConfigResource
from tidemill.gateway.settings import LoginLimits, Settings
from tidemill.security.acls import Operation, ResourceType

V2 = "application/vnd.kafka.v2+json"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    with secured_cluster(tmp_path_factory.mktemp("secured")) as started:
        for name in ("alice", "bob"):
            started.add_user(name)
            started.create_topic(f"{name}s", f"a secret of {name}")
            started.allow_all(name, f"{name}s")
        yield started


@pytest.fixture(scope="module")
def gateway(cluster: SecuredCluster) -> Iterator[Gateway]:
    with cluster.gateway() as started:
        yield started


@pytest.fixture
def alice(gateway: Gateway) -> Iterator[httpx.Client]:
    with _caller(gateway, auth=("alice", PASSWORD)) as client:
        yield client


@pytest.fixture
def bob(gateway: Gateway) -> Iterator[httpx.Client]:
    with _caller(gateway, auth=("bob", PASSWORD)) as client:
        yield client


@pytest.fixture
def anybody(gateway: Gateway) -> Iterator[httpx.Client]:
    with _caller(gateway) as client:
        yield client


def _caller(gateway: Gateway, **options: Any) -> httpx.Client:
    return httpx.Client(base_url=gateway.url, timeout=HTTP_TIMEOUT_S, verify=gateway.trusted, **options)


@contextlib.contextmanager
def _console(gateway: Gateway, name: str = "alice", password: str = PASSWORD) -> Iterator[httpx.Client]:
    """A browser that has logged in: it has a cookie, and says which page it shows."""
    with _caller(gateway, headers={"Origin": gateway.url}) as client:
        answer = client.post("/console/api/login", json={"username": name, "password": password})
        assert answer.status_code == 200, answer.text
        client.headers["X-CSRF-Token"] = answer.json()["csrf_token"]
        yield client


# --- who may do what ---


@pytest.mark.parametrize(
    "path", ["/topics", "/v3/clusters", "/v1/topics/alices/records", "/brokers", "/nowhere", "/v1/logout"]
)
def test_request_without_credentials_gets_401_with_a_challenge(anybody: httpx.Client, path: str) -> None:
    answer = anybody.get(path)
    assert answer.status_code == 401
    assert answer.json()["error_code"] == 40101
    assert answer.headers["www-authenticate"] == 'Basic realm="Tidemill", charset="UTF-8"'


def test_console_request_without_session_gets_no_dialog_of_the_browser(anybody: httpx.Client) -> None:
    for answer in (
        anybody.get("/console/api/overview"),
        anybody.delete("/v3/clusters/x/topics/y", headers={"X-CSRF-Token": ""}),
    ):
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("path", ["/", "/app.js", "/views/topics.js", "/healthz", "/docs", "/openapi.json"])
def test_pages_that_a_browser_needs_before_the_login_are_open(anybody: httpx.Client, path: str) -> None:
    assert anybody.get(path).status_code == 200


@pytest.mark.parametrize(
    ("name", "password"),
    [("alice", "wrong"), ("mallory", PASSWORD), ("alice", ""), ("", PASSWORD), ("a\0b", "c")],
)
def test_wrong_password_and_unknown_user_get_the_same_401(gateway: Gateway, name: str, password: str) -> None:
    with _caller(gateway) as client:
        answer = client.get("/topics", auth=(name, password))
    assert answer.status_code == 401
    assert answer.json()["message"] == "the cluster does not know this user with this password"


def test_wrong_password_is_refused_while_the_user_is_connected(gateway: Gateway, alice: httpx.Client) -> None:
    assert alice.get("/topics").status_code == 200
    with _caller(gateway) as client:
        assert client.get("/topics", auth=("alice", PASSWORD + "x")).status_code == 401
        assert client.get("/topics", auth=("alice", PASSWORD[:-1])).status_code == 401
    assert alice.get("/topics").status_code == 200


@pytest.mark.parametrize(
    "value",
    [
        "Basic",
        "Basic ###",
        "Basic " + base64.b64encode(b"alone").decode(),
        "Digest x",
        "Bearer",
        "Bearer x.y",
    ],
)
def test_authorization_that_cannot_be_read_gets_401(anybody: httpx.Client, value: str) -> None:
    assert anybody.get("/topics", headers={"Authorization": value}).status_code == 401


def test_lists_hold_what_the_user_may_see(gateway: Gateway, alice: httpx.Client, bob: httpx.Client) -> None:
    assert alice.get("/topics").json() == ["alices"]
    assert bob.get("/topics").json() == ["bobs"]
    cluster_id = alice.get("/v3/clusters").json()["data"][0]["cluster_id"]
    listed = alice.get(f"/v3/clusters/{cluster_id}/topics").json()["data"]
    assert [each["topic_name"] for each in listed] == ["alices"]
    assert [each["name"] for each in bob.get("/console/api/topics").json()["items"]] == ["bobs"]
    overview = alice.get("/console/api/overview").json()
    assert overview["totals"]["topics"] == 1
    assert overview["problems"] == []


def test_every_api_refuses_the_topic_of_another_user_with_403(alice: httpx.Client) -> None:
    v3 = f"/v3/clusters/{alice.get('/v3/clusters').json()['data'][0]['cluster_id']}"
    record = {"value": {"type": "STRING", "data": "x"}}
    answers = [
        alice.get("/topics/bobs"),
        alice.post(
            "/topics/bobs",
            json={"records": [{"value": "eA=="}]},
            headers={"Content-Type": "application/vnd.kafka.binary.v2+json"},
        ),
        alice.get(f"{v3}/topics/bobs"),
        alice.get(f"{v3}/topics/bobs/configs"),
        alice.get(f"{v3}/consumer-groups/bobs"),
        alice.delete(f"{v3}/topics/bobs"),
        alice.post(f"{v3}/topics", json={"topic_name": "another"}),
        alice.post(f"{v3}/topics/bobs/records", json=record),
        alice.get("/v1/topics/bobs/records"),
        alice.post("/v1/topics/bobs/produce", json={"value": 1}),
        alice.get("/console/api/topics/bobs"),
        alice.get("/console/api/topics/bobs/messages"),
        alice.get("/console/api/topics/bobs/messages/0/0/value"),
        alice.get("/console/api/topics/bobs/tail"),
        alice.get("/console/api/groups/bobs"),
    ]
    for answer in answers:
        assert (answer.status_code, answer.json()["error_code"]) == (403, 40301), (answer.url, answer.text)
        assert "secret" not in answer.text


def test_records_are_written_and_read_as_the_user(alice: httpx.Client) -> None:
    written = alice.post("/v1/topics/alices/produce", json={"key": "k", "value": "mine"})
    assert written.json()["written"] == 1
    assert "mine" in alice.get("/v1/topics/alices/records").text


def test_consumer_instance_is_not_there_for_another_user(alice: httpx.Client, bob: httpx.Client) -> None:
    headers = {"Content-Type": V2}
    made = alice.post(
        "/consumers/alices", json={"name": "one", "auto.offset.reset": "earliest"}, headers=headers
    )
    assert made.status_code == 200, made.text
    place = "/consumers/alices/instances/one"
    assert (
        alice.post(f"{place}/subscription", json={"topics": ["alices"]}, headers=headers).status_code == 204
    )
    assert bob.get(f"{place}/subscription").status_code == 404
    assert bob.delete(place).status_code == 404
    read = eventually(lambda: alice.get(f"{place}/records").json(), "records are read")
    assert base64.b64decode(read[0]["value"]) == b"a secret of alice"
    assert alice.delete(place).status_code == 204


@pytest.mark.parametrize(("group", "topic"), [("alices", "bobs"), ("bobs", "alices")])
def test_consumer_instance_is_refused_what_its_user_may_not_read(
    alice: httpx.Client, group: str, topic: str
) -> None:
    place = f"/consumers/{group}/instances/two"

    def read() -> httpx.Response | None:
        answer = alice.get(f"{place}/records")
        return answer if answer.status_code != 200 else None

    headers = {"Content-Type": V2}
    assert alice.post(f"/consumers/{group}", json={"name": "two"}, headers=headers).status_code == 200
    alice.post(f"{place}/subscription", json={"topics": [topic]}, headers=headers)
    refused = eventually(read, "the cluster refuses")
    assert (refused.status_code, refused.json()["error_code"]) == (403, 40301), refused.text
    assert alice.delete(place).status_code == 204


def test_worker_of_a_queue_acts_as_its_user_and_is_not_there_for_another(
    cluster: SecuredCluster, alice: httpx.Client, bob: httpx.Client
) -> None:
    group = "alices-queue"
    cluster.allow("alice", Operation.ALL, ResourceType.GROUP, group)
    cluster.admin.alter_configs(ConfigResource.GROUP, group, changes={"share.auto.offset.reset": "earliest"})
    made = alice.post(f"/v1/queues/{group}/workers", json={"topics": ["alices"]})
    assert made.status_code == 201, made.text
    place = f"/v1/queues/{group}/workers/{made.json()['worker']}"
    jobs = eventually(
        lambda: alice.post(f"{place}/jobs", params={"limit": 1}).json()["jobs"], "a job is taken"
    )
    assert jobs[0]["value"] == "a secret of alice"
    assert bob.post(f"{place}/jobs").status_code == 404
    assert bob.post(f"{place}/outcomes", json={"done": [jobs[0]["receipt"]]}).status_code == 404
    assert bob.delete(place).status_code == 404
    assert alice.post(f"{place}/outcomes", json={"done": [jobs[0]["receipt"]]}).json()["outcomes"] == [
        {"receipt": jobs[0]["receipt"], "outcome": "done"}
    ]
    assert alice.delete(place).status_code == 204


def test_worker_of_a_queue_is_refused_the_group_and_the_topic_of_another_user(alice: httpx.Client) -> None:
    assert alice.post("/v1/queues/alices/workers", json={"topics": ["bobs"]}).status_code == 403
    made = alice.post("/v1/queues/bobs/workers", json={"topics": ["alices"]})
    place = f"/v1/queues/bobs/workers/{made.json()['worker']}"
    refused = alice.post(f"{place}/jobs", params={"wait_ms": 20_000})
    assert (refused.status_code, refused.json()["error_code"]) == (403, 40301), refused.text
    # It is gone with that.
    assert alice.delete(place).status_code == 404


# --- tokens and sessions ---


def test_bearer_token_is_good_until_it_is_revoked(anybody: httpx.Client) -> None:
    answer = anybody.post("/v1/login", json={"username": "alice", "password": PASSWORD})
    assert answer.headers["cache-control"] == "no-store"
    headers = {"Authorization": f"Bearer {answer.json()['token']}"}
    assert anybody.get("/topics", headers=headers).json() == ["alices"]
    # A token is no cookie: no page of another origin has it, so nothing else is asked for.
    assert anybody.post("/v1/topics/alices/produce", json={"value": 1}, headers=headers).status_code == 200
    assert anybody.post("/v1/logout", headers=headers).status_code == 204
    assert anybody.get("/topics", headers=headers).status_code == 401


def test_session_cookie_is_out_of_reach_for_scripts_and_other_sites(anybody: httpx.Client) -> None:
    answer = anybody.post("/console/api/login", json={"username": "alice", "password": PASSWORD})
    (cookie,) = answer.headers.get_list("set-cookie")
    attributes = {part.strip().lower() for part in cookie.split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/"} <= attributes
    assert "secure" not in attributes, "this gateway has no TLS, and the browser would not send it back"
    assert PASSWORD not in cookie
    assert "alice" not in cookie


def test_session_cookie_is_sent_over_tls_only_where_there_is_tls(cluster: SecuredCluster) -> None:
    with cluster.gateway(has_tls=True) as gateway, _caller(gateway) as client:
        answer = client.post("/console/api/login", json={"username": "alice", "password": PASSWORD})
        (cookie,) = answer.headers.get_list("set-cookie")
        assert cookie.startswith("__Host-")
        assert "secure" in {part.strip().lower() for part in cookie.split(";")}
        assert client.get("/topics").json() == ["alices"]


def test_console_session_reads_changes_and_ends(gateway: Gateway) -> None:
    with _console(gateway) as browser:
        assert browser.get("/console/api/session").json()["username"] == "alice"
        assert browser.get("/topics").json() == ["alices"]
        assert browser.post("/v1/topics/alices/produce", json={"value": 1}).status_code == 200
        cookie = dict(browser.cookies)
        assert browser.post("/console/api/logout").status_code == 204
        assert not browser.cookies
        browser.cookies.update(cookie)
        assert browser.get("/topics").status_code == 401
        assert browser.get("/console/api/session").json()["username"] is None


def test_forged_cookies_get_401(gateway: Gateway, anybody: httpx.Client) -> None:
    with _console(gateway) as browser:
        ((name, text),) = browser.cookies.items()
        token = anybody.post("/v1/login", json={"username": "alice", "password": PASSWORD}).json()["token"]
    session_id, _, signature = text.partition(".")
    last = "0" if signature[-1] != "0" else "1"
    for forged in (
        session_id,
        f"{session_id}.",
        f"{session_id}.{signature[:-1]}{last}",
        f"{'0' * len(session_id)}.{signature}",
        # A bearer token in a cookie, where it could be used without being known.
        token,
        "é.é",
        ".",
    ):
        answer = anybody.get("/topics", headers={b"Cookie": f"{name}={forged}".encode("latin-1")})
        assert answer.status_code == 401, forged


def test_cookie_is_no_bearer_token(gateway: Gateway, anybody: httpx.Client) -> None:
    with _console(gateway) as browser:
        (text,) = browser.cookies.values()
    assert anybody.get("/topics", headers={"Authorization": f"Bearer {text}"}).status_code == 401


def test_session_expires_when_it_is_idle_and_when_it_is_old(cluster: SecuredCluster) -> None:
    for limits in (LoginLimits(session_idle_s=0.0), LoginLimits(session_s_max=0.0)):
        with cluster.gateway(limits) as gateway, _console(gateway) as browser:
            assert browser.get("/topics").status_code == 401


def test_change_by_cookie_needs_token_and_origin(gateway: Gateway) -> None:
    with _console(gateway) as browser:
        token = browser.headers["X-CSRF-Token"]
        path, body = "/v1/topics/alices/produce", {"value": "forged"}

        def change(**headers: str) -> httpx.Response:
            request = httpx.Request("POST", gateway.url + path, json=body, headers=headers)
            request.headers["Cookie"] = "; ".join(f"{name}={text}" for name, text in browser.cookies.items())
            return browser.send(request)

        own = gateway.url
        assert change(origin=own).status_code == 403
        assert change(origin=own, **{"x-csrf-token": token[:-1] + "x"}).status_code == 403
        assert change(**{"x-csrf-token": token}).status_code == 403, "no page says that it sent this"
        for other in ("https://evil.example", "null", own + "1", f"http://localhost:{gateway.port}"):
            assert change(origin=other, **{"x-csrf-token": token}).status_code == 403, other
        for site in ("cross-site", "same-site"):
            refused = change(origin=own, **{"x-csrf-token": token, "sec-fetch-site": site})
            assert refused.status_code == 403, site
        assert "forged" not in browser.get("/v1/topics/alices/records").text
        assert change(origin=own, **{"x-csrf-token": token}).status_code == 200
        assert change(**{"sec-fetch-site": "same-origin", "x-csrf-token": token}).status_code == 200


def test_page_of_another_origin_can_neither_log_in_nor_read_by_cookie(gateway: Gateway) -> None:
    evil = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
    with _console(gateway) as browser:
        assert browser.get("/topics", headers=evil).status_code == 403
        login = browser.post(
            "/console/api/login", json={"username": "alice", "password": PASSWORD}, headers=evil
        )
        assert login.status_code == 403


def test_log_out_needs_a_session_of_its_kind(alice: httpx.Client) -> None:
    for path in ("/v1/logout", "/console/api/logout"):
        assert alice.post(path).status_code == 400


def test_log_out_ends_the_event_streams_of_the_session(gateway: Gateway) -> None:
    path = "/console/api/live"
    with (
        _console(gateway) as browser,
        _console(gateway) as other,
        browser.stream("GET", path) as stream,
        other.stream("GET", path) as kept,
    ):
        lines = stream.iter_lines()
        assert next(lines)
        still = kept.iter_lines()
        assert next(still)
        # The stream holds one connection of the browser; the log-out uses another.
        assert browser.post("/console/api/logout").status_code == 204
        for _ in lines:
            pass
        assert any(line.startswith("event:") for line in still)


# --- tokens of the cluster's issuer ---


def test_token_of_the_issuer_is_passed_on_to_the_cluster(cluster: SecuredCluster) -> None:
    with start_gateway(cluster.settings(mechanism="OAUTHBEARER")) as gateway, _caller(gateway) as client:

        def with_token(token: str) -> dict[str, str]:
            return {"Authorization": f"Bearer {token}"}

        good = cluster.issuer.token("alice")
        assert client.get("/topics", headers=with_token(good)).json() == ["alices"]
        produced = client.post("/v1/topics/alices/produce", json={"value": "x"}, headers=with_token(good))
        assert produced.json()["written"] == 1
        assert client.get("/topics/bobs", headers=with_token(good)).status_code == 403
        header, payload, signature = good.split(".")
        others = cluster.issuer.token("bob").split(".")[1]
        for bad in (
            cluster.issuer.token("alice", audience="another"),
            cluster.issuer.token("alice", lifetime_s=-600),
            f"{header}.{others}.{signature}",
            f"{header}.{payload}.",
            "nonsense",
            "a.b.c",
        ):
            assert client.get("/topics", headers=with_token(bad)).status_code == 401, bad
        refused = client.get("/topics", auth=("alice", PASSWORD))
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"].startswith("Bearer")
        login = client.post("/console/api/login", json={"username": "-", "password": good})
        assert login.json()["username"] == "alice"
        assert client.get("/topics").json() == ["alices"]


# --- rights that change ---


def test_acl_removed_during_a_session_holds_at_once(cluster: SecuredCluster, gateway: Gateway) -> None:
    cluster.add_user("carol")
    cluster.create_topic("shared", "seen")
    rules = cluster.allow_all("carol", "shared")
    with _console(gateway, "carol") as browser:
        assert "seen" in browser.get("/v1/topics/shared/records").text
        cluster.security.delete_acls(rules)
        eventually(lambda: browser.get("/v1/topics/shared/records").status_code == 403, "the ACL is gone")
        assert browser.get("/topics").json() == []
        eventually(lambda: browser.get("/console/api/topics").json()["items"] == [], "the picture follows")


def test_event_stream_ends_when_the_acl_is_removed(cluster: SecuredCluster, gateway: Gateway) -> None:
    cluster.add_user("erin")
    cluster.create_topic("followed")
    rules = cluster.allow_all("erin", "followed")
    with (
        _console(gateway, "erin") as browser,
        browser.stream("GET", "/console/api/topics/followed/tail") as tail,
    ):
        lines = tail.iter_lines()
        assert next(lines)
        cluster.security.delete_acls(rules)
        assert "event: failed" in list(lines)


def test_removed_user_is_logged_out_and_its_streams_end(cluster: SecuredCluster) -> None:
    cluster.add_user("dave")
    cluster.allow("dave", Operation.ALL, ResourceType.TOPIC, "bobs")
    with cluster.gateway(LoginLimits(verified_s=0.2)) as gateway, _console(gateway, "dave") as browser:
        assert browser.get("/topics").json() == ["bobs"]
        with browser.stream("GET", "/console/api/topics/bobs/tail") as tail:
            lines = tail.iter_lines()
            assert next(lines)
            cluster.remove_user("dave")
            for _ in lines:
                pass
        eventually(lambda: browser.get("/topics").status_code == 401, "the session is over")
        assert browser.get("/console/api/session").json()["username"] is None


def test_changed_password_ends_what_used_the_old_one(cluster: SecuredCluster) -> None:
    cluster.add_user("frank", "old")
    with cluster.gateway(LoginLimits(verified_s=0.0)) as gateway, _caller(gateway) as client:
        assert client.get("/topics", auth=("frank", "old")).status_code == 200
        cluster.add_user("frank", "new")
        eventually(lambda: client.get("/topics", auth=("frank", "old")).status_code == 401, "it is no good")
        assert client.get("/topics", auth=("frank", "new")).status_code == 200


# --- bounds ---


def test_idle_users_make_room_for_others(cluster: SecuredCluster) -> None:
    with cluster.gateway(LoginLimits(accesses_max=1)) as gateway, _caller(gateway) as client:
        for name in ("alice", "bob", "alice"):
            assert client.get("/topics", auth=(name, PASSWORD)).json() == [f"{name}s"]


def test_user_beyond_the_limit_waits_for_those_in_use(cluster: SecuredCluster) -> None:
    with (
        cluster.gateway(LoginLimits(accesses_max=1)) as gateway,
        _console(gateway) as browser,
        browser.stream("GET", "/console/api/live") as stream,
    ):
        lines = stream.iter_lines()
        assert next(lines)
        with _caller(gateway, auth=("bob", PASSWORD)) as client:
            assert client.get("/topics").status_code == 503


def test_guesses_are_slowed_down_and_others_are_served(cluster: SecuredCluster) -> None:
    """A thousand wrong passwords at once, from one address, while a user that is logged in goes on."""
    with cluster.gateway(LoginLimits(wait_s_max=0.5)) as gateway, _console(gateway) as browser:
        limits = httpx.Limits(max_connections=100)

        def guess(number: int) -> int:
            return guesser.get("/topics", auth=("bob", f"guess {number}")).status_code

        with (
            httpx.Client(base_url=gateway.url, timeout=HTTP_TIMEOUT_S, limits=limits) as guesser,
            concurrent.futures.ThreadPoolExecutor(50) as threads,
        ):
            guesses = threads.map(guess, range(1000))
            for _ in range(20):
                assert browser.get("/topics").json() == ["alices"]
            found = list(guesses)
        assert set(found) == {401, 429}
        assert found.count(401) < 100
        # The user whose password was guessed is not locked out.
        with _console(gateway, "bob") as bob:
            assert bob.get("/topics").json() == ["bobs"]


# --- what the log says ---


def test_names_cannot_forge_log_lines_and_secrets_are_in_none(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    name, password = 'eve"\n2026-01-01 INFO forged: line\r', "a password that is in no log"
    with caplog.at_level(logging.DEBUG), _caller(gateway) as client:
        assert client.get("/topics", auth=(name, password)).status_code == 401
        assert client.post("/v1/login", json={"username": name, "password": password}).status_code == 401
        assert client.get("/topics", auth=("alice", PASSWORD)).status_code == 200
    refused = [record for record in caplog.records if "refused" in record.getMessage()]
    assert refused
    logged = [record for record in caplog.records if record.name.startswith("tidemill")]
    for record in logged:
        assert "\n" not in record.getMessage()
        assert "\r" not in record.getMessage()
    for record in caplog.records:
        if record.name.startswith(("tidemill", "uvicorn")):
            assert password not in record.getMessage()
            assert PASSWORD not in record.getMessage()


def test_gateway_without_login_says_so() -> None:
    with start_gateway(Settings(bootstrap="127.0.0.1:1")) as gateway:
        assert gateway.client.get("/console/api/session").json() == {
            "needs_login": False,
            "username": None,
            "csrf_token": None,
        }
        body = {"username": "alice", "password": "x"}
        assert gateway.client.post("/v1/login", json=body).status_code == 404
