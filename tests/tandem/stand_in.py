"""A stand-in for one of the services that `tandem up` starts: `stand_in.py PORT MODE`, torch-free and quick."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

from tandem.lifeline import hold_on


class Handler(BaseHTTPRequestHandler):
    mode = "ready"

    def do_GET(self) -> None:
        ready = self.mode != "loading"
        body = json.dumps({"ready": ready, "detail": "reading weights"}).encode()
        self.send_response(200 if ready else 503)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def farewell(number: int, frame: object) -> None:
    logging.error("ended the streams")
    sys.exit(0)


def main() -> None:
    port, Handler.mode = int(sys.argv[1]), sys.argv[2]
    hold_on()
    logging.basicConfig(level="INFO", format="%(levelname)s %(message)s")
    if Handler.mode == "dies":
        logging.error("no such model: nowhere")
        sys.exit(3)
    if Handler.mode == "raises":
        raise LookupError("no such thing")
    if Handler.mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if Handler.mode == "drains":  # as the gateway does while a stream runs: until it is told twice
        signal.signal(signal.SIGTERM, lambda number, frame: signal.signal(signal.SIGTERM, farewell))
    if Handler.mode == "family":
        helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print(f"helper {helper.pid}", flush=True)
    logging.info("quiet line")
    logging.warning("early warning")
    logging.error("loud line")
    if Handler.mode == "silent":
        signal.pause()
    HTTPServer(("127.0.0.1", port), Handler).serve_forever()


main()
