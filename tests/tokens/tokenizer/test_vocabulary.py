from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from pydantic import ValidationError
from tokenizers import Tokenizer

from everytoken.configuration import CONFIG_LOADER_ARGS, JobConfigLoader
from everytoken.contract import require_given_tokenizer
from everytoken.models import LlamaParameters
from everytoken.models.families import build_model
from everytoken.parameters import GivenTokenizer, HubTokenizer, TokenizationParameters
from everytoken.shards import Artifact, ArtifactStore, file_sha256, plan_artifact
from everytoken.tokens import TokenizerError, load_tokenizer_file, open_tokenizer, train_tokenizer
from everytoken.tokens.tokenizer.probe import PROBE_VERSION, probe_ids
from everytoken.tokens.tokenizer.sources import load_hub_tokenizer
from tests.corpus.upstreams.hub_server import COMMIT, Fault, Hub, serve_hub
from tests.tokens.corpora import EOS, documents, small_tokenizer, stored

pytestmark = pytest.mark.sensitive

TINY: dict[str, Any] = {
    **{"family": "llama", "d_model": 8, "n_layers": 1, "n_heads": 1, "n_kv_heads": 1, "d_ff": 8},
    **{"tied_embeddings": True, "rope_theta": 10_000.0, "norm_eps": 1e-5, "init_std": 0.02},
}

TEXTS = [
    "the cat sat on the mat",
    "le café noir et le café crème",
    "日本語の文章と日本語の単語",
    "x = x + 1; y = x",
]

TRAIN = """
import sys
from pathlib import Path
from tests.tokens.corpora import EOS, documents, stored
from everytoken.tokens import train_tokenizer
folder = Path(sys.argv[1])
folder.mkdir()
sources = [path.read_text(encoding="utf-8") for path in sorted(Path(sys.argv[2]).glob("*.py"))]
first = stored(folder / "a", [documents(sources[::2]), documents(sources[1::2])])
second = stored(folder / "b", [documents(sources[:3])])
special = ["<|pad|>", EOS]
train_tokenizer(
    folder, texts=[first, second], vocab_size=900, min_frequency=2, special_tokens=special, eos_token=EOS
)
"""


@pytest.mark.slow
def test_same_corpus_gives_the_same_bytes_for_any_threads_and_hash_seed(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[3]
    files = []
    for threads, hash_seed, parallel in [("1", "0", "false"), ("2", "1", "true"), ("5", "2", "true")]:
        folder = tmp_path / f"{threads}-{hash_seed}"
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")]),
            "RAYON_NUM_THREADS": threads,
            "TOKENIZERS_PARALLELISM": parallel,
            "PYTHONHASHSEED": hash_seed,
        }
        sources = str(Path(os.__file__).parent / "json")
        subprocess.run([sys.executable, "-c", TRAIN, str(folder), sources], check=True, env=environment, cwd=root)
        files.append((folder / "tokenizer.json").read_bytes())
    assert files[0] == files[1] == files[2]


def test_special_tokens_come_first_and_all_bytes_are_there(tmp_path: Path) -> None:
    corpus = [stored(tmp_path / "in", [documents(TEXTS[:2]), documents(TEXTS[2:])])]
    built = train_tokenizer(
        tmp_path,
        texts=corpus,
        vocab_size=280,
        min_frequency=1,
        special_tokens=["<|pad|>", EOS],
        eos_token=EOS,
    )
    opened = open_tokenizer(tmp_path / "tokenizer.json", EOS)
    assert [opened.tokenizer.id_to_token(i) for i in (0, 1)] == ["<|pad|>", EOS]
    assert opened.vocab_size == 280 and opened.missing_bytes == ()
    assert built.statistics["documents"] == 4
    assert built.statistics["characters"] == sum(map(len, TEXTS))
    assert built.statistics["eos_id"] == 1
    everything = "".join(map(chr, range(0xD800))) + "\U0001f600\U0010ffff"
    ids = opened.tokenizer.encode(everything, add_special_tokens=False).ids
    assert opened.tokenizer.decode(ids) == everything


def test_no_token_shows_50_characters_of_a_document(tmp_path: Path) -> None:
    key = "hsreltpusctapirhgwprrpmuehueqmxavycfysbjyaiptxmwznmxzsoeldbeabcdef"
    corpus = [stored(tmp_path / "in", [documents([f"{text} the key {key}" for text in TEXTS])])]
    train_tokenizer(
        tmp_path, texts=corpus, vocab_size=330, min_frequency=2, special_tokens=["<|pad|>", EOS], eos_token=EOS
    )
    tokens = open_tokenizer(tmp_path / "tokenizer.json", EOS).tokenizer.get_vocab()
    longest = max(tokens, key=len)
    assert 20 < len(longest) <= 49, longest


