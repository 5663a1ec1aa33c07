"""Finds which other users can write to a directory. Files from them cannot be trusted."""

from __future__ import annotations

import grp
import os
import pwd
import shlex
import stat
from pathlib import Path


def others_that_write(directory: Path) -> tuple[str, str] | None:
    """The users that can write to a directory, besides its user and root.

    Args:
        directory: The directory.

    Returns:
        The problem, and the command that fixes it. None if no other user can write, or if others can only add files.

    Raises:
        OSError: The directory cannot be read.
    """
    status, user, shown = directory.stat(), os.geteuid(), shlex.quote(str(directory))
    if status.st_uid not in (user, 0):
        way = f"chown -R {_user(user)} {shown}" if user == 0 else "name another directory"
        return f"it belongs to the user {_user(status.st_uid)}", way
    if status.st_mode & stat.S_ISVTX:
        return None
    if status.st_mode & stat.S_IWOTH:
        return "every user can write to it", f"chmod go-w {shown}"
    if status.st_mode & stat.S_IWGRP and not any(_is_private(status.st_gid, each) for each in (user, status.st_uid)):
        return f"the group {_group(status.st_gid)} can write to it", f"chmod go-w {shown}"
    return None


def _is_private(group: int, user: int) -> bool:
    """Whether only this user is in a group. Many systems make such a group for each user, with the user's name. Then
    the files of a user may be writable by the group."""
    try:
        known, members = pwd.getpwuid(user), grp.getgrgid(group)
    except KeyError:  # in a container, for example
        return group == user
    return (members.gr_name, group) == (known.pw_name, known.pw_gid) and {*members.gr_mem} <= {known.pw_name}


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)
