"""Shards: lazy maps over parts, stores that make only what is missing, ledgers, digests and engines. Knows no Kedro."""

from typing import TYPE_CHECKING

from everytoken.exports import exports

if TYPE_CHECKING:
    from everytoken.shards.artifacts import (
        Artifact,
        ArtifactStore,
        Built,
        artifact_checksum,
        artifact_ledger_text,
        artifact_root_digest,
        parse_artifact_ledger,
        plan_artifact,
        read_any_ledger,
        read_artifact_ledger,
        require_root_digest,
    )
    from everytoken.shards.atomic import atomic_file, fsync_file, fsync_folder, scratch_folder, write_text
    from everytoken.shards.digests import canonical_json, file_sha256, value_digest
    from everytoken.shards.engines import Engine, Inline, Processes, make_engine
    from everytoken.shards.errors import (
        DamagedStore,
        Failure,
        IncompleteStore,
        PartsFailed,
        RecipeError,
        ShardsError,
        StoreBusy,
    )
    from everytoken.shards.former_paths import declared_name
    from everytoken.shards.inputs import unchanging
    from everytoken.shards.ledger import LEDGER_FILE, Ledger, PartRecord, is_store, read_ledger
    from everytoken.shards.parts import Part, Rows, SetAside, Unchanged
    from everytoken.shards.recipe import Recipe, digests_in, recipe_digest, versioned
    from everytoken.shards.shards import Shards, Zipped
    from everytoken.shards.store import Store
    from everytoken.shards.table_digests import TableDigest, stored_content, table_digest
    from everytoken.shards.writing import write_rows

__getattr__, __dir__ = exports(__name__, __file__)

__all__ = [
    "LEDGER_FILE",
    "Artifact",
    "ArtifactStore",
    "Built",
    "DamagedStore",
    "Engine",
    "Failure",
    "IncompleteStore",
    "Inline",
    "Ledger",
    "Part",
    "PartRecord",
    "PartsFailed",
    "Processes",
    "Recipe",
    "RecipeError",
    "Rows",
    "SetAside",
    "Shards",
    "ShardsError",
    "Store",
    "StoreBusy",
    "TableDigest",
    "Unchanged",
    "Zipped",
    "artifact_checksum",
    "artifact_ledger_text",
    "artifact_root_digest",
    "atomic_file",
    "canonical_json",
    "declared_name",
    "digests_in",
    "file_sha256",
    "fsync_file",
    "fsync_folder",
    "is_store",
    "make_engine",
    "parse_artifact_ledger",
    "plan_artifact",
    "read_any_ledger",
    "read_artifact_ledger",
    "read_ledger",
    "recipe_digest",
    "require_root_digest",
    "scratch_folder",
    "stored_content",
    "table_digest",
    "unchanging",
    "value_digest",
    "versioned",
    "write_rows",
    "write_text",
]