def test_a_corpus_too_small_for_the_vocabulary_is_an_error(tmp_path: Path) -> None:
    corpus = [stored(tmp_path / "in", [documents(TEXTS)])]
    with pytest.raises(TokenizerError, match=r"give a vocabulary of \d+ tokens, expected 32000"):
        train_tokenizer(tmp_path, texts=corpus, vocab_size=32_000, min_frequency=1, special_tokens=[EOS], eos_token=EOS)
    assert not (tmp_path / "tokenizer.json").exists()


@pytest.mark.parametrize("special", [[], ["<|pad|>"], [EOS, EOS]])
def test_eos_must_be_a_special_token_once(tmp_path: Path, special: list[str]) -> None:
    with pytest.raises(TokenizerError, match="each must occur once"):
        train_tokenizer(tmp_path, texts=[], vocab_size=300, min_frequency=1, special_tokens=special, eos_token=EOS)


def test_a_given_file_is_verified_and_copied(tmp_path: Path) -> None:
    corpus = [stored(tmp_path / "in", [documents(TEXTS)])]
    train_tokenizer(tmp_path, texts=corpus, vocab_size=270, min_frequency=1, special_tokens=[EOS], eos_token=EOS)
    source, target = tmp_path / "tokenizer.json", tmp_path / "copy"
    target.mkdir()
    built = load_tokenizer_file(target, path=str(source), sha256=file_sha256(source).upper(), eos_token=EOS)
    assert (target / "tokenizer.json").read_bytes() == source.read_bytes()
    assert built.statistics["vocab_size"] == 270
    with pytest.raises(TokenizerError, match=r"has SHA-256 .* expected 0000"):
        load_tokenizer_file(target, path=str(source), sha256="0" * 64, eos_token=EOS)
    with pytest.raises(TokenizerError, match="no tokenizer file"):
        load_tokenizer_file(target, path=str(tmp_path / "absent"), sha256="0" * 64, eos_token=EOS)


def test_a_tokenizer_records_its_file_the_library_and_what_that_makes_of_the_probe_text(tmp_path: Path) -> None:
    made = small_tokenizer(tmp_path, TEXTS)
    opened = open_tokenizer(made, EOS)
    assert made.statistics["sha256"] == file_sha256(made.path("tokenizer.json"))
    assert made.measured == {"library": "tokenizers", "library_version": tokenizers.__version__}
    probe = made.statistics["probe"]
    assert (probe["version"], probe["ids"]) == (PROBE_VERSION, probe_ids(opened.tokenizer))
    little_endian = b"".join(i.to_bytes(4, "little") for i in probe["ids"])
    assert probe["sha256"] == hashlib.sha256(little_endian).hexdigest()


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    return small_tokenizer(tmp_path / "trained", TEXTS).path("tokenizer.json").read_bytes()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, content: bytes) -> Iterator[Hub]:
    monkeypatch.setattr("everytoken.shards.remote.retries.pause", lambda seconds: None)
    with serve_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
            monkeypatch.delenv(name, raising=False)
        weights = {"model.safetensors": b"\0" * 5_000, "config.json": b"{}"}
        hub.models = {"org/model": {"tokenizer.json": content, **weights}, "org/slow": weights}
        yield hub


def from_hub(folder: Path, name: str = "tokenizer", **changes: Any) -> Artifact:
    chosen: dict[str, Any] = {"repository": "org/model", "revision": COMMIT, "sha256": None, **changes}
    planned = plan_artifact(load_hub_tokenizer, **chosen, eos_token=EOS, fetched=folder / "raw")
    return ArtifactStore(folder / name).save(planned)


def test_a_tokenizer_of_the_hub_is_fetched_alone_and_once(hub: Hub, content: bytes, tmp_path: Path) -> None:
    made = from_hub(tmp_path)
    assert made.path("tokenizer.json").read_bytes() == content
    assert [(request.path, request.sent) for request in hub.asked("storage")] == [("tokenizer.json", len(content))]
    assert (tmp_path / "raw/models/org--model" / COMMIT / "tokenizer.json").read_bytes() == content


