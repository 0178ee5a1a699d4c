"""The way to what a host downloads from: real servers, each stage at which it may end, and what preflight says."""

from __future__ import annotations

import datetime
import http.server
import ipaddress
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from preflight_cases import state
from preflight_hosts import PLANNED, by_check, change, findings_of, healthy

from bringup.agent import questions
from bringup.base.errors import InputError
from bringup.base.verdicts import Verdict
from bringup.preflight.needs import _site

Serve = Callable[..., int]


class Answers(http.server.BaseHTTPRequestHandler):
    """Answers as the path asks: `/404`, everything else with 200. As a proxy it refuses or passes."""

    def do_GET(self) -> None:
        self.send_response(404 if self.path.endswith("/404") else 200)
        self.end_headers()
        self.wfile.write(b"x")

    def do_CONNECT(self) -> None:
        self.send_response(407)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        return


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts a server on a free port of loopback, with a certificate of nobody's authority where `tls` is asked for."""
    made: list[http.server.ThreadingHTTPServer] = []

    def start(*, tls: bool = False) -> int:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate(tmp_path))
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        made.append(server)
        return int(server.server_address[1])

    yield start
    for server in made:
        server.shutdown()
        server.server_close()


def certificate(folder: Path) -> Path:
    """A self-signed certificate with its key, for 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "private authority")])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
            .serial_number(7).not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
            .add_extension(x509.BasicConstraints(True, None), True)
            .sign(key, hashes.SHA256()))
    path = folder / "server.pem"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    return path


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def asked(*urls: str) -> dict[str, Any]:
    return json.loads(questions.answer("fetch", {"urls": list(urls)})["stdout"])


def closed_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_each_stage_at_which_a_way_may_end(serve: Serve) -> None:
    plain, shut, secure = serve(), closed_port(), serve(tls=True)
    urls = {f"http://127.0.0.1:{plain}/simple/": "done", f"http://127.0.0.1:{plain}/404": "http",
            f"http://127.0.0.1:{shut}/": "connect", f"https://127.0.0.1:{secure}/": "tls",
            f"https://127.0.0.1:{plain}/": "tls", "http://index.invalid/": "dns", "ftp://x/": "address"}
    found = asked(*urls)
    assert {url: one["stage"] for url, one in found.items()} == urls, found
    assert "self" in found[f"https://127.0.0.1:{secure}/"]["error"]
    assert found[f"http://127.0.0.1:{plain}/404"]["error"] == "it answers 404"


def test_a_known_authority_is_believed(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"https://127.0.0.1:{serve(tls=True)}/"
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "server.pem"))
    assert asked(url)[url]["stage"] == "done"


def test_the_proxy_of_the_session_is_taken_and_its_refusal_told(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = serve()
    monkeypatch.setenv("https_proxy", f"http://ops:secret@127.0.0.1:{proxy}")
    found = asked("https://index.invalid/simple/")["https://index.invalid/simple/"]
    assert (found["stage"], found["status"], found["by"]) == ("proxy", 407, f"127.0.0.1:{proxy}")
    assert "secret" not in json.dumps(found)
    monkeypatch.setenv("no_proxy", "index.invalid")
    assert asked("https://index.invalid/simple/")["https://index.invalid/simple/"]["stage"] == "dns"


def test_c059_the_stage_that_fails_is_told_on_each_host() -> None:
    hosts = state("C059")["hosts"]
    url = "https://index.example/simple/"
    stages = {"profile-01": {"stage": "connect", "error": "no answer"},
              "ca-02": {"stage": "tls", "error": "unable to get local issuer certificate"},
              "noproxy-03": {"stage": "done", "status": 200, "by": "proxy.example:3128"},
              "offline-04": {"stage": "dns", "error": "Temporary failure in name resolution"}}
    assert set(stages) == set(hosts)
    needs = dict.fromkeys(hosts, replace(PLANNED, urls=(url,)))
    answers = {host: change(healthy(host), "net.fetch", json.dumps({url: stages[host]})) for host in hosts}
    found = {one.subject: one for one in by_check(findings_of(answers, needs), "net.fetch")}
    assert {host: one.verdict for host, one in found.items()} == {
        "profile-01": Verdict.FAIL, "ca-02": Verdict.FAIL, "noproxy-03": Verdict.PASS, "offline-04": Verdict.FAIL}
    assert "cannot be reached" in found["profile-01"].summary and "proxy" in str(found["profile-01"].mend)
    assert "TLS fails" in found["ca-02"].summary and "system's store" in str(found["ca-02"].mend)
    assert found["offline-04"].found == "ends at dns"


def test_without_addresses_nothing_is_asked_and_nothing_said() -> None:
    assert asked() == {}
    assert by_check(findings_of(healthy(), PLANNED), "net.fetch")[0].verdict is Verdict.SKIP


@pytest.mark.parametrize("value", ["mirror.example", "ftp://x/", "https://user:pw@x/", ["http://a/", 7]])
def test_addresses_of_the_inventory_are_checked(value: Any) -> None:
    with pytest.raises(InputError, match="bringup_urls"):
        _site({"bringup_urls": value})
