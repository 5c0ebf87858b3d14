import json

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from everytoken.serving.token_texts import Offsets, TokenTexts
from tests.generation.talking import END, byte_tokenizer

TOKENIZER = byte_tokenizer()


@given(st.text(max_size=20))
def test_bytes_of_all_tokens_are_those_of_the_text(text):
    texts = TokenTexts(TOKENIZER)
    ids = TOKENIZER.encode(f"{text}{END}").ids
    assert b"".join(map(texts.bytes, ids)) == f"{text}{END}".encode()


def test_a_token_of_half_a_character_is_named_by_its_bytes():
    texts = TokenTexts(TOKENIZER)
    assert [texts.text(number) for number in TOKENIZER.encode("aä").ids] == ["a", "bytes:\\xc3", "bytes:\\xa4"]
    assert (texts.text(300), texts.bytes(300)) == ("token_id:300", b"")


def test_tokens_of_sentencepiece_are_spaces_and_bytes():
    vocabulary = {"<unk>": 0, "\u2581a": 1, "<0xE2>": 2, "b": 3}
    decoder = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
        ],
    }
    content = json.loads(byte_tokenizer().to_str())
    content |= {"model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}, "added_tokens": []}
    texts = TokenTexts(Tokenizer.from_str(json.dumps({**content, "decoder": decoder})))
    assert [texts.bytes(number) for number in (1, 2, 3)] == [b" a", b"\xe2", b"b"]


@given(st.binary(max_size=12))
def test_a_token_begins_where_the_text_before_it_ends(data):
    places = Offsets().add(bytes([byte]) for byte in data)
    text = data.decode(errors="replace")
    assert places == sorted(places)
    for at, place in enumerate(places):
        if data[at] < 0x80 or data[at] >= 0xC0:  # begins a character
            assert place == len(data[:at].decode(errors="replace"))
    assert all(place < len(text) for place in places)


@given(st.text(max_size=8))
def test_tokens_of_one_character_have_its_place(text):
    places = Offsets().add(bytes([byte]) for byte in text.encode())
    assert places == [at for at, character in enumerate(text) for _ in character.encode()]
