# SPDX-License-Identifier: Apache-2.0
"""The REST API against its contract (specs: voice-judge), and what goes beyond it."""

from __future__ import annotations

import io
import json
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID

import pytest
import soundfile as sf
from jdoubles import NOON, OTHER, SERVICE, WORKSPACE, minutes, row

from voicetrace.judge.api.auth import TokenError, Tokens, is_loopback, read_tokens
from voicetrace.judge.api.serve import ServeError, serve
from voicetrace.judge.registry import open_registry
from voicetrace.judge.result import Dimension
from voicetrace.judge.warehouse import StoredRow, Warehouse, open_warehouse
from voicetrace.reader import read_calls

pytest.importorskip("fastapi", reason="the API needs voicetrace[server]")
pytest.importorskip("httpx2", reason="the API is tested with httpx2, of the test group")

from starlette.testclient import TestClient

from voicetrace.judge.api.app import create_app

EXAMPLES = Path(__file__).parents[2] / "examples" / "calls"
TOKEN = "a-token-of-the-workspace"
FIELDS = [
    "call_sid", "call_entity_id", "service_id", "latency_dead_air_score", "pronunciation_score",
    "clarity_score", "filler_silence_score", "interruption_handling_score",
    "audio_consistency_score", "pacing_score", "warmth_tone_score", "accent_quality_score",
    "voice_identity_score", "overall_score", "critical_count", "flag_count", "warning_count",
    "judge_json", "computed_at",
]  # fmt: skip


class Api:
    def __init__(self, root: Path, tokens: Tokens | None = None) -> None:
        url = f"sqlite:///{root}/house.db"
        self.warehouse: Warehouse = open_warehouse(url, create=True)
        self.registry = open_registry(url, create=True)
        self.registry.register([(WORKSPACE, SERVICE)])
        self.client = TestClient(
            create_app(self.warehouse, self.registry, tokens), base_url="http://127.0.0.1"
        )

    def get(self, path: str, **options: Any) -> Any:
        return self.client.get(path, **options)

    def recent(
        self, query: str = "", *, workspace: str = WORKSPACE, service: str = SERVICE, **options: Any
    ) -> Any:
        return self.get(f"/v1/{workspace}/services/{service}/voice-judge/recent{query}", **options)

    def ext(self, rest: str, **options: Any) -> Any:
        return self.get(f"/ext/v1/{WORKSPACE}/services/{SERVICE}/{rest}", **options)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    found = Api(tmp_path)
    yield found
    found.warehouse.close()


# -- the contract ----------------------------------------------------------------------------------------
def test_the_response_is_the_contracts(api: Api) -> None:
    scores = dict.fromkeys((f"{d.value}_score" for d in Dimension), 1.0)
    scores |= {"latency_dead_air_score": 0.9, "clarity_score": 0.25, "filler_silence_score": 0.5}
    whole = row(
        "CA1", score=0.25, **scores | {"overall_score": 0.865, "call_entity_id": "e", "warning_count": 1}
    )
    bare = row(
        "CA2",
        minutes(-1),
        score=None,
        critical_count=None,
        flag_count=None,
        warning_count=None,
        judge_json=None,
    )
    api.warehouse.put([whole, bare])
    answer = api.recent()
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert list(body) == ["service_id", "count", "items"]
    assert (body["service_id"], body["count"]) == (SERVICE, 2)
    first, second = body["items"]
    assert list(first) == FIELDS
    assert first["overall_score"] == 0.865
    assert first["clarity_score"] == 0.25
    assert first["computed_at"] == "2026-05-15T12:00:00Z"
    assert isinstance(first["judge_json"], str)
    nulls = {name for name in FIELDS if second[name] is None}
    assert nulls == set(FIELDS) - {"call_sid", "service_id", "computed_at"}


