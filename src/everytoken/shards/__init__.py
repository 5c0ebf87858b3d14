"""Shards: lazy maps over parts, stores that make only what is missing, ledgers, digests and engines. Knows no Kedro."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

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
    from everytoken.shards.atomic import (
        atomic_file,
        atomic_folder,
        fsync_file,
        fsync_folder,
        link_file,
        lock_folder,
        remove_temporaries,
        scratch_folder,
        sole_writer,
        write_text,
    )
    from everytoken.shards.digests import HashedFile, canonical_json, file_sha256, plain_json, value_digest
    from everytoken.shards.engines import (
        IN_THIS_PROCESS,
        THREADS,
        Engine,
        Inline,
        RangeMap,
        WorkerProcesses,
        in_threads,
        make_engine,
        processes_of,
        start_server,
    )
    from everytoken.shards.errors import (
        DamagedStore,
        Failure,
        IncompleteStore,
        PartsFailed,
        RangeFailed,
        RecipeError,
        ShardsError,
        StoreBusy,
    )
    from everytoken.shards.former_paths import declared_name
    from everytoken.shards.ledger import (
        LEDGER_FILE,
        Ledger,
        PartRecord,
        Record,
        files_here,
        is_here,
        is_store,
        ledger_state,
        read_ledger,
        size_here,
        statistics_as,
        stub_of,
    )
    from everytoken.shards.locked_inputs import reading, stored_in, unchanging
    from everytoken.shards.part_progress import rows_done
    from everytoken.shards.parts import BATCH_ROWS, Part, Rows, SetAside, StoredPart, Unchanged, ValuePart, side_by_side
    from everytoken.shards.recipe import (
        UNRECORDED,
        UNRECORDED_DEFAULT,
        Recipe,
        digests_in,
        recipe_digest,
        recipe_value,
        recorded_by_field,
        versioned,
    )
    from everytoken.shards.shards import Shards, Zipped, part_name
    from everytoken.shards.store import Store
    from everytoken.shards.table_digests import TableDigest, stored_content, table_digest, type_name
    from everytoken.shards.workers import JobGroup, JobQueue, JobShape, Slurm
    from everytoken.shards.writing import ROW_GROUP_ROWS, Written, set_aside_path, write_rows

__getattr__, __dir__ = exports(__name__, __file__)
