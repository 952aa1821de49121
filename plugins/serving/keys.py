"""Keys that clients have to show, compared in a time that tells nothing of them."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import TYPE_CHECKING

from camshaft.errors import CamshaftError, RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_SHORTEST = 8


class Keys:
    """The keys of one server. Only their digests are kept, made with a secret of this process."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._secret = secrets.token_bytes(32)
        self._digests = [self._digest(one.encode()) for one in keys]

    @classmethod
    def of_file(cls, path: Path) -> Keys:
        """Read a file with one key a line; empty lines and those that begin with # are skipped.

        Raises:
            CamshaftError: It cannot be read, has no key, or one that is too short or has blanks.
        """
        try:
            lines = [one.strip() for one in path.read_text(encoding="utf-8").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise CamshaftError(f"server.api_keys: {path} cannot be read: {error}") from None
        numbered = [(number, one) for number, one in enumerate(lines, 1) if one and one[0] != "#"]
        for number, key in numbered:
            if len(key) < _SHORTEST or not key.isascii() or len(key.split()) > 1:
                raise CamshaftError(
                    f"server.api_keys: {path}:{number}: a key has at least {_SHORTEST} ASCII "
                    "characters and no blanks"
                )
        if not numbered:
            raise CamshaftError(f"server.api_keys: {path} holds no key")
        return cls(key for _, key in numbered)

    def refusal(self, authorization: bytes | None) -> RequestError | None:
        """Return why a request is not let in, or None.

        Args:
            authorization: Its header of that name.
        """
        if authorization is None:
            return _refusal("a key is needed, as `Authorization: Bearer KEY`")
        scheme, _, key = authorization.partition(b" ")
        given = self._digest(key.strip())
        # every key is compared, whichever fits
        fits = [hmac.compare_digest(given, one) for one in self._digests]
        if scheme.lower() == b"bearer" and any(fits):
            return None
        return _refusal("this key is not one of the server's")

    def _digest(self, key: bytes) -> bytes:
        return hashlib.blake2b(key, key=self._secret).digest()


def _refusal(message: str) -> RequestError:
    return RequestError(message, code="invalid_api_key", status=401)