def test_times_are_utc_with_a_z_whatever_zone_they_came_in(api: Api) -> None:
    api.warehouse.put([row("c", datetime.fromisoformat("2026-05-15T14:00:00.120000+02:00"))])
    assert api.recent().json()["items"][0]["computed_at"] == "2026-05-15T12:00:00.120000Z"


def test_newest_first_twenty_unless_said(api: Api) -> None:
    api.warehouse.put([row(f"c{n:03}", minutes(n)) for n in range(120)])
    sids = [item["call_sid"] for item in api.recent().json()["items"]]
    assert sids == [f"c{n:03}" for n in range(119, 99, -1)]
    for limit in (1, 37, 100):
        body = api.recent(f"?limit={limit}").json()
        assert body["count"] == len(body["items"]) == limit


def test_nothing_scored_yet_is_an_empty_list(api: Api) -> None:
    answer = api.recent()
    assert answer.status_code == 200
    assert answer.json() == {"service_id": SERVICE, "count": 0, "items": []}


def test_404_comes_from_the_registry_not_from_the_scores(api: Api) -> None:
    api.warehouse.put([row("c", service=OTHER)])
    for ids in ({"service": OTHER}, {"workspace": OTHER}):
        answer = api.recent(**ids)
        assert answer.status_code == 404
        assert answer.json() == {"detail": "Service not found in this workspace"}
    api.registry.register([(WORKSPACE, OTHER)])
    assert api.recent(service=OTHER).json()["count"] == 1


def test_ids_in_any_letter_case_are_the_same(api: Api) -> None:
    api.registry.register([(str(UUID(int=0xABC)), SERVICE)])
    assert api.recent(workspace=str(UUID(int=0xABC)).upper()).status_code == 200


@pytest.mark.parametrize(
    "limit",
    [
        *("0", "101", "-1", "1.0", "1e1", "+5", " 5", "5 ", "05", "1_0", "\u0663", "\uff10", "", "x", "true"),
        *("null", "0x10", "NaN", "Infinity", "9" * 26, "1" * 5000, "5;", "[5]", "5\x00"),
    ],
)  # fmt: skip
def test_a_limit_that_is_none(api: Api, limit: str) -> None:
    answer = api.recent(f"?limit={quote(limit)}")
    assert answer.status_code == 422
    assert "limit" in json.dumps(answer.json())


@pytest.mark.parametrize("query", ["?limit=5&limit=6", "?limit=5&limit=5"])
def test_a_limit_given_twice(api: Api, query: str) -> None:
    assert api.recent(query).status_code == 422


@pytest.mark.parametrize("bad", ["acme", "1", f"{SERVICE}x", SERVICE[:-1], "%00", "..%2f..", "'%20OR%201=1"])
def test_ids_that_are_no_uuid(api: Api, bad: str) -> None:
    for ids in ({"workspace": bad}, {"service": bad}):
        assert api.recent(**ids).status_code in (404, 422)
    assert api.recent(service="acme").status_code == 422


def test_only_get(api: Api) -> None:
    path = f"/v1/{WORKSPACE}/services/{SERVICE}/voice-judge/recent"
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        answer = api.client.request(method, path)
        assert answer.status_code == 405
        assert answer.headers["allow"] == "GET"


def test_numbers_no_json_has_are_null(api: Api) -> None:
    whole = row("c").to_columns() | {"clarity_score": float("nan"), "overall_score": float("inf")}
    found = StoredRow.from_columns(whole)
    assert (found.row.clarity_score, found.row.overall_score) == (None, None)


# -- 503 -------------------------------------------------------------------------------------------------
def unavailable(answer: Any) -> str:
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert list(answer.json()) == ["detail"]
    return answer.json()["detail"]


def test_no_warehouse_is_503() -> None:
    client = TestClient(create_app(None, None), base_url="http://127.0.0.1")
    path = f"/v1/{WORKSPACE}/services/{SERVICE}/voice-judge/recent"
    assert "not configured" in unavailable(client.get(path))
    assert client.get(path + "?limit=0").status_code == 422
    assert client.get("/ext/v1/health").status_code == 200


