"""PLAIN (RFC 4616): a name and a password, in clear text, so over TLS only.

```
[as whom] NUL user NUL password
```
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...errors import AuthenticationFailed

NAME = "PLAIN"
_LONGEST = 4096


@dataclass(frozen=True, slots=True)
class Login:
    """What a client says of itself."""

    user: str
    password: str = field(repr=False)

    @classmethod
    def parse(cls, message: bytes) -> Login:
        """From the message of a client."""
        if len(message) > _LONGEST:
            raise AuthenticationFailed(f"a message of {len(message)} bytes; the most is {_LONGEST}")
        try:
            parts = bytes(message).decode().split("\0")
        except UnicodeDecodeError:
            raise AuthenticationFailed("the message is not UTF-8") from None
        if len(parts) != 3 or not parts[1] or not parts[2]:
            raise AuthenticationFailed("the message does not consist of a user and a password")
        if parts[0] not in ("", parts[1]):
            raise AuthenticationFailed("a user cannot act as another one")
        return cls(parts[1], parts[2])

    def message(self) -> bytes:
        """The same as bytes."""
        return f"\0{self.user}\0{self.password}".encode()
