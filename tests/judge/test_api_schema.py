# SPDX-License-Identifier: Apache-2.0
"""Whatever a client may send, the API answers as its OpenAPI document says (schemathesis)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given
from hypothesis import settings as hypothesis_settings
from jdoubles import NOON, SERVICE, WORKSPACE, minutes, row

from voicetrace.judge.api.auth import Tokens
from voicetrace.judge.registry import open_registry
from voicetrace.judge.warehouse import open_warehouse

pytest.importorskip("fastapi", reason="the API needs voicetrace[server]")
schemathesis: Any = pytest.importorskip(
    "schemathesis", reason="generated requests need schemathesis, of the dependency group judge-heavy"
)

TOKEN = "a-token-of-the-workspace"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
SERVICE_PATH = "{workspace_id}/services/{service_id}"
OPERATIONS = [
    f"GET /v1/{SERVICE_PATH}/voice-judge/recent",
    f"GET /ext/v1/{SERVICE_PATH}/calls/{{call_sid}}",
    f"GET /ext/v1/{SERVICE_PATH}/clips/{{call_sid}}",
    f"GET /ext/v1/{SERVICE_PATH}/trend",
    "GET /ext/v1/health",
]
EXISTING = {"workspace_id": WORKSPACE, "service_id": SERVICE, "call_sid": "c3"}
QUICK = hypothesis_settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


@pytest.fixture(scope="module")
def operations(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    from voicetrace.judge.api.app import create_app

    url = f"sqlite:///{tmp_path_factory.mktemp('house')}/house.db"
    house, registry = open_warehouse(url, create=True), open_registry(url, create=True)
    registry.register([(WORKSPACE, SERVICE)])
    evidence = json.dumps({"dimensions": {"clarity": {"evidence": [{"start_ms": 0, "end_ms": 5}]}}})
    house.put([row(f"c{n}", minutes(n), started=NOON, judge_json=evidence) for n in range(30)])
    schema = schemathesis.openapi.from_asgi(
        "/openapi.json", create_app(house, registry, Tokens({WORKSPACE: TOKEN}))
    )
    yield {found.ok().label: found.ok() for found in schema.get_all_operations()}
    house.close()


def test_these_are_all_operations(operations: dict[str, Any]) -> None:
    assert sorted(operations) == sorted(OPERATIONS)


@pytest.mark.parametrize("mode", ["POSITIVE", "NEGATIVE"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_whatever_is_sent_is_answered_as_the_document_says(
    operations: dict[str, Any], name: str, mode: str
) -> None:
    operation = operations[name]
    if mode == "NEGATIVE" and not list(operation.iter_parameters()):
        return

    @given(case=operation.as_strategy(generation_mode=schemathesis.GenerationMode[mode]))
    @QUICK
    def check(case: Any) -> None:
        assume(mode == "NEGATIVE" or not _with_a_fraction(case))
        answer = case.call(headers=HEADERS)
        assert answer.status_code < 500
        case.validate_response(answer)

    check()


@pytest.mark.parametrize("name", OPERATIONS)
def test_of_a_service_that_there_is(operations: dict[str, Any], name: str) -> None:
    operation = operations[name]
    statuses = set()

    @given(case=operation.as_strategy(generation_mode=schemathesis.GenerationMode.POSITIVE))
    @QUICK
    def check(case: Any) -> None:
        assume(not _with_a_fraction(case))
        for parameter in case.path_parameters or {}:
            case.path_parameters[parameter] = EXISTING[parameter]
        answer = case.call(headers=HEADERS)
        statuses.add(answer.status_code)
        case.validate_response(answer)

    check()
    assert statuses == ({404} if "clips" in name else {200})  # there is no audio of these calls


def _with_a_fraction(case: Any) -> bool:
    """JSON Schema takes 5.0 for an integer; in a URL we do not."""
    return any(isinstance(value, float) for value in (case.query or {}).values())