def test_a_warehouse_that_is_not_there_is_503_until_it_is(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/late.db"
    warehouse = open_warehouse(url)
    client = TestClient(create_app(warehouse, open_registry(url)), base_url="http://127.0.0.1")
    path = f"/v1/{WORKSPACE}/services/{SERVICE}/voice-judge/recent"
    said = unavailable(client.get(path))
    assert "not configured" in said
    assert str(tmp_path) not in said
    writer = open_warehouse(url, create=True)
    open_registry(url, create=True).register([(WORKSPACE, SERVICE)])
    writer.put([row("c")])
    assert client.get(path).json()["count"] == 1
    writer.close()
    warehouse.close()


def test_a_warehouse_that_refuses_is_503(tmp_path: Path) -> None:
    url = "clickhouse://user:secret@127.0.0.1:9/d"
    client = TestClient(create_app(open_warehouse(url), open_registry(url)), base_url="http://127.0.0.1")
    said = unavailable(client.get(f"/v1/{WORKSPACE}/services/{SERVICE}/voice-judge/recent"))
    assert "transiently unavailable" in said
    assert "secret" not in said


def test_a_registry_that_answers_and_a_warehouse_that_does_not(api: Api) -> None:
    api.warehouse.close()
    assert "transiently" in unavailable(api.recent())
    assert api.recent(service=OTHER).status_code == 404


# -- tokens ----------------------------------------------------------------------------------------------
@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Api]:
    found = Api(tmp_path, Tokens({WORKSPACE: [TOKEN, "another-token-for-it"], OTHER: "the-token-of-another"}))
    yield found
    found.warehouse.close()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_a_token_opens_its_own_workspace(guarded: Api) -> None:
    assert guarded.recent(headers=bearer(TOKEN)).status_code == 200
    assert guarded.recent(headers=bearer("another-token-for-it")).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [{}, bearer(""), bearer("x"), bearer("the-token-of-another"), bearer(TOKEN[:-1]), bearer(TOKEN + "x"),
     {"Authorization": TOKEN}, {"Authorization": f"Basic {TOKEN}"}, {"Authorization": b"Bearer \xff\xfe"}],
)  # fmt: skip
def test_without_it_nothing_is_said(guarded: Api, headers: dict[str, str]) -> None:
    paths = ["recent", "calls/c", "clips/c", "trend"]
    answers = [guarded.recent(headers=headers), guarded.recent(service=OTHER, headers=headers)]
    answers += [guarded.recent(workspace=str(UUID(int=9)), headers=headers)]
    answers += [guarded.ext(path, headers=headers) for path in paths[1:]]
    for answer in answers:
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
    assert len({answer.text for answer in answers}) == 1  # it tells not even what there is


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    monkeypatch.setattr("hmac.compare_digest", lambda a, b: compared.append(len(a) == len(b) == 32) or a == b)
    tokens = Tokens({WORKSPACE: [TOKEN, "another-token-for-it"]})
    assert tokens.open(WORKSPACE, TOKEN)
    assert not tokens.open(WORKSPACE, "x")
    assert not tokens.open(OTHER, TOKEN)
    assert compared == [True] * 5  # all tokens each time, and one for a workspace that there is not


