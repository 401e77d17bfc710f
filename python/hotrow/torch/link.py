"""A client that a module can be copied and pickled with."""

from __future__ import annotations

from typing import Any

import hotrow


class Link:
    """Holds a client. A copy shares it; a pickle has the addresses only, and connects again when it is used.

    Secrets stay out of pickles. Where the servers want a token or a certificate, set ``module.client`` after loading.
    """

    def __init__(self, client: hotrow.Client) -> None:
        self._client: hotrow.Client | None = client
        self.address = list(client.address)

    @property
    def client(self) -> hotrow.Client:
        if self._client is None:
            self._client = hotrow.connect(self.address)
        return self._client

    def __deepcopy__(self, memo: dict[int, Any]) -> Link:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {"_client": None, "address": self.address}
