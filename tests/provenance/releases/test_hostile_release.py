"""A release that a stranger wrote reads nothing that its user did not name, and ends in a message, no traceback."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from everytoken.cli import cli
from everytoken.corpus.errors import UpstreamError
from everytoken.corpus.ingestion.source import Guarded, PathUpstream, find_files
from everytoken.corpus.upstreams.retries import FetchError
from everytoken.parameters import IngestionParameters, ReplayParameters
from everytoken.pipelines.replay.nodes import find_upstreams
from everytoken.provenance.errors import ProvenanceError
from everytoken.provenance.releases.release import open_release
from everytoken.provenance.releases.roots import is_readable, without_foreign_places
from everytoken.provenance.releases.untrusted import MOST_BYTES, parse_object, require_path
from everytoken.provenance.replay.parameters import with_released_parameters
from everytoken.provenance.replay.whole import require_whole
from everytoken.provenance.verification.releases import release_checks
from everytoken.shards.digests import file_sha256
from tests.provenance.builds import Build, build, release_of, write_texts


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Build:
    folder = tmp_path_factory.mktemp("made")
    write_texts(folder / "texts")
    one = build(folder / "data", folder / "texts")
    release_of(one)
    return one


@pytest.fixture
def release(made: Build, tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return Path(shutil.copytree(made.folder / "08_reporting/release", tmp_path / "release", copy_function=shutil.copy))


def edit(release: Path, name: str, *path: Any, value: Any = None, rename: str | None = None) -> None:
    """Set a value in a JSON file of a release, or rename a key."""
    file = release / name
    data = json.loads(file.read_text())
    *parents, last = path
    place = data
    for key in parents:
        place = place[key]
    if rename is None:
        place[last] = value
    else:
        place[rename] = place.pop(last)
    file.write_text(json.dumps(data))


def part_named(name: Any) -> Callable[[Path], None]:
    return lambda release: edit(release, "file_boundaries.json", "annotated", "parts", 0, "name", value=name)


def streams_with(rename: str, *path: str) -> Callable[[Path], None]:
    return lambda release: edit(release, "verification/streams.json", *path, rename=rename)


def listed(line: str) -> Callable[[Path], None]:
    return lambda release: (release / "SHA256SUMS").write_text(f"{'0' * 64}  {line}\n")  # type: ignore[return-value]


def written(name: str, text: str) -> Callable[[Path], None]:
    return lambda release: (release / name).write_text(text)  # type: ignore[return-value]


def plan_with(key: str, value: Any) -> Callable[[Path], None]:
    return lambda release: edit(release, "upstream.json", "plan", "shards", 0, key, value=value)


def linked(name: str) -> Callable[[Path], None]:
    def link(release: Path) -> None:
        (release / name).rename(release.parent / "elsewhere")
        (release / name).symlink_to(release.parent / "elsewhere")

    return link


def piped(release: Path) -> None:
    (release / "upstream.json").unlink()
    os.mkfifo(release / "upstream.json")


def huge(name: str) -> Callable[[Path], None]:
    return lambda release: os.truncate(release / name, MOST_BYTES + 1)


DEEP = "[" * 1_000_000 + "]" * 1_000_000
HOSTILE: dict[str, Callable[[Path], None]] = {
    **{
        f"part {name!r}": part_named(name)
        for name in (
            "../../../x",
            "..",
            "a/b",
            "/etc/passwd",
            "C:x",
            "con",
            "nul.txt",
            "x.",
            "a\\b",
            "",
            "\0",
            "é",
            7,
            None,
        )
    },
    "stream ..": streams_with("..", "compact"),
    "stream path": streams_with("../../x", "compact"),
    "file of a stream": streams_with("../../../x.idx", "compact", "files", "compact.idx"),
    "absolute file of a stream": streams_with("/etc/passwd", "compact", "files", "compact.idx"),
    "no files": lambda release: edit(release, "verification/streams.json", "compact", "files", value=3),
    **{
        f"sum of {name!r}": listed(name)
        for name in ("../x", "/etc/passwd", "a/../../x", "a\\..\\x", "aux", "./x", "a//b")
    },
    "deep recipe": written("recipe.json", '{"format":"everytoken-release/1","x":' + DEEP + "}"),
    "deep plan": written("upstream.json", '{"x":' + DEEP + "}"),
    "nested 100 times": written("file_boundaries.json", '{"x":' + "[" * 100 + "]" * 100 + "}"),
    "NaN": lambda release: edit(release, "upstream.json", "plan", "n_total", value=float("nan")),
    "infinity": written("upstream.json", '{"x": 1e999}'),
    "a huge number": written("upstream.json", '{"x": 1' + "0" * 5000 + "}"),
    "a number of 70 bits": plan_with("first_row", 1 << 70),
    "a negative number": plan_with("first_row", -1),
    "a path in the plan": plan_with("path", "../../x"),
    "a digest of another kind": plan_with("digest", "md5:00"),
    "a shard that is none": lambda release: edit(release, "upstream.json", "plan", "shards", value=[3]),
    "no plan": lambda release: edit(release, "upstream.json", "plan", value=[]),
    "no upstream": lambda release: edit(release, "upstream.json", "sources", "pieces", value={}),
    "no split": lambda release: edit(release, "file_boundaries.json", "held_out", rename="x"),
    "no parts": lambda release: edit(release, "file_boundaries.json", "held_out", "parts", value={}),
    "no digest of a part": lambda release: edit(
        release, "file_boundaries.json", "annotated", "parts", 0, "sha256", value=1
    ),
    "no parameters": lambda release: edit(release, "recipe.json", "parameters", value=[]),
    "no tokenizer": lambda release: edit(release, "recipe.json", "tokenizer", "sha256", value="x"),
    "a dataset that is none": lambda release: edit(release, "recipe.json", "datasets", "documents", value=1),
    "linked recipe": linked("recipe.json"),
    "linked sums": linked("SHA256SUMS"),
    "a pipe": piped,
    "a huge recipe": huge("recipe.json"),
    "huge sums": huge("SHA256SUMS"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_release_is_refused_by_replay_verify_and_diff(made: Build, release: Path, kind: str) -> None:
    HOSTILE[kind](release)
    with pytest.raises(ProvenanceError) as caught:
        one = open_release(release)
        assert one.streams
    assert str(release) in str(caught.value) and len(str(caught.value)) < 1000
    checked = CliRunner().invoke(cli, ["verify", str(release), str(made.folder / "05_model_input")])
    assert checked.exit_code == 1 and "FAIL" in checked.output and isinstance(checked.exception, SystemExit)
    compared = CliRunner().invoke(cli, ["diff", str(release), str(release)])
    assert isinstance(compared.exception, SystemExit | type(None)), compared.exception


def test_a_whole_release_is_whole(release: Path) -> None:
    require_whole(open_release(release))


def _edited(release: Path) -> None:
    path = release / "corpus-manifest/annotated/part_00001.parquet"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _unlisted(release: Path) -> None:
    sums = release / "SHA256SUMS"
    sums.write_text("".join(line for line in sums.read_text().splitlines(True) if "tokenizer" not in line))


def _otherwise(release: Path) -> None:
    edit(release, "file_boundaries.json", "annotated", "parts", 0, "sha256", value="0" * 64)
    digest, sums = file_sha256(release / "file_boundaries.json"), release / "SHA256SUMS"
    lines = [line for line in sums.read_text().splitlines() if not line.endswith("file_boundaries.json")]
    sums.write_text("".join(f"{line}\n" for line in [*lines, f"{digest}  file_boundaries.json"]))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_edited, r"part_00001.parquet: expected SHA-256"),
        (lambda release: (release / "README.md").write_text("x"), r"README.md: expected SHA-256"),
        (lambda release: (release / "verification/compact/compact.idx").unlink(), r"compact.idx cannot be read"),
        (linked("tokenizer/tokenizer.json"), r"tokenizer.json is a link"),
        (linked("verification/compact"), r"compact is a link to a folder"),
        (linked("corpus-manifest"), r"corpus-manifest is a link to a folder"),
        (_unlisted, r"SHA256SUMS does not list tokenizer/tokenizer.json"),
        (_otherwise, r"in SHA256SUMS, 0000000000000000 elsewhere in the release"),
    ],
)
def test_a_release_with_other_bytes_is_refused_before_anything_is_read(
    release: Path, damage: Callable[[Path], Any], message: str
) -> None:
    damage(release)
    with pytest.raises(ProvenanceError, match=message):
        require_whole(open_release(release))


@pytest.mark.parametrize(
    "path", ["a/b.parquet", "part_00000.parquet", "verification/raw_shards/shard_0.bin", "a-b_c.1"]
)
def test_a_name_that_a_release_has_is_one(path: str) -> None:
    assert require_path(path, "here") == path


@pytest.mark.parametrize("text", ["[" * 5000, '{"a":' * 5000 + "1" + "}" * 5000, '{"a": Infinity}', "\xff", "", "[]"])
def test_json_of_a_stranger_ends_in_a_message(text: str) -> None:
    with pytest.raises((ProvenanceError, ValueError)):
        parse_object(text.encode("latin-1"), "here")


# places


@pytest.mark.parametrize(
    ("root", "allowed", "is_read"),
    [
        *((root, [], True) for root in ("https://a.example/x", "s3://bucket/x", "gs://b/x", "hf://datasets/a/b")),
        *((root, [], False) for root in ("/etc", "a/b", "~/x", ".", "file:///etc", "local:///etc", "memory://x")),
        *(
            (root, [], False)
            for root in ("http://a.example/x", "https://127.0.0.1/x", "https://[::1]/x", "https://0x7f.1/")
        ),
        *(
            (root, [], False)
            for root in ("https://169.254.169.254/x", "https://10.0.0.1/x", "https://nas/x", "https://a.local/")
        ),
        *(
            (root, [], False)
            for root in ("ssh://h.example/x", "smb://h.example/x", "ftp://h.example/x", "github://a:b@c/")
        ),
        *((root, [], False) for root in ("simplecache::https://a.example/x", "zip://x::file:///etc/a.zip", "https://")),
        *(
            (root, [], False)
            for root in ("https://a.example/../x", "https://a.example/%2e%2e/x", "s3://bucket/%2E%2E/x")
        ),
        *((root, [], False) for root in ("(not published)", "", "C:\\x", "\\\\host\\share", "file://host/x")),
        ("/data/a/b", ["/data/a"], True),
        ("file:///data/a/b", ["/data/a"], True),
        ("/data/a/../b", ["/data/a"], False),
        ("/data/ab", ["/data/a"], False),
        ("http://a.example/x/y", ["http://a.example/x"], True),
        ("http://a.example/xy", ["http://a.example/x"], False),
        ("http://a.example:81/x", ["http://a.example/x"], False),
        ("http://a.example.evil.example/x", ["http://a.example"], False),
        ("http://a.example@evil.example/x", ["http://a.example"], False),
        ("https://10.0.0.1/x", ["https://10.0.0.1"], True),
        ("zip://x::/data/a.zip", ["/data"], False),
        ("zip://x::/data/a.zip", ["zip://x::/data/a.zip"], True),
    ],
)
def test_a_release_is_read_from_what_is_public_or_named(root: str, allowed: list[str], is_read: bool) -> None:
    assert is_readable(root, allowed) is is_read


def test_a_link_out_of_a_named_folder_is_not_in_it(tmp_path: Path) -> None:
    (tmp_path / "named").mkdir()
    (tmp_path / "named/out").symlink_to("/etc")
    assert not is_readable(str(tmp_path / "named/out"), [str(tmp_path / "named")])


def test_places_of_a_release_become_those_of_its_user() -> None:
    released = {
        "a": {"path": "/etc/passwd", "sha256": "0"},
        "b": [{"root": "https://a.example/x"}],
        "c": {"path": "x/y"},
    }
    own = {"a": {"path": "mine"}}
    assert without_foreign_places(released, own, []) == {
        "a": {"path": "mine", "sha256": "0"},
        "b": [{"root": "https://a.example/x"}],
        "c": {"path": "(not published)"},
    }
    assert without_foreign_places(released, own, ["/etc"])["a"]["path"] == "/etc/passwd"


def replayed(release: Path, own: IngestionParameters, **how: Any) -> dict[str, Any]:
    """Return where a replay of a release would read its sources."""
    given = {"release": str(release), "upstreams": None, "allow": [], "allow_roots": [], "memory": 1 << 27, **how}
    given["verification"] = {"full": True, "documents": 1, "seed": 1}
    taken = with_released_parameters(
        {"replay": given, "ingestion": own.model_dump(mode="json"), "subsampling": {}, "tokenization": {}}
    )
    ingestion = IngestionParameters.model_validate(taken["ingestion"])
    return dict(find_upstreams(ReplayParameters.model_validate(given), ingestion))


def test_options_of_this_machine_that_nobody_set_are_not_those_of_the_release(made: Build, release: Path) -> None:
    edit(release, "recipe.json", "parameters", "ingestion", "keep_fetched", value=False)
    own = made["params:ingestion"].model_dump(mode="json", exclude={"keep_fetched"})
    for given, expected in [(own, True), ({**own, "keep_fetched": False}, False)]:
        taken = with_released_parameters({"replay": {"release": str(release)}, "ingestion": given})
        assert IngestionParameters.model_validate(taken["ingestion"]).keep_fetched is expected


def own_root(made: Build, root: str) -> IngestionParameters:
    plain = made["params:ingestion"].model_dump(mode="json")
    plain["sources"]["pieces"]["upstream"]["root"] = root
    return IngestionParameters.model_validate(plain)


@pytest.mark.parametrize("root", ["/etc", "http://169.254.169.254/latest", "https://localhost/x", "file:///etc"])
def test_a_place_that_a_release_names_is_read_only_when_it_is_named(
    made: Build, release: Path, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    edit(release, "recipe.json", "parameters", "ingestion", "sources", "pieces", "upstream", "root", value=root)
    foreign = own_root(made, "(not published)")
    with pytest.raises(ProvenanceError) as caught:
        replayed(release, foreign)
    message = str(caught.value)
    assert root in message and f"--params replay.allow_roots={root}" in message and "source 'pieces'" in message
    with caplog.at_level("INFO"):
        found = replayed(release, foreign, allow_roots=f"/nowhere|{root}")
    assert found["pieces"].upstream.root == root and f"replay reads source pieces: {root.removeprefix('file://')}" in (
        caplog.text.replace("file://", "")
    )
    assert replayed(release, own_root(made, "/mine"))["pieces"].upstream.root == "/mine"


def test_a_release_that_names_no_place_says_how_to_give_one(made: Build, release: Path) -> None:
    with pytest.raises(ProvenanceError, match=r"--params ingestion.sources.pieces.upstream.root=PLACE, or replay.upst"):
        replayed(release, own_root(made, "(not published)"))
    mirror = {"pieces": {"kind": "path", "root": "/mirror", "pattern": "*", "checksums": None}}
    found = replayed(release, own_root(made, "(not published)"), upstreams=mirror)
    assert found["pieces"].upstream.root == "/mirror"
    with pytest.raises(UpstreamError, match=r"source 's' has no public address"):
        find_files("s", PathUpstream(kind="path", root="(not published)", pattern="*", checksums=None), release)


def test_verify_reads_no_place_that_a_release_names(made: Build, release: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "texts_0.jsonl").write_text("{}\n")
    for root, message in ((str(secret), "is not read unasked"), ("(not published)", "has no public address")):
        edit(release, "recipe.json", "parameters", "ingestion", "sources", "pieces", "upstream", "root", value=root)
        found = release_checks(release, {}, full=False, documents=2, seed=1, upstream=tmp_path / "fetched")
        faults = {check.name: check.text for check in found if not check.ok}
        assert message in faults["upstream files"] and "--root pieces=" in faults["upstream files"]
    named = f"pieces={made.folder.parent / 'texts'}"
    done = CliRunner().invoke(cli, ["verify", str(release), "--upstream", "--root", named, "--files", str(tmp_path)])
    assert "ok    upstream:" in done.output, done.output
    wrong = CliRunner().invoke(cli, ["verify", str(release), "--upstream", "--root", "x=y", "--files", str(tmp_path)])
    assert "--root names ['x']" in " ".join(wrong.output.split())


class _Redirecting(BaseHTTPRequestHandler):
    """Lists one file; where ``to`` is set, redirects there."""

    to: str | None = None

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        to = self.server.to  # type: ignore[attr-defined]
        if to is not None and self.path.endswith(".jsonl"):
            self.send_response(302)
            self.send_header("Location", to)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        content = b'<a href="a.jsonl">a</a>' if self.path.endswith("/texts") else b'{"text": "x"}\n'
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", '"1"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def servers() -> Iterator[list[Any]]:
    running = []
    for _ in range(2):
        one: Any = ThreadingHTTPServer(("127.0.0.1", 0), _Redirecting)
        one.asked, one.to, one.url = [], None, f"http://127.0.0.1:{one.server_address[1]}/texts"
        threading.Thread(target=one.serve_forever, args=(0.02,), daemon=True).start()
        running.append(one)
    yield running
    for one in running:
        one.shutdown()
        one.server_close()


def listing(root: str, named: tuple[str, ...], folder: Path) -> bytes:
    upstream = PathUpstream(kind="path", root=root, pattern="*.jsonl", checksums=None)
    (file,) = find_files("web", Guarded(upstream, named), folder)
    again = type(file).from_json(json.loads(json.dumps(file.to_json())))  # as a worker has it
    with again.open() as stream:
        return stream.read()


@pytest.mark.sensitive
def test_a_named_address_is_read_and_a_redirect_from_it_is_followed_only_to_a_named_one(
    servers: list[Any], tmp_path: Path
) -> None:
    first, second = servers
    assert listing(first.url, (first.url,), tmp_path / "0") == b'{"text": "x"}\n'
    first.to = second.url + "/x.jsonl"
    with pytest.raises(Exception, match=r"is plain http.*replay.allow_roots=http://127.0.0.1"):
        listing(first.url, (first.url,), tmp_path / "1")
    first.to = second.url.replace("http://", "https://") + "/x.jsonl"
    with pytest.raises(Exception, match=r"is a private address"):
        listing(first.url, (first.url,), tmp_path / "2")
    first.to = second.url.replace("http://127.0.0.1", "https://localhost") + "/x.jsonl"
    with pytest.raises(Exception, match=r"leads to (127.0.0.1|::1), a private address"):
        listing(first.url, (first.url,), tmp_path / "3")
    assert second.asked == []
    first.to = second.url + "/x.jsonl"
    assert listing(first.url, (first.url, second.url), tmp_path / "4") == b'{"text": "x"}\n'


@pytest.mark.sensitive
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("http://127.0.0.1", "http://127.0.0.1"), "is plain http"),
        (("http://127.0.0.1", "https://127.0.0.1"), "is a private address"),
        (("http://127.0.0.1", "https://localhost"), r"leads to (127.0.0.1|::1), a private address"),
        (("http://127.0.0.1", "https://2130706433"), "is a private address"),
    ],
)
def test_an_address_that_is_not_named_is_never_asked(
    servers: list[Any], tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    with pytest.raises(UpstreamError, match=message):
        listing(servers[0].url.replace(*change), (), tmp_path)
    assert servers[0].asked == []


@pytest.mark.sensitive
def test_an_upstream_that_is_not_guarded_is_read_as_before(servers: list[Any], tmp_path: Path) -> None:
    upstream = PathUpstream(kind="path", root=servers[0].url, pattern="*.jsonl", checksums=None)
    (file,) = find_files("web", upstream, tmp_path)
    assert "named" not in file.to_json()["remote"]
    assert issubclass(FetchError, UpstreamError)