def test_tokens_may_be_given_as_digests() -> None:
    import hashlib

    tokens = Tokens({WORKSPACE: "sha256:" + hashlib.sha256(TOKEN.encode()).hexdigest()})
    assert tokens.open(WORKSPACE, TOKEN)
    assert not tokens.open(WORKSPACE, "sha256:" + hashlib.sha256(TOKEN.encode()).hexdigest())
    assert not Tokens().open(WORKSPACE, "")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "no JSON"),
        ("{}", "must be"),
        ("[]", "must be"),
        (json.dumps({WORKSPACE: 5}), "must be"),
        (json.dumps({"acme": TOKEN}), "is no UUID"),
        (json.dumps({WORKSPACE: []}), "empty list"),
        (json.dumps({WORKSPACE: ""}), "shorter than 16"),
        (json.dumps({WORKSPACE: "short"}), "shorter than 16"),
        (json.dumps({WORKSPACE: f" {TOKEN}"}), "spaces around"),
    ],
)
def test_tokens_that_cannot_be_used(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(text)
    with pytest.raises(TokenError, match=words) as caught:
        read_tokens(path)
    assert TOKEN not in str(caught.value)
    with pytest.raises(TokenError, match="cannot be read"):
        read_tokens(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("host", "own"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("localhost", True), ("::1", True), ("[::1]", True),
     ("0.0.0.0", False), ("::", False), ("192.168.1.5", False), ("example.com", False), ("", False),
     ("localhost.example.com", False)],
)  # fmt: skip
def test_which_hosts_are_this_machine_only(host: str, own: bool) -> None:
    assert is_loopback(host) is own
    if not own:
        with pytest.raises(ServeError, match="without tokens only this machine is served"):
            serve("nowhere", host=host)


def test_without_tokens_another_name_for_this_machine_is_refused(api: Api) -> None:
    """A page in a browser may make its own name mean 127.0.0.1, and then read."""
    assert api.recent(headers={"Host": "evil.example.com"}).status_code == 400
    assert api.recent(headers={"Host": "localhost:8765"}).status_code == 200


# -- beyond the contract ---------------------------------------------------------------------------------
@pytest.fixture
def recorded(api: Api, tmp_path: Path) -> Api:
    folder = tmp_path / "recorded"
    folder.mkdir()
    for name in ("cascaded.jsonl", "cascaded.flac"):
        shutil.copy(EXAMPLES / name, folder)
    [call] = read_calls(folder / "cascaded.jsonl")
    message = next(m for m in call.messages if m.selections)
    evidence = {
        "dimensions": {
            "clarity": {"evidence": [{"message_id": message.id, "start_ms": 200, "end_ms": 700}, {}]}
        }
    }
    stored = row("CA 1/x", judge_json=json.dumps(evidence)).model_copy(
        update={"source": str(folder / "cascaded.jsonl")}
    )
    api.warehouse.put([stored])
    return api


def test_one_calls_evidence_with_what_to_listen_to(recorded: Api) -> None:
    [item] = recorded.recent().json()["items"]
    answer = recorded.ext(f"calls/{quote(item['call_sid'], safe='')}")
    assert answer.status_code == 200
    body = answer.json()
    assert body["call"] == item
    assert body["evidence"] == json.loads(item["judge_json"])
    [path] = body["clips"]
    audio = recorded.get(path)
    assert audio.status_code == 200
    assert audio.headers["content-type"] == "audio/wav"
    samples, rate = sf.read(io.BytesIO(audio.content), dtype="int16")
    assert samples.shape == (rate // 2, 2)
    [call] = read_calls(EXAMPLES / "cascaded.jsonl")
    whole, _ = sf.read(EXAMPLES / "cascaded.flac", dtype="int16")
    assert (samples == whole[rate // 5 : rate // 5 + rate // 2]).all()
    message = next(m for m in call.messages if m.selections)
    clip = recorded.ext(f"clips/CA%201%2Fx?message_id={quote(message.id)}")
    samples, _ = sf.read(io.BytesIO(clip.content), dtype="int16")
    assert (samples == call.clip(message).samples).all()
    side = recorded.ext("clips/CA%201%2Fx?start_ms=0&end_ms=1000&channel=agent")
    assert sf.read(io.BytesIO(side.content))[0].ndim == 1


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("?message_id=none", 404),
        ("?start_ms=500&end_ms=500", 404),
        ("?start_ms=900000000&end_ms=900000500", 404),
        ("?start_ms=-1", 422),
        ("?start_ms=1.5", 422),
        ("?end_ms=99999999999", 422),
        ("?channel=both", 422),
    ],
)
def test_clips_that_are_not(recorded: Api, query: str, status: int) -> None:
    assert recorded.ext(f"clips/CA%201%2Fx{query}").status_code == status


def test_a_call_that_is_not_here(api: Api, tmp_path: Path) -> None:
    api.warehouse.put([row("c").model_copy(update={"source": str(tmp_path / "gone")})])
    assert api.ext("calls/none").status_code == 404
    answer = api.ext("clips/c")
    assert answer.status_code == 404
    assert answer.json() == {"detail": "the call is not on this machine"}


def test_a_trend(api: Api) -> None:
    api.warehouse.put([row(f"c{n}", minutes(n), started=NOON, score=0.5) for n in range(12)])
    body = api.ext("trend").json()
    [point] = body["items"]
    assert (point["start"], point["calls"], point["overall"]) == (
        "2026-05-15T00:00:00Z", 12, {"scored": 12, "mean": 0.5},
    )  # fmt: skip
    assert point["dimensions"]["clarity"]["mean"] == 0.5
    assert api.ext("trend?since=2026-06-01T00:00:00Z").json()["items"] == []
    for bad in ("bucket=hour", "since=yesterday", "min_scored=0", "since=2026-05-01&since=2026-05-02"):
        assert api.ext(f"trend?{bad}").status_code == 422


# -- OpenAPI -----------------------------------------------------------------------------------------------
def test_the_openapi_document_says_what_the_contract_says(guarded: Api) -> None:
    document = guarded.get("/openapi.json").json()
    operation = document["paths"]["/v1/{workspace_id}/services/{service_id}/voice-judge/recent"]["get"]
    limit = next(p for p in operation["parameters"] if p["name"] == "limit")["schema"]
    assert {k: limit[k] for k in ("type", "minimum", "maximum", "default")} == {
        "type": "integer", "minimum": 1, "maximum": 100, "default": 20,
    }  # fmt: skip
    assert {p["name"]: p["schema"]["format"] for p in operation["parameters"] if p["in"] == "path"} == {
        "workspace_id": "uuid", "service_id": "uuid",
    }  # fmt: skip
    assert set(operation["responses"]) == {"200", "401", "404", "422", "503"}
    assert operation["security"] == [{"HTTPBearer": []}]
    assert list(document["components"]["schemas"]["JudgeRow"]["properties"]) == FIELDS
    contract = [path for path in document["paths"] if not path.startswith("/ext/")]
    assert contract == ["/v1/{workspace_id}/services/{service_id}/voice-judge/recent"]
    assert guarded.get("/docs").status_code == 200


# -- served ------------------------------------------------------------------------------------------------
def test_served_by_uvicorn(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/house.db"
    house = open_warehouse(url, create=True)
    house.put([row("c")])
    house.close()
    open_registry(url, create=True).register([(WORKSPACE, SERVICE)])
    program = "from voicetrace.cli import main; main()"
    command = [sys.executable, "-c", program, "judge", "serve", "--warehouse", url, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        where = line.split(" at ")[1].split(",")[0]
        import httpx2

        answer = httpx2.get(f"{where}/v1/{WORKSPACE}/services/{SERVICE}/voice-judge/recent")
        assert answer.json()["count"] == 1
        assert "server" not in answer.headers
        server.terminate()
        assert server.wait() in (0, 130, 143, -15)


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ServeError, match="cannot be served"):
            serve(f"sqlite:///{tmp_path}/x.db", port=taken.getsockname()[1])


def test_many_at_once(api: Api) -> None:
    api.warehouse.put([row(f"c{n}", minutes(n)) for n in range(50)])
    wanted, wrong = api.recent().json(), []

    def ask() -> None:
        for _ in range(10):
            if api.recent().json() != wanted:
                wrong.append(1)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
