"""What can go wrong. Every error of the package is an :class:`Error`, with the server's own message."""

from __future__ import annotations


class Error(Exception):
    """Something that hotrow could not do; the message says what to do about it."""


class InvalidRequest(Error, ValueError):
    """The request makes no sense. It was not sent, and nothing was changed."""


class Refused(Error):
    """A server refused the request. It changed nothing there."""

    #: The gRPC code, such as ``"NOT_FOUND"``.
    code: str
    #: Which shard refused.
    shard: int
    #: Where that shard is.
    address: str


class TimedOut(Error, TimeoutError):
    """A server could not be reached, or did not answer in time."""

    #: Which shard.
    shard: int
    #: Where that shard is.
    address: str


class PushFailed(Error):
    """A push failed on one shard or more. On the others it may have been applied."""

    #: Which push of the client it was.
    sequence: int
    #: The first failure.
    cause: Error
