"""A repository of a registry: its manifests, blobs, referrers and tags.

Requests are repeated after temporary errors. Interrupted transfers continue. Each document is compared with its digest.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote

from etbuild.errors import BuildError, InputError
from etbuild.files import json_file
from etkit.registry.oci.attempts import Broken, Count, OnBytes
from etkit.registry.oci.client import PASSING, Answer, Client, NoAccess
from etkit.registry.oci.connection import BLOCK, answer
from etkit.registry.oci.descriptors import INDEX, MANIFEST, Descriptor, document
from etkit.registry.oci.package import DOCUMENT_BYTES
from etkit.registry.oci.reference import is_tag

_MOST_TAGS = 100_000
_MOST_REFERRERS = 10_000
_MOST_PARTS = 10_000  # the largest number of parts of a list
_PAGE = 1000  # so many tags are asked for at a time; a registry may send fewer


class NoSuchPackage(InputError):
    """A repository has no such tag or digest."""


class Repository(Client):
    """A repository of a registry. A `with` statement closes its connections. Arguments and errors: as `Client`."""

    def document(self, wanted: str) -> tuple[Descriptor, bytes]:
        """The manifest or image index that a tag or digest names, with its descriptor.

        Raises:
            NoSuchPackage: There is none.
            BuildError: The registry does not answer, or it sends other content than the digest says.
        """
        headers = {"Accept": f"{INDEX}, {MANIFEST}"}
        found = self.small(f"manifests/{wanted}", headers, DOCUMENT_BYTES, HTTPStatus.NOT_FOUND)
        if found.status == HTTPStatus.NOT_FOUND:
            raise NoSuchPackage.of(f"{self.reference.at(wanted)}: there is no such package")
        if wanted.startswith("sha256:") and f"sha256:{hashlib.sha256(found.data).hexdigest()}" != wanted:
            raise BuildError.of(f"{self}: the registry sent other content than the digest {wanted[7:23]}")
        return Descriptor.of(found.media_type, found.data), found.data

    def load(self, blob: Descriptor, limit: int) -> bytes:
        """The content of a small blob or a manifest.

        Raises:
            BuildError: It is too large, is missing, or has other content than its digest says.
        """
        if blob.size > limit:
            raise BuildError.of(f"{self}: {blob.digest[7:23]} has {blob.size} bytes, and at most {limit} are read")
        kind = "manifests" if blob.media_type in (INDEX, MANIFEST) else "blobs"
        accept = {"Accept": blob.media_type} if kind == "manifests" else {}
        data = self.small(f"{kind}/{blob.digest}", accept, blob.size).data
        if not blob.describes(data):
            raise self._damaged(blob)
        return data

    def fetch(self, blob: Descriptor, target: IO[bytes], on_bytes: OnBytes) -> None:
        """Writes a blob to a file. Continues where a connection broke.

        Args:
            blob: The blob.
            target: An empty file, open for reading and writing.
            on_bytes: Is called with the bytes that have arrived.

        Raises:
            BuildError: The registry does not send it, or sends other content than its digest says.
            OSError: The file cannot be written.
        """
        state, count = hashlib.sha256(), Count(on_bytes)
        for again in self.attempts(count, f"{blob.digest[7:23]} cannot be fetched"):
            with again:
                part = {"Range": f"bytes={count.done}-"} if count.done else {}
                with self.request("GET", f"blobs/{blob.digest}", part, stream=True) as response:
                    if count.done and response.status_code == HTTPStatus.OK:  # the registry sends all of it
                        count.reach(0)
                        state = hashlib.sha256()
                        target.seek(0)
                        target.truncate()
                    self.expect(response, HTTPStatus.PARTIAL_CONTENT if count.done else HTTPStatus.OK)
                    begin = f"bytes {count.done}-"
                    if not response.headers.get("Content-Range", begin).startswith(begin):
                        raise BuildError.of(f"{self}: the registry sent another part of {blob.digest[7:23]}")
                    for block in self.body(response, blob.size - count.done):
                        target.write(block)
                        state.update(block)
                        count.reach(count.done + len(block))
                if count.done < blob.size:
                    raise Broken("the body ends early")
        if state.hexdigest() != blob.sha256:
            raise self._damaged(blob)

    def has(self, blob: Descriptor) -> bool:
        """Whether the repository has a blob.

        Raises:
            BuildError: The registry does not answer.
        """
        with self.request("HEAD", f"blobs/{blob.digest}") as response:
            if response.status_code == HTTPStatus.NOT_FOUND:
                return False
            self.expect(response, HTTPStatus.OK)
            return True

    def mount(self, blob: Descriptor, other: str) -> bool:
        """Takes a blob from another repository of the registry, without sending it.

        Returns:
            Whether the repository has the blob now.
        """
        address = f"blobs/uploads/?mount={blob.digest}&from={other}"
        try:
            # A registry that does not mount it begins an upload. The registry also ends the upload: deleting it would
            # need a login with the right to delete.
            with self.request("POST", address, kind=f"mount from {other}") as response:
                return bool(response.status_code == HTTPStatus.CREATED)
        except NoAccess:  # no access to the other repository; without access to this one, the upload will fail
            return False

    def upload(self, blob: Descriptor, source: Path, on_bytes: OnBytes) -> None:
        """Sends a file as a blob. Continues where a connection broke, if the registry still knows the upload.

        Raises:
            BuildError: The registry does not take it.
            OSError: The file cannot be read.
        """
        address, count = "", Count(on_bytes)
        hint = "try again: data that has arrived is not sent again"
        for again in self.attempts(count, f"{blob.digest[7:23]} cannot be sent", hint):
            with again, source.open("rb") as file:
                if address:
                    address, arrived = self._arrived(address)
                    count.reach(arrived)
                if not address:
                    with self.request("POST", "blobs/uploads/") as response:
                        self.expect(response, HTTPStatus.ACCEPTED)
                        address = self._location(response)
                if count.done < blob.size:
                    address = self._send_rest(address, _Rest(file, count, blob.size, self.stop))
                joint = "&" if "?" in address else "?"
                with self.request("PUT", f"{address}{joint}digest={blob.digest}") as response:
                    if response.status_code in (HTTPStatus.NOT_FOUND, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE):
                        raise Broken("the registry has forgotten the upload")
                    self.expect(response, HTTPStatus.CREATED)

    def _send_rest(self, address: str, body: _Rest) -> str:
        """Sends the rest of a blob. Returns the address of the next request."""
        content_range = f"{body.start}-{body.start + body.len - 1}"
        headers = {"Content-Type": "application/octet-stream", "Content-Range": content_range}
        with self.request("PATCH", address, headers, data=body) as response:
            if response.status_code in PASSING:
                raise Broken(answer(response))
            self.expect(response, HTTPStatus.ACCEPTED, HTTPStatus.NO_CONTENT)
            return self._location(response)

    def _arrived(self, address: str) -> tuple[str, int]:
        """The address to continue an upload, and the number of bytes that have arrived; `""` if the upload is lost."""
        with self.request("GET", address) as response:
            if response.status_code != HTTPStatus.NO_CONTENT:
                return "", 0
            _, _, last = response.headers.get("Range", "").partition("-")
            # 0-0 means that nothing or one byte has arrived: then begin again.
            arrived = int(last) + 1 if last.isdecimal() and last != "0" and len(last) < 20 else 0
            return (self._location(response, address), arrived) if arrived else ("", 0)

    def _location(self, response: Any, default: str = "") -> str:
        """The address to continue an upload."""
        location = response.headers.get("Location", default)
        if not location:
            raise BuildError.of(f"{self}: the registry does not say where to send the blob")
        return self.address(location)

    def put_document(self, name: str, blob: Descriptor, data: bytes) -> bool:
        """Stores a manifest or an image index under a tag or its digest.

        Returns:
            For a manifest with a subject: whether the registry has an interface for referrers.

        Raises:
            BuildError: The registry does not take it.
        """
        headers = {"Content-Type": blob.media_type}
        for again in self.attempts(Count(), f"the manifest {blob.digest[7:23]} cannot be stored"):
            with again, self.request("PUT", f"manifests/{name}", headers, data=data) as response:
                if response.status_code == HTTPStatus.BAD_REQUEST:
                    # While another push writes the same blob again, it may be missing for a moment.
                    raise Broken(answer(response))
                self.expect(response, HTTPStatus.CREATED)
        stored = response.headers.get("Docker-Content-Digest", blob.digest)
        if stored != blob.digest:
            raise BuildError.of(f"{self}: the registry stored {stored[:80]} in place of {blob.digest}")
        return "OCI-Subject" in response.headers

    def put_referrer(self, subject: Descriptor, blob: Descriptor, data: bytes, artifact_type: str) -> None:
        """Stores a manifest that refers to another one, so that tools find it from there.

        A registry without an interface for referrers gets a list of them under the tag `sha256-DIGEST`, as the
        specification says.

        Raises:
            BuildError: The registry does not take it.
        """
        if self.put_document(blob.digest, blob, data):
            return
        known = self._tagged_referrers(subject)
        others = [each for each in known if each["digest"] != blob.digest]  # the newest comes last
        manifests = [*others, {**blob.json(), "artifactType": artifact_type}]
        if manifests != known:
            index = document({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests})
            self.put_document(f"sha256-{subject.sha256}", Descriptor.of(INDEX, index), index)

    def referrers(self, subject: Descriptor, artifact_type: str) -> list[Descriptor]:
        """The manifests of a kind that refer to another one.

        They come from the registry's interface for referrers, or from the tag that replaces it.

        Raises:
            BuildError: The registry does not answer, or its list is damaged.
        """
        address, missing = f"referrers/{subject.digest}", HTTPStatus.NOT_FOUND
        first = self.small(address, {"Accept": INDEX}, DOCUMENT_BYTES, missing, HTTPStatus.BAD_REQUEST)
        if first.status == HTTPStatus.OK and first.media_type == INDEX:
            manifests: list[dict[str, Any]] = []
            for part in self._parts(first, address, {"Accept": INDEX}):
                if part.media_type != INDEX:
                    raise BuildError.of(f"{self}: a part of {address} is a {part.media_type[:100]}, not a {INDEX}")
                manifests += self._referrers(part.data, address)
                if len(manifests) > _MOST_REFERRERS:
                    raise self._endless(address)
        else:
            manifests = self._tagged_referrers(subject)
        return [Descriptor.parse(each) for each in manifests if each.get("artifactType") == artifact_type]

    def _parts(self, part: Answer, address: str, headers: dict[str, str]) -> Iterator[Answer]:
        """Yields the parts of a list. Each part names the next one, which must have the address of the list."""
        yield part
        whole = f"{self.root}{address}"
        seen = {whole}
        while part.next is not None:
            begin, query, _ = part.next.partition("?")
            if not query or unquote(begin) != whole:  # some registries write the colon of a digest as %3A
                raise BuildError.of(f"{self}: {address} goes on at {part.next[:200]}, which is elsewhere")
            if part.next in seen or len(seen) > _MOST_PARTS:
                raise self._endless(address)
            seen.add(part.next)
            part = self.small(part.next, headers, DOCUMENT_BYTES)
            yield part

    def _endless(self, address: str) -> BuildError:
        return BuildError.of(f"{self}: {address} has no end")

    def _tagged_referrers(self, subject: Descriptor) -> list[dict[str, Any]]:
        """The list under the tag that replaces the interface for referrers; empty if there is none."""
        address = f"manifests/sha256-{subject.sha256}"
        found = self.small(address, {"Accept": INDEX}, DOCUMENT_BYTES, HTTPStatus.NOT_FOUND)
        return self._referrers(found.data, address) if found.status == HTTPStatus.OK else []

    def _referrers(self, data: bytes, address: str) -> list[dict[str, Any]]:
        try:
            content = json_file.content(
                data, Path(address), json_file.Format("a list of referrers", "package#referrers")
            )
        except InputError as error:
            raise BuildError.of(f"{self}: {error.problems[0].message}") from None
        manifests: list[dict[str, Any]] = content["manifests"]
        return manifests

    def tags(self) -> list[str]:
        """The tags of the repository, sorted.

        Raises:
            InputError: There is no such repository.
            BuildError: The registry does not answer, or its list is damaged, leads elsewhere or has no end.
        """
        address = "tags/list"
        first = self.small(f"{address}?n={_PAGE}", {}, DOCUMENT_BYTES, HTTPStatus.NOT_FOUND)
        if first.status == HTTPStatus.NOT_FOUND:
            raise InputError.of(f"{self}: there is no such repository")
        tags = set[str]()
        for part in self._parts(first, address, {}):
            try:
                page = list(json_file.parse(part.data)["tags"] or ())
            except (ValueError, KeyError, TypeError) as error:
                raise BuildError.of(f"{self}: the tags cannot be listed: {error}") from None
            for tag in page:
                if not (isinstance(tag, str) and is_tag(tag)):
                    raise BuildError.of(f"{self}: the registry lists `{str(tag)[:100]}`, which cannot be a tag")
            tags.update(page)
            if len(tags) > _MOST_TAGS:
                raise self._endless(address)
            if not page:  # some registries always name a next part
                break
        return sorted(tags)

    def _damaged(self, blob: Descriptor) -> BuildError:
        return BuildError.of(f"{self}: the registry sent other content than the digest {blob.sha256[:16]} says")


class _Rest:
    """The rest of a file as the body of a request. The library requests reads `len`."""

    def __init__(self, file: IO[bytes], count: Count, end: int, stop: threading.Event) -> None:
        self.start, self.len = count.done, end - count.done
        self._file, self._count, self._end, self._stop = file, count, end, stop
        file.seek(count.done)

    def read(self, amount: int = BLOCK) -> bytes:
        if self._stop.is_set():
            raise OSError("stopped")
        block = self._file.read(min(self._end - self._count.done, amount))
        self._count.reach(self._count.done + len(block))
        return block

    def __iter__(self) -> Iterator[bytes]:
        while block := self.read():
            yield block
