"""The base of the models that `--json` prints: what a run found, and nobody adds to."""

from pydantic import BaseModel, ConfigDict


class JsonModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
