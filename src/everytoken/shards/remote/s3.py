"""A folder in S3, or in a storage that speaks its protocol: conditional writes, and uploads in parts that are resumed.

Every new object is written with ``If-None-Match: *``, and a ledger with ``If-Match`` and the ETag that was read. An
upload in parts belongs to a name with a digest, so whoever finds one may continue it. Parts that the storage has are
compared with the file by their MD5 and are not sent again.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from everytoken.shards.engines import in_threads
from everytoken.shards.remote.folders import REQUEST_BYTES, Changed, Gone, ObjectFolder, answer_in
from everytoken.shards.remote.retries import Transient

logger = logging.getLogger(__name__)

_MOST_PARTS = 10_000  # of an upload
_MIB = 1 << 20
_CLIENT = {  # of botocore: one attempt, as `asking` repeats it
    "connect_timeout": 10,
    "read_timeout": 60,
    "retries": {"total_max_attempts": 1, "mode": "standard"},
}


class S3Folder(ObjectFolder):
    """The objects below ``s3://bucket/prefix``."""

    compares_on_server = True

    def _settings(self) -> dict[str, Any]:
        given = super()._settings()
        return {**given, "config_kwargs": {**_CLIENT, **given.get("config_kwargs", {})}}

    @property
    def filesystem(self) -> Any:
        """The file system of fsspec, which asks once: `asking` repeats."""
        filesystem = super().filesystem
        filesystem.retries = 1
        return filesystem

    def _call(self, method: str, **arguments: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self.filesystem.call_s3(method, Bucket=self._bucket, **arguments)
        return answer

    @property
    def _bucket(self) -> str:
        return self.place("").split("/", 1)[0]

    def _key(self, name: str) -> str:
        return self.place(name).split("/", 1)[1]

    def require_bucket(self) -> None:
        """Ask for a page of the bucket, which raises where there is none."""
        self._call("list_objects_v2", MaxKeys=1)

    def read(self, name: str) -> tuple[bytes, str] | None:
        """Return the bytes and the ETag of a small object; None: there is none."""

        def ask() -> tuple[bytes, str]:
            before = self._call("head_object", Key=self._key(name))["ETag"]
            content: bytes = self.filesystem.cat_file(self.place(name))
            if self._call("head_object", Key=self._key(name))["ETag"] != before:
                raise Transient(f"{self.shown}/{name} was replaced while it was read")
            return content, str(before)

        try:
            return self.asking(name, ask)
        except Gone:
            self.asking("", self.require_bucket)
            return None

    def version(self, name: str) -> str | None:
        """Return the ETag of an object; None: there is none."""
        try:
            return str(self.asking(name, lambda: self._call("head_object", Key=self._key(name)))["ETag"])
        except Gone:
            return None

    def replace(self, name: str, content: bytes, version: str | None) -> None:
        """Write a small object in the place of the version that was read, which S3 compares.

        Raises:
            Changed: there is another version, or another run is writing one.
        """
        condition = {"IfNoneMatch": "*"} if version is None else {"IfMatch": version}
        try:
            self.asking(name, lambda: self._call("put_object", Key=self._key(name), Body=content, **condition))
        except (Changed, Gone):
            now = self.read(name)
            if now is None or now[0] != content:  # else it was ours, and its answer was lost
                raise Changed from None

    def upload(self, name: str, path: Path) -> None:
        """Write a file whose name has the digest of its content, in parts if it is large; none of them twice."""
        size = path.stat().st_size
        try:
            if size <= REQUEST_BYTES:
                content = path.read_bytes()
                self.asking(name, lambda: self._call("put_object", Key=self._key(name), Body=content, IfNoneMatch="*"))
            else:
                sent: list[int] = []
                self.asking(name, lambda: self._in_parts(name, path, size, sent), progress=lambda: len(sent))
        except Changed:  # it is there: from an earlier run, or its answer was lost
            self.asking(name, lambda: self._require_size(name, size))

    def _in_parts(self, name: str, path: Path, size: int, sent: list[int]) -> None:
        if self.size_of(name) is not None:
            raise Changed
        key = self._key(name)
        begun = [one["UploadId"] for one in self._begun(key) if one["Key"] == key]
        upload = begun[0] if begun else self._call("create_multipart_upload", Key=key)["UploadId"]
        there = {one["PartNumber"]: one for one in self._parts_of(key, upload)} if begun else {}
        block = max(REQUEST_BYTES, -(-size // _MOST_PARTS // _MIB) * _MIB)
        if there:
            logger.info("%s: %d parts of an earlier upload are there", name, len(there))

        def send(number: int) -> dict[str, Any]:
            with path.open("rb") as file:
                file.seek((number - 1) * block)
                content = file.read(block)
            known = there.get(number)
            if (
                known is not None
                and known["ETag"].strip('"') == hashlib.md5(content, usedforsecurity=False).hexdigest()
            ):
                return {"PartNumber": number, "ETag": known["ETag"]}
            answer = self._call("upload_part", Key=key, UploadId=upload, PartNumber=number, Body=content)
            sent.append(number)
            return {"PartNumber": number, "ETag": answer["ETag"]}

        parts = list(in_threads(send, range(1, -(-size // block) + 1)))
        try:
            self._call(
                "complete_multipart_upload",
                Key=key,
                UploadId=upload,
                MultipartUpload={"Parts": parts},
                IfNoneMatch="*",
            )
        except Exception as error:
            if answer_in(error)[0] == "PreconditionFailed":  # another run wrote it meanwhile
                self._call("abort_multipart_upload", Key=key, UploadId=upload)
            raise

    def _begun(self, prefix: str) -> Iterator[dict[str, Any]]:
        """Yield the uploads that were begun below a prefix and not ended."""
        after: dict[str, str] = {}
        while True:
            page = self._call("list_multipart_uploads", Prefix=prefix, **after)
            yield from page.get("Uploads", ())
            if not page.get("IsTruncated"):
                return
            after = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def _parts_of(self, key: str, upload: str) -> Iterator[dict[str, Any]]:
        after: dict[str, int] = {}
        while True:
            page = self._call("list_parts", Key=key, UploadId=upload, **after)
            yield from page.get("Parts", ())
            if not page.get("IsTruncated"):
                return
            after = {"PartNumberMarker": int(page["NextPartNumberMarker"])}

    def abort_uploads(self) -> int:
        """Give up the uploads that ended runs left half; return how many there were."""

        def abort() -> int:
            left = list(self._begun(self._key("")))
            for one in left:
                logger.info("%s: an upload of %s that was left half is given up", self.shown, one["Key"])
                self._call("abort_multipart_upload", Key=one["Key"], UploadId=one["UploadId"])
            return len(left)

        return self.asking("", abort)
