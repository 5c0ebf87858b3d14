"""A secret that is given to a run is nowhere in what the run writes and prints."""

from __future__ import annotations

import base64
import json
import logging
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import traceback
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar
from urllib.parse import quote

import pytest
import yaml
from pydantic import BaseModel, ValidationError

import everytoken.parameters
from everytoken.corpus.errors import UpstreamError
from everytoken.corpus.ingestion.source import PathUpstream, find_files
from everytoken.corpus.upstreams.retries import FetchError, Transient
from everytoken.parameters import ReplayParameters
from everytoken.redaction import urls
from everytoken.redaction.output import redact_output
from everytoken.redaction.urls import (
    Redaction,
    SecretError,
    is_public_host,
    is_web_link,
    names_public_place,
    redacted,
    require_no_secrets,
    secrets_in,
)
from everytoken.tracking.errors import TrackingError
from everytoken.tracking.hook import tracking_settings
from tests.redaction.secret_forms import contents, forms, found_in
from tests.tracking.toy_project import ToyProject
from tests.warm_kedro import run_everytoken, run_kedro

ROOT = Path(__file__).resolve().parents[2]
PLAIN = "Tr0ub4dor-and-3-{}"
URLS = {
    "user and password": "https://me:{}@host.example/texts",
    "token as user": "https://{}@host.example/texts",
    "short token and no password": "https://{}:@host.example/texts",
    "token and a dummy password": "https://{}:x-oauth-basic@host.example/texts",
    "token": "https://host.example/texts?token={}",
    "sig": "https://host.example/texts?sv=2024-01-01&sig={}&se=2027",
    "amazon": "https://host.example/texts?X-Amz-Algorithm=AWS4&X-Amz-Signature={}",
    "google": "https://host.example/texts?X-Goog-Signature={}",
    "access_token": "https://host.example/texts?page=2&access_token={}",
    "api_key": "https://host.example/texts?api_key={}",
    "encoded name": "https://host.example/texts?%74oken={}",
    "fragment": "https://host.example/texts#access_token={}",
    "chained": "simplecache::https://{}@host.example/texts",
    "of a driver": "postgresql+psycopg2://me:{}#/@host.example/runs",
    "of another protocol": "ftp://me:{}@host.example/texts",
    "without a protocol": "//me:{}@host.example/texts",
}
# nothing says that these are secrets: only the URL of a folder is refused for them, elsewhere they may be sections
OF_FOLDERS = {
    "unknown name": "https://host.example/texts?u=abcdefghijkl{}",
    "bare fragment": "https://host.example/texts#{}",
}
ROOTS = {**URLS, **OF_FOLDERS}
SECRETS = {kind: PLAIN.format(f"{number:04}") for number, kind in enumerate(ROOTS)}
PLANTED = {kind: url.format(SECRETS[kind]) for kind, url in ROOTS.items()}


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what other tests were refused: by its value it would be hidden here."""
    monkeypatch.setattr(urls, "_told", set())


@pytest.mark.parametrize("kind", URLS)
@pytest.mark.parametrize("is_encoded", [False, True])
def test_a_secret_in_a_url_is_found_and_not_shown(kind: str, is_encoded: bool) -> None:
    secret = SECRETS[kind] + "@%/"
    given = URLS[kind].format(quote(secret, safe="") if is_encoded else SECRETS[kind])
    text = f"cannot read '{given}' (see {given}), is it there?"
    assert secrets_in(text)
    assert not found_in(forms(SECRETS[kind]), [("", redacted(text).encode())])
    assert "host.example" in redacted(text) and redacted(redacted(text)) == redacted(text)


@pytest.mark.parametrize(
    "text",
    [
        "http://127.0.0.1:5000/#/experiments/1/runs",
        "sqlite:////a:b/c@d.db",
        "abfs://container@account.dfs.core.windows.net/texts",
        "sftp://me@host/texts",
        "git@github.com:an/other.git, me@example.org",
        "https://host/a?page=2&version=1.0#a-section-of-the-page",
        "kedro run --params subsampling.seed=7,tokenization.eos_token=</s>",
        "<|endoftext|> costs 5 & more; a=b",
        "s3://bucket/prefix",
        "Basic information about a bearer of good news",
        "https://host/x?revision=0123456789abcdef0123456789abcdef01234567",
        "https://host/x?versionId=3sL4kqtJlcpXroDTDmJ.rmSpXd3dIbrHY_MTRCxf3vjVBH40Nr8X8gdRQBpUMLUo",
        f"https://host/x.whl#sha256={'0123456789abcdef' * 4}",
        "https://arxiv.org/html/2406.17557#S3.SS2.SSS1.p1.1.m1.1",
        "https://en.wikipedia.org/wiki/X#History_of_the_2nd_edition_2020",
        "https://github.com/o/r#readme-for-version-2-and-later",
        "https://host/x?title=Foo_bar_baz_2020_edition&doi=10.5281/zenodo.1234567890123",
        "https://host/x?code=en&key=country&session=2019&policy=open&pass=second_round&key=country_code_2020",
        "https://host/x?max_tokens=12345678&oauth_signature_method=HMAC-SHA1&keywords=abc123def456",
        "//nas@home/share",
        "sk-learn-pipeline-of-models-v2",
        "<|user|>//x@y",
        "http://127.0.0.1:5000 is up, write to me@example.org",
        "https://host:8080/scope/@other/a@b",
        "http://[::1]:5000/a@b",
        "ssh://git@host:22/a@b",
        "{'a': 'https://host:1', 'b': 'me@example.org'}",
        "https://example.org: it was read by me@example.org",
    ],
)
def test_what_is_no_secret_is_shown(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # has the text in it
    assert redacted(text) == text and not secrets_in(text)
    require_no_secrets({"note": text, text: 1})


@pytest.mark.parametrize("between", ["/", "#", "?", "?a=", " ", "'", '"', "@", "|", "<", "::", ",", "/ # ?'\"@"])
@pytest.mark.parametrize("scheme", ["http", "https", "postgresql", "simplecache::https", "mysql+pymysql", "s3"])
def test_a_password_may_have_what_ends_a_host(scheme: str, between: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = ("KpLm3Rt-w0rd", "q9Zt-of-the-end")
    url = f"{scheme}://user:{between.join(ends)}@127.0.0.1/x.jsonl"
    wanted = {form for one in ends for form in forms(one)}
    assert secrets_in(url) and not found_in(wanted, [("", redacted(url).encode())])
    assert not found_in(wanted, [("", json.dumps(Redaction().tree({"a": [url], url: 1})).encode())])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
    said = f"cannot open {url!r} {json.dumps(url)}: 'KpLm3Rt-w0rd' is no port, in GET {ends[1]}@127.0.0.1/x.jsonl"
    assert not found_in(forms(ends[0]), [("", redacted(said).encode())])
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.setattr(sys, "argv", ["kedro", "run", "--params", f"a.path={url}"])
    assert not found_in(forms(ends[0]), [("", redacted(said).encode())])
    with pytest.raises(SecretError) as caught:
        require_no_secrets({"canary": {"path": url}})
    assert str(caught.value).startswith("canary.path") and not found_in(wanted, [("", str(caught.value).encode())])
    with pytest.raises(SecretError) as caught:
        require_no_secrets({"canary": {url: 1}})
    assert not found_in(wanted, [("", str(caught.value).encode())])


@pytest.mark.parametrize(
    "password",
    [
        "KpLm3Rt/q",
        "12345678/KpLm3Rt",
        "/a/KpLm3Rt",
        "'KpLm3Rt",
        "12'KpLm3Rt",
        "aVeryLongPassword-KpLm3Rt/q" * 5,
        "a b?'c\"KpLm3Rt",
    ],
)
def test_pydantic_never_cuts_through_a_secret(password: str) -> None:
    url = f"https://user:{password}@127.0.0.1/d"
    for given in ({"memory": url}, {"upstreams": url}, {url: "x"}, {"upstreams": {"web": {url: url}}}):
        with pytest.raises(ValidationError) as caught:
            ReplayParameters.model_validate(given)
        assert "KpLm3Rt" not in str(caught.value) + repr(caught.value)


SECRET_KEYS = (
    "db_password user_password my_token aws_secret_access_key wandb_api_key X-Api-Key pwd pass jwt sas ssh_key "
    "github_pat secretKey accessKey clientSecret apiToken authToken token API_KEY dbPassword refresh-token "
    "connection_string PGPASSWORD secrets cookie signature password1 hfToken storage_options.secret"
)


@pytest.mark.parametrize("key", SECRET_KEYS.split())
def test_a_key_that_is_named_as_a_secret_is_refused(key: str) -> None:
    with pytest.raises(SecretError, match="looks like a secret") as caught:
        require_no_secrets({"a": [{key: "hunter2-Hunter2"}]})
    assert "unter2" not in str(caught.value)


def test_no_key_of_the_project_is_refused() -> None:
    def keys(value: object) -> Iterator[str]:
        if isinstance(value, dict):
            yield from map(str, value)
        for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            yield from keys(one)

    files = sorted((ROOT / "conf").rglob("*.yml"))
    names = {key for file in files for key in keys(yaml.safe_load(file.read_text(encoding="utf-8")))}
    fields = {
        name
        for model in vars(everytoken.parameters).values()
        if isinstance(model, type) and issubclass(model, BaseModel)
        for name in model.model_fields
    }
    assert len(files) > 5 and "eos_token" in names | fields
    plain = {"eos_token", "special_tokens", "tokenizer", "max_tokens", "chars_per_token", "text_key", "key", "monkey"}
    for name in names | fields | plain:
        require_no_secrets({name: "v2-of-Models/x1"})
    require_no_secrets({"user_token": "<|user|>", "token": "word", "pass": "second"})


@pytest.mark.parametrize("name", ["PGPASSWORD", "MYSQL_PWD", "DB_PASS", "GITHUB_PAT", "WANDB_API_KEY", "MY_SECRET"])
def test_a_variable_that_is_named_as_a_secret_is_hidden(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "hunters hunters")
    assert redacted("it is 'hunters hunters'") == "it is '***'"


@pytest.mark.parametrize(
    "start",
    ["AKIA", "ASIA", "AIza", "sk_live_", "npm_", "glsa_", "whsec_", "ya29.", "sk-", "sk-ant-api03-", "SG.", "eyJ"],
)
def test_a_token_that_stands_alone_is_known_by_its_start(start: str) -> None:
    rest = "0123456789ABCDEF" if start in ("AKIA", "ASIA") else "AbCdEfGhIj0123456789AbCdEfGhIj0123456789"
    token = start + rest + {"SG.": f".{rest}", "eyJ": f".eyJ{rest}.{rest}"}.get(start, "")
    assert redacted(f"it says '{token}' is wrong") == "it says '***' is wrong"
    with pytest.raises(SecretError):
        require_no_secrets({"note": [token]})


def test_after_a_refusal_short_words_are_still_shown() -> None:
    for url in ("s3://bucket@host/x", "https://me:word@host/x"):
        with pytest.raises(SecretError):
            require_no_secrets({"root": url})
    assert redacted("a word of the bucket") == "a word of the bucket"


@pytest.mark.parametrize("kind", [*ROOTS, "storage option", "nested"])
def test_a_parameter_with_a_secret_is_refused_by_its_name_and_never_shown(kind: str) -> None:
    secret, key = SECRETS.get(kind, PLAIN.format("option")), "sources.web.upstream.root"
    if kind in ROOTS:
        upstream: dict[str, object] = {"root": PLANTED[kind]}
    else:
        key = f"sources.web.upstream.storage_options{'.client.0' if kind == 'nested' else ''}.secret_access_key"
        options = {"secret_access_key": secret}
        upstream = {"storage_options": {"client": [options]} if kind == "nested" else options}
    with pytest.raises(SecretError) as caught:
        require_no_secrets({"sources": {"web": {"upstream": upstream}}})
    message = str(caught.value)
    assert message.startswith(key) and "FSSPEC_HTTPS=" in message
    assert not found_in(forms(secret), [("", message.encode())])


@pytest.mark.parametrize("kind", [kind for kind in ROOTS if kind != "without a protocol"])
def test_pydantic_shows_no_secret_of_a_root(kind: str) -> None:
    given = {"kind": "path", "root": PLANTED[kind], "pattern": "*", "checksums": None}
    for model, value in ((PathUpstream, given), (ReplayParameters, {"upstreams": {"web": given}})):
        with pytest.raises(ValidationError) as caught:
            model.model_validate(value)
        said = str(caught.value) + repr(caught.value)
        assert "has a password in its URL, or a token" in said
        assert not found_in(forms(SECRETS[kind]), [("", said.encode())])


def test_an_error_of_parameters_still_shows_what_it_found() -> None:
    with pytest.raises(ValidationError, match=r"input_value=-5, input_type=int(.|\n)*input_value='\*\*\* \(dict\)'"):
        ReplayParameters.model_validate({"memory": -5, "options": {"auth": ["me", "hunter2hunter2"]}})


def test_secrets_of_the_environment_and_of_fsspec_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "HF_TOKEN": "hf-and-a-newline-1\n",
        "AWS_SECRET_ACCESS_KEY": "aws/secret+key-22",
        "HTTPS_PROXY": "http://me:proxy%40pass-33@proxy:3128",
        "MLFLOW_TRACKING_URI": "https://tracking-token-44@mlflow.example",
        "FSSPEC_HTTPS": json.dumps({"client_kwargs": {"headers": {"Authorization": "Bearer header-token-55"}}}),
    }
    secrets = ["hf-and-a-newline-1", "aws/secret+key-22", "proxy@pass-33", "tracking-token-44", "header-token-55"]
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    for secret in secrets:
        spelled = [
            secret,
            quote(secret, safe=""),
            *(base64.b64encode(f"{x}{secret}".encode()).decode() for x in ("", "a:", "me:")),
        ]
        shown = redacted(" ".join([f"b'Bearer {secret}\\n'", *spelled, "and more"]))
        assert not found_in(forms(secret), [("", shown.encode())])
        assert shown.endswith(" and more")
    assert redacted("Authorization: Basic bWU6c2VjcmV0MQ== sent") == "Authorization: Basic *** sent"
    assert redacted("Authorization: Bearer abc.def-123") == "Authorization: Bearer ***"
    monkeypatch.setenv("SOME_TOKEN", "short")
    assert redacted("a short word") == "a short word", "a short value is part of too many words"


@pytest.mark.parametrize("error", [FetchError, Transient])
def test_what_libraries_quote_of_a_redirect_is_hidden(error: type[Exception]) -> None:
    reason = f"403, message='Forbidden', url='{PLANTED['amazon']}'"
    assert not found_in(forms(SECRETS["amazon"]), [("", str(error(reason, "Run again.")).encode())])  # type: ignore[call-arg]


def test_log_records_are_redacted_and_others_stay(caplog: pytest.LogCaptureFixture) -> None:
    redact_output()
    logger = logging.getLogger("everytoken.test")
    with caplog.at_level("INFO"):
        logger.info("%s of %d", PLANTED["token"], 3)
        logger.info("%s of %d", "a", 3)
        try:
            raise ValueError(PLANTED["user and password"])
        except ValueError:
            logger.exception("it failed")
    assert not found_in(
        {SECRETS["token"].encode(), SECRETS["user and password"].encode()}, [("", caplog.text.encode())]
    )
    assert (
        "https://host.example/texts?token=*** of 3" in caplog.text and "ValueError: https://me:***@host" in caplog.text
    )
    assert caplog.records[1].args == ("a", 3)


@pytest.mark.parametrize("how", ["main", "thread"])
def test_an_error_that_nobody_catches_is_printed_without_the_secrets_of_its_causes(how: str) -> None:
    script = f"""
        import threading
        from everytoken.redaction.output import redact_output
        redact_output()
        def fail():
            try:
                raise OSError({PLANTED["of a driver"]!r})
            except OSError as error:
                raise RuntimeError("no store") from error
        {"fail()" if how == "main" else "one = threading.Thread(target=fail); one.start(); one.join()"}
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False)
    assert "RuntimeError: no store" in done.stderr and "OSError: postgresql+psycopg2://me:***@" in done.stderr
    assert not found_in(forms(SECRETS["of a driver"]), [("", done.stderr.encode())])


