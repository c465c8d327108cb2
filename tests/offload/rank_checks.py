"""Checks of the reports of all ranks, whatever the ranks are and wherever they run."""

from collections.abc import Callable, Sequence

from .rank_scenarios import CHOSEN, Report

Reports = Sequence[Report]  # one for each rank


def served_by_all_alike(reports: Reports, requests: int = 150) -> None:
    for rank, report in enumerate(reports):
        assert report["corrupt"] == []
        assert report["requests"] == requests
        assert report["reads"] > requests // 2
        assert report["loaded_tokens"] > requests // 2, "the host tier was used"
        assert report["held"] > 0, f"rank {rank} was slow at times"
    assert len({(report["decisions"], report["loaded_tokens"]) for report in reports}) == 1, "ranks do the same"
    assert {report["slots"] for report in reports} == {120 - 8 * (len(reports) - 1)}, "the smallest host tier decides"
    assert sum(report["failed"] for report in reports) > 0
    assert (reports[0]["errors"] > 0) == reports[0]["copies_fail"]
    assert reports[0]["owned"] == 0


def slowest_decides(reports: Reports) -> None:
    for report in reports:
        assert report["while_stored"] == 0, "not every rank had it"
        assert report["afterwards"] == 20
        assert report["while_loaded"] == "LOADING"
        assert report["answered"] == 3
        assert report["corrupt"] == []


def failed_store_is_not_found(reports: Reports) -> None:
    assert [report["loaded"] for report in reports] == [[0, 0, 20]] * len(reports)
    assert [report["corrupt"] for report in reports] == [[]] * len(reports)


def failed_load_is_computed_by_all(reports: Reports) -> None:
    assert [report["loaded"] for report in reports] == [[0, 20, 20]] * len(reports)
    assert [report["recomputed"] for report in reports] == [1] * len(reports)
    assert [report["corrupt"] for report in reports] == [[]] * len(reports)


def stuck_rank_stops_all(reports: Reports) -> None:
    require_errors(
        reports, "StuckTransfer: transfer of ", f"RankFailed: rank {CHOSEN} of {len(reports)}: StuckTransfer"
    )


def difference_is_named(reports: Reports) -> None:
    error = (
        "LayoutMismatch: rank 1 differs from rank 0: 64 blocks of 256 bytes, [64] uint32, not 64 blocks of 128 bytes"
    )
    require_errors(reports, error, error)


def refusal_is_named(reports: Reports) -> None:
    error = "SettingsError: kvfix.offload.host_bytes is 64 B; a block of this model takes 128 B"
    require_errors(reports, error, f"RankFailed: rank {CHOSEN} of {len(reports)}: {error}")


def require_errors(reports: Reports, of_chosen: str, of_others: str) -> None:
    for rank, report in enumerate(reports):
        assert report["error"].startswith(of_chosen if rank == CHOSEN else of_others), report["error"]


CHECKS: dict[str, Callable[[Reports], None]] = {
    "traffic": served_by_all_alike,
    "slow": slowest_decides,
    "a copy of a store fails": failed_store_is_not_found,
    "a copy of a load fails": failed_load_is_computed_by_all,
    "a store is refused": failed_store_is_not_found,
    "a load is refused": failed_load_is_computed_by_all,
    "stuck": stuck_rank_stops_all,
    "other blocks": difference_is_named,
    "no room": refusal_is_named,
}
