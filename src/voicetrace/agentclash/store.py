# SPDX-License-Identifier: Apache-2.0
"""A bundle in object storage: every artifact uploaded, read back and compared, then its manifest.

S3, Google Cloud Storage, Azure, a local directory or memory: what `obstore` knows (the ``store`` extra).
Large files go up in parts. Transient failures are retried by the store's client; an object that does not read
back with its digest is uploaded again. The manifest goes last, so what is interrupted is no bundle.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from os import PathLike
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from voicetrace.agentclash import artifacts as a
from voicetrace.agentclash.artifacts import BundleError
from voicetrace.agentclash.manifest import MANIFEST_NAME, Manifest, validate_manifest
from voicetrace.agentclash.problems import load_json
from voicetrace.agentclash.validate import digest, validate_bundle

PART_BYTES: Final = 8 * 1024 * 1024
_PARTS_AT_ONCE: Final = 4
_ATTEMPTS: Final = 3
_CLOUDS: Final = ("s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss")
_CLIENT_OPTIONS: Final = (  # of the HTTP client: obstore takes them apart from the store's own
    "allow_http", "allow_invalid_certificates", "connect_timeout", "http1_only", "http2_only", "proxy_url",
    "timeout", "user_agent",
)  # fmt: skip
_RETRY: Final[dict[str, Any]] = {"max_retries": 6, "retry_timeout": timedelta(minutes=2)}


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a store a bundle goes: what the manifest calls the bucket, and the prefix of its keys."""

    bucket: str
    prefix: str

    def key(self, name: str) -> str:
        """The object key of a file of the bundle."""
        return f"{self.prefix}/{name}" if self.prefix else name


def place_of(url: str) -> Place:
    """The bucket and the prefix that a URL names.

    ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``az://container/prefix`` (its account is an option) or
    ``abfss://container@account.dfs.core.windows.net/prefix``, ``file:///directory``, ``memory:///prefix``.

    Raises:
        BundleError: it is no such URL.
    """
    parts = urlsplit(url)
    path = unquote(parts.path).strip("/")
    if parts.scheme in _CLOUDS and parts.netloc:
        return Place(parts.username or parts.netloc, path)
    if parts.scheme == "file" and path and not parts.netloc:
        return Place(f"/{path}", "")
    if parts.scheme == "memory" and not parts.netloc:
        return Place("memory", path)
    raise BundleError(
        f"{url} names no place in object storage: use s3://bucket/prefix, gs://bucket/prefix, "
        "az://container/prefix or file:///directory"
    )


def upload_bundle(
    directory: str | PathLike[str],
    url: str,
    *,
    config: Mapping[str, Any] | None = None,
    client_options: Mapping[str, Any] | None = None,
    retry_config: Mapping[str, Any] | None = None,
    store: Any = None,
) -> Path:
    """Upload a valid bundle and return the path of its manifest with ``object_storage`` locations.

    That manifest is written beside the local one, as ``voice_artifact_manifest.object_storage.json``, and is
    the last object uploaded, as ``<prefix>/voice_artifact_manifest.json``. A call import and a multimodal
    trace go with it, referring to the objects. Existing objects of these names are replaced. Blocking.

    Args:
        directory: a bundle; it is checked first.
        url: where to, see `place_of`.
        config: the store's options, e.g. ``{"endpoint": ..., "region": ...}``; credentials that are not
            here come from the environment, as the cloud's own tools take them.
        client_options: of the HTTP client, e.g. ``{"allow_http": True}``; they may also be in ``config``.
        retry_config: how the client retries; six times within two minutes by default.
        store: a store to use instead of one made from ``url``; keys are taken from the url all the same,
            without the bucket.

    Raises:
        BundleError: the bundle is not valid, the store cannot be reached or refuses, or an object does not
            read back as it was uploaded.
    """
    root = Path(directory)
    problems = validate_bundle(root)
    if problems:
        raise BundleError(f"{root} is not uploaded, it is not valid: {problems[0]}")
    data, _ = load_json(root / MANIFEST_NAME)
    place = place_of(url)
    if store is None:
        store, place = _open(url, place, config, client_options, retry_config)
    upload = _Uploader(store, place)
    moved: dict[str, str] = {}
    listed = []
    for artifact in data["artifacts"]:
        if artifact["location"] != "local_path":
            listed.append(artifact)
            continue
        path = artifact["path"]
        sha, size = digest(root / path)
        upload.file(root / path, path, artifact.get("content_type"), sha)
        rest = {name: value for name, value in artifact.items() if name != "path"}
        rest |= {"location": "object_storage", "size_bytes": size}
        listed.append(rest | {"bucket": place.bucket, "object_key": place.key(path)})
        moved[path] = f"{place.bucket}/{place.key(path)}"
    manifest = data | {"artifacts": listed}
    problems = validate_manifest(manifest)
    if problems:
        raise BundleError(f"the manifest would not be valid: {'; '.join(problems)}")
    for name in (a.CALL_IMPORT_NAME, a.MULTIMODAL_TRACE_NAME):
        if (root / name).is_file():
            upload.text(_moved_case(root / name, manifest, moved), name)
    text = Manifest.model_validate(manifest).to_json()
    upload.text(text, MANIFEST_NAME)
    local = root / a.OBJECT_MANIFEST_NAME
    try:
        local.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise BundleError(f"{local} cannot be written: {error.strerror or error}") from error
    return local


