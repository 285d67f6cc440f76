"""S3 in this process, by moto: for the protocol of logs in object stores.

Moto looks whether a key exists and then writes it, without a lock between the two, so two clients
may both win a conditional write.  A lock around each request lets contention be tested.
"""

import os
import threading
import urllib.request
from collections.abc import Iterable
from typing import Any, Self

BUCKET = "logs"

#: Moto refuses unsigned requests, and takes any signature.
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}


class Moto:
    """A server with one bucket; a context that stops it."""

    environment = CREDENTIALS

    def __init__(self) -> None:
        # Read by moto once: tests of uploads in parts need few bytes for many parts.
        os.environ.setdefault("S3_UPLOAD_PART_MIN_SIZE", "1")
        # The environment of Sail's tests has no moto.
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        app = DomainDispatcherApplication(create_backend_app)
        turn = threading.Lock()
        self.requests: list[tuple[str, str]] = []

        def serve(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            self.requests.append((environ["REQUEST_METHOD"], environ["PATH_INFO"]))
            with turn:
                return [b"".join(app(environ, start_response))]

        self._server = make_server("127.0.0.1", 0, serve, threaded=True)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{BUCKET}", method="PUT")
        urllib.request.urlopen(request).close()

    def url(self, key: str) -> str:
        """URL of a place; the credentials are those of the environment (`CREDENTIALS`)."""
        server = f"http://127.0.0.1:{self.port}"
        return f"s3://{BUCKET}/{key}?endpoint_override={server}&region=us-east-1"

    log_url = url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
