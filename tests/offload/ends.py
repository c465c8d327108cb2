"""What tests look up in a ledger, and ends that they give to its jobs."""

from typing import TypeVar

from trtllm_kvfix.offload.ledger import Ledger
from trtllm_kvfix.offload.plan import Ended, FetchJob, Job, LoadJob, PutJob, StoreJob

AnyJob = TypeVar("AnyJob", StoreJob, LoadJob, FetchJob, PutJob)


def jobs(ledger: Ledger, kind: type[AnyJob]) -> list[AnyJob]:
    return [record.job for record in ledger if isinstance(record.job, kind)]


def planned(ledger: Ledger, kind: type[AnyJob]) -> list[AnyJob]:
    return [record.job for record in ledger.planned() if isinstance(record.job, kind)]


def end(ledger: Ledger, job: Job, error: str = "") -> None:
    """On the only rank, whose worker side is not there."""
    ledger.queue(job)
    ledger.end_here(Ended(job.number, error))
    ledger.end_everywhere(*ledger.take_ended_here(), has_scheduler=True)
