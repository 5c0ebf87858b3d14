"""The server as a process: its address, its token, its end."""

import math
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from everytoken.cli import cli
from tests.serving.served import serving, tiny_model, write_model

LONG = {"prompt": "Hello", "max_tokens": 90_000, "temperature": 0}
TOKEN = "a token of a test"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


def processes_of(session):
    """Return the processes of a session that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, number = path.read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(number) == session and state != "Z":
            found.append(path.parent.name)
    return found


@pytest.mark.sensitive
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 130)])
def test_a_signal_ends_the_server_in_a_stream(model, sent, code):
    with serving(model) as server, server.streaming("completions", **LONG) as events:
        next(events)
        server.process.send_signal(sent)
        *_, last = events
        assert server.process.wait(timeout=10) == code  # a second on a machine that has nothing else to do
        assert last["error"]["code"] == "server_stops"
        assert processes_of(server.process.pid) == []
        assert all("Traceback" not in text for text in server.process.communicate())


@pytest.mark.sensitive
def test_a_kill_in_a_stream_leaves_no_process(model):
    with serving(model) as server, server.streaming("completions", **LONG) as events:
        next(events)
        assert processes_of(server.process.pid) == [str(server.process.pid)]
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(timeout=10)
        assert processes_of(server.process.pid) == []


@pytest.mark.sensitive
def test_a_token_lets_clients_in_and_is_never_told(model):
    with serving(model, "--host", "0.0.0.0", token=TOKEN) as server:
        for given in (None, "Bearer ", f"Bearer {TOKEN}x", f"Basic {TOKEN}", f"Bearer {TOKEN[:-1]}é"):
            headers = {} if given is None else {"Authorization": given}
            for method, path in (("GET", "/v1/models"), ("POST", "/v1/completions"), ("GET", "/nothing")):
                status, response_headers, found = server.ask(method, path, headers=headers)
                assert (status, response_headers["www-authenticate"]) == (401, "Bearer")
                assert found["error"]["code"] == "invalid_api_key"
        allowed = {"Authorization": f"Bearer {TOKEN}", "Host": "any.example"}
        assert server.ask("GET", "/v1/models", headers=allowed)[0] == 200
        assert server.ask("GET", "/health")[0] == 200
        server.process.send_signal(signal.SIGINT)
        assert all(TOKEN not in text for text in server.process.communicate())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.com"])
@pytest.mark.parametrize("token", [None, ""])
def test_another_address_than_loopback_needs_a_token(model, monkeypatch, host, token):
    monkeypatch.delenv("EVERYTOKEN_SERVE_TOKEN", raising=False)
    if token is not None:
        monkeypatch.setenv("EVERYTOKEN_SERVE_TOKEN", token)
    done = CliRunner().invoke(cli, ["serve", str(model), "--host", host, "--port", "0"])
    assert done.exit_code == 1
    assert "it needs a token: set EVERYTOKEN_SERVE_TOKEN, or listen on 127.0.0.1" in done.output


@pytest.mark.sensitive
def test_a_port_that_is_taken_is_an_error(model):
    with serving(model) as server:
        done = CliRunner().invoke(cli, ["serve", str(model), "--port", str(server.port)])
    assert done.exit_code == 1
    assert f"cannot listen on 127.0.0.1, port {server.port}" in done.output
    assert "Choose others (--host, --port)" in done.output


@pytest.mark.sensitive
def test_a_name_and_an_address_of_ipv6_are_served(model):
    for host in ("localhost", "::1"):
        with serving(model, "--host", host) as server:
            server.host = server.host.strip("[]")
            assert server.ask("GET", "/v1/models")[0] == 200


def test_a_missing_extra_is_named(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    done = CliRunner().invoke(cli, ["serve", str(model)])
    assert done.exit_code == 1
    assert "uvicorn cannot be imported: pip install 'everytoken[serve]'" in done.output


def test_nothing_else_imports_the_server():
    code = "import sys, everytoken.cli; from everytoken.serving import open_model; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "everytoken.serving.opening" in loaded
    assert not {"fastapi", "starlette", "uvicorn"} & set(loaded)


@pytest.mark.sensitive
def test_a_model_without_chat_template_continues_prompts_alone(tmp_path):
    with serving(write_model(tmp_path, template=None)) as server:
        status, error = server.refusal("chat/completions", messages=[{"role": "user", "content": "a"}])
        assert (status, error["param"]) == (400, "messages")
        assert "tiny has no chat template" in error["message"]
        assert server.answer("completions", prompt="a", max_tokens=1, seed=1)["usage"]["completion_tokens"] == 1


@pytest.mark.sensitive
def test_a_reply_that_fails_is_an_error_also_in_a_stream(tmp_path):
    diverged = tiny_model()
    diverged.final_norm.weight.data.fill_(math.nan)
    asked = {"messages": [{"role": "user", "content": "a"}], "seed": 1}
    with serving(write_model(tmp_path, model=diverged)) as server:
        status, error = server.refusal("chat/completions", **asked)
        assert (status, error["type"]) == (500, "server_error")
        assert "are not finite numbers: its training diverged" in error["message"]
        first, last = server.events("chat/completions", **asked)
        assert first["choices"][0]["delta"]["role"] == "assistant"
        assert last["error"] == error
        assert server.refusal("completions", prompt="a", max_tokens=0, echo=True, logprobs=1)[0] == 500
        assert server.counts() == (0, 0)
