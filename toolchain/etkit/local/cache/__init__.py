"""The local cache: blobs by content, and records by key."""