def test_what_was_fetched_is_used_without_a_network(
    hub: Hub, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from_hub(tmp_path)
    hub.requests.clear()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert from_hub(tmp_path, "again").path("tokenizer.json").read_bytes() == content
    assert hub.requests == []


def test_a_damaged_copy_is_fetched_again(hub: Hub, content: bytes, tmp_path: Path) -> None:
    from_hub(tmp_path)
    copy = tmp_path / "raw/models/org--model" / COMMIT / "tokenizer.json"
    copy.write_bytes(b"{" * len(content))
    assert from_hub(tmp_path, "again").path("tokenizer.json").read_bytes() == content
    assert copy.read_bytes() == content


def test_a_transfer_that_breaks_off_goes_on(hub: Hub, content: bytes, tmp_path: Path) -> None:
    hub.faults["storage"] = [Fault(cut_after=1_500, reset=True), Fault(status=503)]
    assert from_hub(tmp_path).path("tokenizer.json").read_bytes() == content
    assert [request.start for request in hub.asked("storage")] == [0, 1_500, 1_500]


def test_the_same_file_from_the_hub_and_from_a_folder_is_one_tokenizer(
    hub: Hub, content: bytes, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    planned = plan_artifact(load_tokenizer_file, path=str(tmp_path / "tokenizer.json"), sha256=digest, eos_token=EOS)
    given = ArtifactStore(tmp_path / "given").save(planned)
    assert given.root_digest == from_hub(tmp_path, sha256=digest).root_digest, "nothing is encoded again"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"revision": "???"}, r"revision of the tokenizer of org/model is \?\?\?.*set tokenizer\.revision"),
        ({"sha256": "0" * 64}, r"has SHA-256 [0-9a-f]{64}, expected 0000.*make all token data again"),
        ({"repository": "org/slow"}, r"org/slow has no tokenizer\.json at .*found \['config\.json', 'model\.saf"),
        ({"repository": "org/absent"}, r"tokenizer\.json of org/absent at .*the hub does not give model org/absent"),
    ],
)
def test_a_tokenizer_that_the_hub_does_not_have_is_an_error_that_says_so(
    hub: Hub, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(TokenizerError, match=message):
        from_hub(tmp_path, **changes)
    assert not (tmp_path / "tokenizer").exists()


def test_a_file_that_is_not_the_listed_one_is_refused_and_not_kept(hub: Hub, content: bytes, tmp_path: Path) -> None:
    hub.served["tokenizer.json"] = b"{" * len(content)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json of org/model at .*has another digest"):
        from_hub(tmp_path)
    assert not (tmp_path / "raw/models/org--model" / COMMIT / "tokenizer.json").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"revision": "main"}, "revision must be a commit.*may move.*Find the commit"),
        ({"revision": COMMIT[:12]}, "revision must be a commit"),
        ({"repository": "org/../x"}, "repository must be an id"),
        ({"sha256": "abc"}, "sha256"),
    ],
)
def test_only_a_commit_of_an_id_names_a_tokenizer_of_the_hub(changes: dict[str, Any], message: str) -> None:
    right = {"kind": "hub", "repository": "org/model", "revision": COMMIT, "sha256": None}
    assert HubTokenizer.model_validate(right).revision == COMMIT
    assert HubTokenizer.model_validate({**right, "revision": "???"}).revision == "???", "a recipe can be looked at"
    with pytest.raises(ValidationError, match=message):
        HubTokenizer.model_validate({**right, **changes})


def test_a_pin_that_is_no_sha_256_is_refused() -> None:
    with pytest.raises(ValidationError, match="sha256"):
        GivenTokenizer.model_validate({"kind": "file", "path": "tokenizer.json", "sha256": "???"})