class PlantedProject(ToyProject):
    """A project whose node fails with what it was given, and with what the environment holds."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        nodes = folder / "src/toy/nodes.py"
        failing = '    if training.mode != "normal":\n        raise RuntimeError(f"cannot read {training.mode}")\n'
        text = nodes.read_text(encoding="utf-8")
        nodes.write_text(
            text.replace('    if training.mode == "fail":\n', failing + '    if training.mode == "fail":\n')
        )
        (folder / "conf/base/mlflow.yml").write_text(
            "experiment: toy\ntracking_uri: sqlite:///mlflow.db\nartifacts: mlartifacts\n"
        )


@pytest.mark.parametrize("fails", [True, False])
def test_a_run_and_its_record_show_no_secret_of_parameters_command_and_environment(tmp_path: Path, fails: bool) -> None:
    """Here nothing refuses the parameters: what is recorded and printed is redacted all the same."""
    toy = PlantedProject(tmp_path / "toy")
    subprocess.run(["git", "init", "-q", str(toy.folder)], check=True)
    subprocess.run(["git", "-C", str(toy.folder), "remote", "add", "origin", PLANTED["token as user"]], check=True)
    value = " ".join(PLANTED[kind] for kind in URLS)
    token = "hf_" + "0123456789abcdefghij"
    environment = {
        **toy.environment,
        "HF_TOKEN": token,
        "HTTPS_PROXY": "http://me:proxypass-77@127.0.0.1:9",
        "AWS_SECRET_ACCESS_KEY": "aws/secret+key-22",
    }
    wanted = f"{value} {token} proxypass-77 aws/secret+key-22"
    given = f"training.mode={wanted}" if fails else f"training.mode=normal,sampling.seed=7,sampling.note={wanted}"
    if not fails:
        for name, old, new in (
            ("src/toy/nodes.py", "    rate: float\n    seed: int\n", "    rate: float\n    seed: int\n    note: str\n"),
            ("conf/base/parameters.yml", "seed: 7}", "seed: 7, note: none}"),
        ):
            path = toy.folder / name
            path.write_text(path.read_text().replace(old, new))
    done = run_kedro(["run", "--params", given], folder=toy.folder, environment=environment, timeout=300)
    assert (done.returncode != 0) == fails, done.stdout
    assert ("cannot read https://me:***@host.example/texts" in done.stdout) == fails, done.stdout
    looked = [("printed", done.stdout.encode()), *contents(toy.folder / "data"), *contents(toy.folder / "mlartifacts")]
    looked.append(("database", (toy.folder / "mlflow.db").read_bytes()))
    assert b"host.example/texts?token=***" in looked[-1][1]
    for secret in [*(SECRETS[kind] for kind in URLS), token, "proxypass-77", "aws/secret+key-22"]:
        assert not found_in(forms(secret), looked)


def test_a_mistake_in_the_settings_of_tracking_shows_no_secret() -> None:
    conf = {"mlflow": {"experiment": "toy", "tracking_uri": [f"https://user:{'x' * 60}/KpLm3Rt@127.0.0.1/d"]}}
    with pytest.raises(TrackingError, match=r"mlflow\.yml: ") as caught:
        tracking_settings(SimpleNamespace(config_loader=conf))  # type: ignore[arg-type]
    assert "KpLm3Rt" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "address",
    [
        "http://me:{}@127.0.0.1:1",
        "http://me:{}/x#y@127.0.0.1:1",
        "postgresql://me:{}@127.0.0.1:1/runs",
        "postgresql://me:it's {}@127.0.0.1:1/runs",
        "oracle://{}@h/r",
    ],
)
def test_a_store_that_cannot_be_opened_shows_no_password(tmp_path: Path, address: str) -> None:
    toy, secret = ToyProject(tmp_path / "toy"), "p%40ss-word%2F-of-the-store"
    environment = {**toy.environment, "MLFLOW_TRACKING_URI": address.format(secret)}
    done = run_kedro(["run"], folder=toy.folder, environment=environment, timeout=300)
    assert done.returncode != 0 and "TrackingError" in done.stdout
    looked = [("printed", done.stdout.encode()), *contents(toy.folder / "data")]
    assert not found_in(forms(secret), looked)


@pytest.mark.slow
def test_what_kedro_viz_writes_of_a_run_that_fails_has_no_secret(tmp_path: Path) -> None:
    toy, secret = ToyProject(tmp_path / "toy"), SECRETS["user and password"]
    nodes = toy.folder / "src/toy/nodes.py"
    raised = f"OSError(28, 'no space left for {PLANTED['user and password']}')"
    text = nodes.read_text(encoding="utf-8")
    marked = '    if training.mode == "fail":\n'
    assert marked in text
    nodes.write_text(text.replace(marked, f"    if training.mode == 'normal':\n        raise {raised}\n{marked}"))
    settings = toy.folder / "src/toy/settings.py"
    hooks = settings.read_text(encoding="utf-8")
    settings.write_text(
        f"{hooks}\nfrom everytoken.configuration import SystemErrorHook\nHOOKS = (*HOOKS, SystemErrorHook())\n"
    )
    done = run_kedro(["run"], folder=toy.folder, environment=toy.environment, timeout=300)
    assert done.returncode != 0
    events = json.loads((toy.folder / ".viz/kedro_pipeline_events.json").read_text(encoding="utf-8"))
    assert {"on_node_error", "on_pipeline_error"} <= {event["event"] for event in events}
    assert "https://me:***@host.example" in json.dumps(events)
    assert not found_in(forms(secret), [("printed", done.stdout.encode()), *contents(toy.folder / ".viz")])


class _Guarded(BaseHTTPRequestHandler):
    """A folder of two files for whoever has the token."""

    files: ClassVar[dict[str, bytes]] = {
        f"/texts/a{number}.jsonl": "".join(
            json.dumps({"id": f"{number}-{i}", "text": f"The {i}th text of file {number} is long enough to be one."})
            + "\n"
            for i in range(40)
        ).encode()
        for number in range(2)
    }
    token: ClassVar[str | None] = "header/token+of-the-server-88"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if self.token is not None and self.headers.get("Authorization") != f"Bearer {self.token}":
            self.send_error(401)
            return
        listing = "".join(f'<a href="{name}">{name}</a>' for name in self.files).encode()
        content = self.files.get(self.path, listing if self.path.rstrip("/") == "/texts" else None)
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{len(content)}"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Guarded) as one:
        threading.Thread(target=one.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{one.server_address[1]}/texts"
        one.shutdown()


def project_with(folder: Path, root: str) -> Path:
    """Return a copy of the project whose environment ``mine`` reads documents at ``root`` and releases them."""
    shutil.copytree(ROOT / "conf", folder / "conf")
    shutil.copy(ROOT / "pyproject.toml", folder)
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("*.pyc*", "*.egg-info"))
    (folder / "conf/local").mkdir(exist_ok=True)
    (folder / ".telemetry").write_text("consent: false\n")
    mine = folder / "conf/mine"
    mine.mkdir()
    (mine / "globals.yml").write_text("data: data/mine\nraw: data/raw\nengine: {kind: inline}\n")
    renderer = {"kind": "document", "text_column": "text", "id_columns": ["id"], "stratum_column": None}
    base = json.dumps(
        {
            "ingestion": {
                "sources": {
                    **dict.fromkeys(("wikipedia", "chats", "champ", "flan_cot")),
                    "web": {
                        "upstream": {"kind": "path", "root": root, "pattern": "*.jsonl", "checksums": None},
                        "format": None,
                        "records": None,
                        "renderer": renderer,
                        "rows_per_shard": None,
                        "quality": None,
                        "min_keep_rate": None,
                        "max_text_bytes": None,
                    },
                }
            }
        }
    )
    (mine / "parameters_ingestion.yml").write_text(base)  # JSON is YAML
    return folder


@pytest.mark.sensitive
def test_a_server_that_lists_signed_names_is_refused_where_they_match(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = SECRETS["amazon"]
    signed = {f"/texts/b.jsonl?X-Amz-Signature={secret}": b"x", "/texts/a.jsonl": b"x"}
    monkeypatch.setattr(_Guarded, "files", signed)
    monkeypatch.setattr(_Guarded, "token", None)
    plain = PathUpstream(kind="path", root=server, pattern="*.jsonl", checksums=None)
    assert [file.path for file in find_files("web", plain, tmp_path)] == ["a.jsonl"]
    every = PathUpstream(kind="path", root=server, pattern="**", checksums=None)
    with pytest.raises(UpstreamError, match=r"lists 'b.jsonl\?X-Amz-Signature=\*\*\*', a name with a token") as caught:
        find_files("web", every, tmp_path)
    assert not found_in(forms(secret), [("", str(caught.value).encode())])


@pytest.mark.sensitive
@pytest.mark.slow
def test_the_remedy_gives_a_token_that_is_nowhere_and_the_refusal_writes_nothing(server: str, tmp_path: Path) -> None:
    project = project_with(tmp_path / "project", server)
    environment = {**os.environ, "MLFLOW_TRACKING_URI": "", "DO_NOT_TRACK": "1", "COLUMNS": "200"}
    header = {"client_kwargs": {"headers": {"Authorization": f"Bearer {_Guarded.token}"}}}
    environment["FSSPEC_HTTP"] = json.dumps(header)
    arguments = ["run", "--env", "mine", "--pipelines", "ingestion"]
    command = [sys.executable, "-m", "kedro", *arguments]  # fsspec reads its variables when it is imported
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((project / "data/mine/01_raw/upstream_files.json").read_text())["web"][1]["path"] == "a1.jsonl"
    printed = [("printed", (done.stdout + done.stderr).encode())]
    assert not found_in(forms(str(_Guarded.token)), [*printed, *contents(project)])

    shutil.rmtree(project / "data")
    denied = run_kedro(arguments, folder=project, environment={**environment, "FSSPEC_HTTP": "{}"}, timeout=300)
    assert denied.returncode != 0 and "is denied (401" in denied.stdout and "Give fsspec credentials" in denied.stdout

    before = sorted((project / "data").rglob("*"))
    root = server.replace("http://", f"http://{SECRETS['token as user']}@")
    given = f"ingestion.sources.web.upstream.root={root}"
    done = run_kedro([*arguments, "--params", given], folder=project, environment=environment, timeout=300)
    assert done.returncode != 0 and "ingestion.sources.web.upstream.root has a password in its URL" in done.stdout
    asked = run_everytoken(
        ["plan", "--env", "mine", "--params", given], folder=project, environment=environment, timeout=240
    )
    assert asked.returncode != 0
    printed = [("printed", (done.stdout + asked.stdout + asked.stderr).encode())]
    assert not found_in(forms(SECRETS["token as user"]), [*printed, *contents(project)])
    assert sorted((project / "data").rglob("*")) == before


@pytest.mark.parametrize(
    ("host", "is_public"),
    [
        *((host, False) for host in ("127.0.0.1", "2130706433", "0x7f.1", "0177.0.0.1", "[::1]", "::ffff:10.0.0.1")),
        *((host, False) for host in ("169.254.169.254", "localhost", "a.internal", "nas", "100.64.0.1", "0.0.0.0")),
        *((host, False) for host in ("fe80::1%eth0", "64:ff9b::a00:1", "2002:7f00:1::", "224.0.0.1", "a.local.", "")),
        *((host, True) for host in ("8.8.8.8", "example.org", "2606:4700::1111", "1.example")),
    ],
)
def test_a_public_host_is_told_from_a_private_one_without_asking(host: str, is_public: bool) -> None:
    assert is_public_host(host) is is_public


@pytest.mark.parametrize(
    ("root", "is_public"),
    [
        *((root, True) for root in ("https://example.org/x", "s3://bucket/x", "gs://b", "http://example.org")),
        *(
            (root, False)
            for root in ("/a", "a/b", "~/x", "file:///x", "memory://x", "http://10.1.2.3/", "https://nas/x")
        ),
        *((root, False) for root in ("simplecache::https://a.example/x", "sftp://host.example/x", "https://", "C:\\x")),
    ],
)
def test_a_public_place_is_told_from_a_private_one(root: str, is_public: bool) -> None:
    assert names_public_place(root) is is_public


@pytest.mark.parametrize(
    ("url", "is_link"),
    [
        *((url, True) for url in ("https://example.org/a(b)?c=1#d", "http://example.org")),
        *((url, False) for url in ("javascript:alert(1)", "data:text/html,x", "https://", "//example.org", "https:x")),
        *((url, False) for url in ("https://a.b/<script>", 'https://a.b/"onx=', "https://a.b/\nx", "vbscript:x", " ")),
    ],
)
def test_a_page_links_to_the_web_alone(url: str, is_link: bool) -> None:
    assert is_web_link(url) is is_link
