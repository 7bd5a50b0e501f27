# SPDX-License-Identifier: Apache-2.0
"""ClickHouse in this process (chdb) behind its HTTP interface: what our client sends is what is run."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

AUTHORIZATION = "Basic dXNlcjpzZWNyZXQ="  # user:secret


class ClickHouseServer:
    """One for the process: chdb has one engine a process."""

    def __init__(self) -> None:
        from chdb.session import Session

        self.session = Session()
        self.lock = threading.Lock()
        self.databases = 0
        self.refuse = ""  # answer every request with this error
        self.hang_up = 0  # close so many connections without an answer
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if server.hang_up:
                    server.hang_up -= 1
                    self.close_connection = True
                    return
                status, answer = server.answer(self.path, self.headers["Authorization"], body)
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *args: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.port = self.http.server_address[1]
        self.thread = threading.Thread(target=self.http.serve_forever, daemon=True)
        self.thread.start()

    def answer(self, path: str, authorization: str, body: bytes) -> tuple[int, bytes]:
        if authorization != AUTHORIZATION:
            return 403, b"Code: 516. DB::Exception: user: Authentication failed"
        if self.refuse:
            return 500, self.refuse.encode()
        query = {k: v[0] for k, v in parse_qs(urlsplit(path).query, keep_blank_values=True).items()}
        values = {k.removeprefix("param_"): v for k, v in query.items() if k.startswith("param_")}
        sql = f"{query['query']}\n{body.decode()}" if "query" in query else body.decode()
        with self.lock:
            try:
                self.session.query(f"USE {query['database']}")
                result = self.session.query(sql, "TSV", params=values)
                return 200, result.bytes() if result is not None and result.size() else b""
            except RuntimeError as error:
                return 500, str(error).encode()

    def new_database(self) -> str:
        self.databases += 1
        name = f"t{self.databases}"
        with self.lock:
            self.session.query(f"CREATE DATABASE {name}")
        return f"clickhouse://user:secret@127.0.0.1:{self.port}/{name}"

    def stop(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()
        self.session.close()
