# SPDX-License-Identifier: Apache-2.0
"""Serve the API with uvicorn."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from voicetrace.judge.api.auth import Tokens, is_loopback
from voicetrace.judge.registry import Registry, open_registry
from voicetrace.judge.warehouse import Warehouse, WarehouseError, open_warehouse

logger = logging.getLogger("voicetrace.judge.api")


class ServeError(RuntimeError):
    """It is not served, and why."""


def serve(
    warehouse_url: str,
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    tokens: Tokens | None = None,
    started: Callable[[str], None] | None = None,
) -> None:
    """Serve until interrupted. A warehouse that is not there is no error: it is answered with 503.

    Args:
        warehouse_url: see `open_warehouse`.
        host: what to bind. Without tokens, loopback only.
        port: the port; 0 takes a free one.
        tokens: who may read what.
        started: called with the server's URL once it answers.

    Raises:
        ServeError: the host is not loopback and there are no tokens, the port is taken, or FastAPI and
            uvicorn are not installed.
    """
    if not tokens and not is_loopback(host):
        raise ServeError(f"without tokens only this machine is served, and {host} is more: use --tokens FILE")
    try:
        import uvicorn

        from voicetrace.judge.api.app import create_app
    except ImportError as error:
        raise ServeError("serving needs FastAPI and uvicorn: pip install 'voicetrace[server]'") from error

    warehouse: Warehouse | None = None
    registry: Registry | None = None
    try:
        warehouse, registry = open_warehouse(warehouse_url), open_registry(warehouse_url)
    except WarehouseError as error:
        logger.warning("%s", error)
    config = uvicorn.Config(
        create_app(warehouse, registry, tokens),
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
    )

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            if self.started and started is not None:
                bound = self.servers[0].sockets[0].getsockname()[1]
                started(f"http://{f'[{host}]' if ':' in host else host}:{bound}")

    try:
        Server(config).run()
    except SystemExit as error:  # uvicorn's own way of saying that it cannot bind
        raise ServeError(f"{host}:{port} cannot be served: it is taken, or not of this machine") from error
    finally:
        if warehouse is not None:
            warehouse.close()
        if registry is not None:
            registry.close()
