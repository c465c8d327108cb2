"""Look-ups in a ledger, and ends that tests give to its jobs."""

from typing import TypeVar

from trtllm_kvfix.offload.ledger import Ended, FetchJob, FreeJob, Job, Ledger, LoadJob, PutJob, StoreJob
from trtllm_kvfix.offload.transfers import Transfers

WAIT_S = 60.0

AnyJob = TypeVar("AnyJob", StoreJob, LoadJob, FetchJob, PutJob, FreeJob)


def jobs(ledger: Ledger, kind: type[AnyJob]) -> list[AnyJob]:
    return [record.job for record in ledger if isinstance(record.job, kind)]


def planned(ledger: Ledger, kind: type[AnyJob]) -> list[AnyJob]:
    return [record.job for record in ledger if record.is_new and isinstance(record.job, kind)]


def end(ledger: Ledger, job: Job, error: str = "") -> None:
    """Ends transfers on the only rank, whose worker side is not there."""
    ledger.queue(job)
    ledger.end_here(Ended(job.number, error))
    ledger.end_everywhere(*ledger.take_ended_here(), has_scheduler=True)


def wait_for_transfers(transfers: Transfers | None) -> None:
    """All that a lane has now. The loop's thread may take their ends meanwhile."""
    for running in transfers.running() if transfers else []:
        lane = running.lane
        assert lane is None or lane.wait(running.job.number, WAIT_S)