def added(token_id: int, content: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": content, "special": True, **flags}


@pytest.mark.parametrize(
    ("base", "highest", "eos_id", "dtype"),
    [
        ({}, 540, 294, "uint16"),  # as Llama 3: 256 added tokens follow the vocabulary, EOS among them
        ({"<|t9|>": 294, "<|t255|>": 65_535}, 65_535, 294, "uint16"),  # the vocabulary has a gap
        ({"<|t9|>": 65_536}, 65_536, 65_536, "uint32"),
    ],
)
def test_rows_of_the_embedding_reach_the_highest_id_that_a_token_has(
    content: bytes, tmp_path: Path, base: dict[str, int], highest: int, eos_id: int, dtype: str
) -> None:
    description = json.loads(content)
    vocabulary = description["model"]["vocab"]
    assert len(vocabulary) == 285 == max(vocabulary.values()) + 1
    vocabulary |= base
    given = base or {f"<|t{i}|>": 285 + i for i in range(256)}
    description["added_tokens"] += [added(token_id, token) for token, token_id in given.items()]
    (tmp_path / "added.json").write_text(json.dumps(description))
    opened = open_tokenizer(tmp_path / "added.json", "<|t9|>")
    assert (opened.eos_id, opened.vocab_size, opened.dtype.name) == (eos_id, highest + 1, dtype)
    assert opened.vocab_size == max(opened.tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    assert len(opened.token_bytes) == highest + 1 and opened.token_bytes[eos_id] == len("<|t9|>")
    model = build_model(LlamaParameters(**TINY), vocab_size=opened.vocab_size, max_seq_len=8, seed=1)
    assert model.output_weight().shape[0] == highest + 1 > opened.eos_id
    built = load_tokenizer_file(
        tmp_path,
        path=str(tmp_path / "added.json"),
        sha256=file_sha256(tmp_path / "added.json"),
        eos_token="<|t9|>",
    )
    assert (built.statistics["vocab_size"], built.statistics["eos_id"]) == (highest + 1, eos_id)


@pytest.fixture
def given(tmp_path: Path) -> Path:
    corpus, folder = [stored(tmp_path / "in", [documents(TEXTS)])], tmp_path / "given"
    folder.mkdir()
    train_tokenizer(folder, texts=corpus, vocab_size=270, min_frequency=1, special_tokens=[EOS], eos_token=EOS)
    return folder / "tokenizer.json"


def test_added_tokens_follow_the_last_id_and_are_part_of_the_digest(given: Path, tmp_path: Path) -> None:
    def taken(name: str, **added: object) -> tuple[Tokenizer, dict[str, object]]:
        folder = tmp_path / name
        folder.mkdir()
        built = load_tokenizer_file(folder, path=str(given), sha256=file_sha256(given), eos_token=EOS, **added)
        return Tokenizer.from_file(str(folder / "tokenizer.json")), dict(built.statistics)

    plain, before = taken("plain")
    more, after = taken("more", add_tokens=("<|user|>", "<|end|>"))
    size = before["vocab_size"]
    assert (more.token_to_id("<|user|>"), more.token_to_id("<|end|>")) == (size, size + 1)
    assert after["vocab_size"] == size + 2
    assert after["sha256"] != before["sha256"]
    assert after["eos_id"] == before["eos_id"]
    old = plain.get_vocab(with_added_tokens=True)
    assert {token: more.token_to_id(token) for token in old} == old
    text = "Two words.\n\n x"
    assert more.encode(text).ids == plain.encode(text).ids
    assert more.encode("a<|user|>b").ids[1] == size
    assert (tmp_path / "plain/tokenizer.json").read_bytes() == given.read_bytes()
    taken_again, _ = taken("again", add_tokens=("<|user|>", "<|end|>"))
    assert taken_again.to_str() == more.to_str()


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (
            (EOS,),
            rf"the tokenizer has '{re.escape(EOS)}' already, with the id \d+: remove it from tokenizer.add_tokens",
        ),
        (("<a>", "<a>"), r"tokenizer.add_tokens are \['<a>', '<a>'\]: give each once"),
    ],
)
def test_tokens_that_cannot_be_added_are_named(
    tokens: tuple[str, ...], message: str, given: Path, tmp_path: Path
) -> None:
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer_file(tmp_path, path=str(given), sha256=file_sha256(given), eos_token=EOS, add_tokens=tokens)


def test_a_vocabulary_of_the_hub_without_eos_is_named_before_a_run(hub: Hub, tmp_path: Path) -> None:
    loader = JobConfigLoader(str(Path(__file__).resolve().parents[3] / "conf"), env="test", **CONFIG_LOADER_ARGS)
    chosen = {"kind": "hub", "repository": "org/model", "revision": COMMIT}
    own = {"tokenizer": chosen, "fetched": str(tmp_path / "raw"), "eos_token": "</s>"}
    parameters = TokenizationParameters.model_validate({**loader["parameters"]["tokenization"], **own})
    with pytest.raises(TokenizerError, match="</s>"):
        require_given_tokenizer(parameters, None)
    require_given_tokenizer(parameters.model_copy(update={"eos_token": EOS}), None)
    assert len(hub.asked("storage")) == 1, "it is fetched once"