def _open(
    url: str,
    place: Place,
    config: Mapping[str, Any] | None,
    client_options: Mapping[str, Any] | None,
    retry_config: Mapping[str, Any] | None,
) -> tuple[Any, Place]:
    obstore = _obstore()
    scheme = urlsplit(url).scheme
    try:
        if scheme == "file":
            return obstore.store.LocalStore(place.bucket, mkdir=True), place
        if scheme == "memory":
            return obstore.store.MemoryStore(), place
        # the prefix stays out of the store: keys in the manifest are those of the bucket
        root = f"{scheme}://{urlsplit(url).netloc}"
        own = {name: value for name, value in (config or {}).items() if name not in _CLIENT_OPTIONS}
        client = {name: value for name, value in (config or {}).items() if name in _CLIENT_OPTIONS}
        made = obstore.store.from_url(
            root,
            config=own or None,
            client_options={**client, **(client_options or {})} or None,
            retry_config=dict(retry_config or _RETRY),
        )
    except (obstore.exceptions.BaseError, ValueError, OSError) as error:
        raise BundleError(f"{url} cannot be opened: {_reason(error)}") from error
    return made, place


def _obstore() -> Any:
    try:
        import obstore  # type: ignore[import-not-found,unused-ignore]
        import obstore.exceptions  # type: ignore[import-not-found,unused-ignore]
        import obstore.store  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise BundleError("object storage needs obstore: install voicetrace[store]") from error
    return obstore


class _Uploader:
    """Puts objects into a store and makes sure that they are there as they should be."""

    def __init__(self, store: Any, place: Place) -> None:
        self._store = store
        self._place = place
        self._obstore = _obstore()

    def file(self, path: Path, name: str, content_type: str | None, sha: str) -> None:
        def put(key: str) -> None:
            self._put(key, path, content_type or "application/octet-stream")

        self._put_and_check(name, sha, put)

    def text(self, text: str, name: str) -> None:
        data = text.encode()

        def put(key: str) -> None:
            self._put(key, data, "application/json")

        self._put_and_check(name, hashlib.sha256(data).hexdigest(), put)

    def _put(self, key: str, what: Path | bytes, content_type: str) -> None:
        attributes = None if self._keeps_no_attributes() else {"Content-Type": content_type}
        self._obstore.put(
            self._store,
            key,
            what,
            attributes=attributes,
            chunk_size=PART_BYTES,
            max_concurrency=_PARTS_AT_ONCE,
        )

    def _keeps_no_attributes(self) -> bool:
        return isinstance(self._store, self._obstore.store.LocalStore)

    def _put_and_check(self, name: str, sha: str, put: Callable[[str], None]) -> None:
        key = self._place.key(name)
        last = ""
        for _ in range(_ATTEMPTS):
            try:
                put(key)
                found = self._sha256(key)
            except (self._obstore.exceptions.BaseError, OSError) as error:
                last = _reason(error)
                continue
            if found == sha:
                return
            last = f"it reads back with the digest {found}, not {sha}"
        raise BundleError(
            f"{name} cannot be uploaded to {self._place.bucket}/{key} in {_ATTEMPTS} attempts: {last}"
        )

    def _sha256(self, key: str) -> str:
        sha = hashlib.sha256()
        for chunk in self._obstore.get(self._store, key).stream():
            sha.update(chunk)
        return sha.hexdigest()


def _reason(error: BaseException) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:300]


def _moved_case(path: Path, manifest: Mapping[str, Any], moved: Mapping[str, str]) -> str:
    """A call import or a multimodal trace whose references are those of the objects."""
    data = json.loads(path.read_text("utf-8"))
    if "artifact_manifest" in data:
        data["artifact_manifest"] = manifest
    for entry in data.get("transcript", []):
        audio = entry.get("audio")
        if audio:
            audio["artifact_ref"] = moved.get(audio["artifact_ref"], audio["artifact_ref"])
    for segment in data.get("segments", []):
        for kind in ("audio_input", "audio_output"):
            if kind in segment:
                audio = segment[kind]
                audio["artifact_ref"] = moved.get(audio["artifact_ref"], audio["artifact_ref"])
    return a.json_text(data, path.name)
