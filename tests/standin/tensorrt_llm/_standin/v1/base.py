"""Surface 1.1."""

from abc import ABC, abstractmethod
from typing import Any


class BaseResourceManager(ABC):
    @abstractmethod
    def get_max_resource_count(self) -> int: ...

    @abstractmethod
    def get_needed_resource_to_completion(self, request: Any) -> int: ...

    def add_dummy_requests(self, request_ids: list[int]) -> Any:
        """Nothing, where a manager has nothing to set up."""

    def prepare_resources(self, scheduled_batch: Any) -> None:
        """Nothing."""

    def update_resources(self, scheduled_batch: Any) -> None:
        """Nothing."""

    def free_resources(self, request: Any) -> None:
        """Nothing."""

    def shutdown(self) -> None:
        """Nothing."""
