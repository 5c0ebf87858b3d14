"""Kedro datasets: shard stores, artifacts (token streams, tokenizers, checkpoints, releases), reports, and the folder
of upstream files.
 Every dataset writes atomically, and says what it holds with ``ledger_summary()``: root digest, rows and bytes for
tracking.
"""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.datasets.artifact import ArtifactFolder, Checkpoint, TokenizerFile, TokenStream
    from everytoken.datasets.behind_urls import open_cache, remote_artifacts
    from everytoken.datasets.dataset_paths import DatasetPaths
    from everytoken.datasets.files import CsvFile, FigureFile, HtmlFile, JsonFile
    from everytoken.datasets.ranked_replies import RankedReplies
    from everytoken.datasets.release_folder import ReleaseFolder
    from everytoken.datasets.set_aside import amounts_set_aside, encoded_counts, rows_by_reason
    from everytoken.datasets.shard_store import ShardStore
    from everytoken.datasets.upstream_files import UpstreamFiles
    from everytoken.datasets.validators import verify_content
    from everytoken.datasets.when_made import WhenMade

__getattr__, __dir__ = exports(__name__, __file__)
