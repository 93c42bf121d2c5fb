"""What `kvcache replay` says: a table for each trace, or one JSON object for all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich.table import Table
from rich.text import Text

from kvcache.cli.console import report_console
from kvcache.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcache.replay.model_size import ModelSize
    from kvcache.replay.study import Row, Study

# Without a terminal rich takes 80 columns, into which the table does not go.
_WIDTH: Final = 140
_CLOSE: Final = 0.01


def print_report(studies: Sequence[Study], model: ModelSize | None, *, to_stderr: bool) -> None:
    """Prints the tables, to stdout or where a JSON object has stdout to itself."""
    console = report_console(to_stderr=to_stderr, width=_WIDTH)
    if model is not None:
        # Text: what a file says is no markup.
        console.print(Text(f"{model.bytes_per_token:,} bytes a token: {model.assumed}."))
    for study in studies:
        console.print(_table(study))
        console.print(Text(_advice(study)), "")


def _table(study: Study) -> Table:
    grain = f"segments of {study.segment_tokens:,} tokens"
    if study.block_tokens is not None:
        grain += f", blocks of {study.block_tokens:,}"
    table = Table(
        title=Text(
            f"{study.name}: {study.requests:,} requests, {study.requested_tokens:,} tokens, "
            f"{study.unique_tokens:,} of them unique; {grain}"
        )
    )
    table.add_column("budget", justify="right")
    sized = study.bytes_per_token is not None
    headings = ["bytes"] if sized else []
    headings += ["tokens", "hit rate", "optimum", "of optimum", "prefill tokens saved"]
    headings += ["evictions", "tokens evicted", "prompts cut"]
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in study.rows:
        outcome = row.outcome
        cells = [row.budget, *([format_size(row.nbytes or 0)] if sized else [])]
        cells += [f"{row.tokens:,}"]
        cells += [_percent(study.rate(outcome.hit_tokens)), _percent(study.rate(row.optimal_tokens))]
        cells += [_percent(_of_optimum(row)), f"{outcome.prefill_tokens_saved:,}"]
        cells += [f"{outcome.evictions:,}", f"{outcome.evicted_tokens:,}", f"{outcome.prompts_cut:,}"]
        table.add_row(*cells)
    table.caption = f"replayed in {study.seconds:.1f} s"
    return table


def _advice(study: Study) -> str:
    unlimited = study.unlimited_rate
    start = f"Unlimited, {_percent(unlimited)} of the tokens would be found"
    if study.bytes_per_token is not None:
        start += f" and {format_size(study.unique_tokens * study.bytes_per_token)} held"
    close = [row for row in study.rows if study.rate(row.outcome.hit_tokens) >= unlimited - _CLOSE]
    if not close:
        return f"{start}; no budget here comes within one point of that."
    return f"{start}; {close[0].budget} is the smallest budget here that comes within one point of that."


def _percent(rate: float) -> str:
    return f"{100 * rate:.1f} %"


def _of_optimum(row: Row) -> float:
    return row.outcome.hit_tokens / row.optimal_tokens if row.optimal_tokens else 1.0


def as_json(studies: Sequence[Study], model: ModelSize | None) -> dict[str, Any]:
    """Everything that was measured; rates are shares from 0 to 1."""
    return {
        "bytes_per_token_assumes": None if model is None else model.assumed,
        "traces": [
            {
                "name": study.name,
                "requests": study.requests,
                "requested_tokens": study.requested_tokens,
                "unique_tokens": study.unique_tokens,
                "unlimited_hit_rate": round(study.unlimited_rate, 6),
                "block_tokens": study.block_tokens,
                "segment_tokens": study.segment_tokens,
                "bytes_per_token": study.bytes_per_token,
                "seconds": round(study.seconds, 3),
                "budgets": [_row(study, row) for row in study.rows],
            }
            for study in studies
        ],
    }


def _row(study: Study, row: Row) -> dict[str, Any]:
    outcome = row.outcome
    return {
        "budget": row.budget,
        "budget_tokens": row.tokens,
        "budget_bytes": row.nbytes,
        "hit_rate": round(study.rate(outcome.hit_tokens), 6),
        "optimal_hit_rate": round(study.rate(row.optimal_tokens), 6),
        "hit_tokens": outcome.hit_tokens,
        "optimal_hit_tokens": row.optimal_tokens,
        "prefill_tokens_saved": outcome.prefill_tokens_saved,
        "evictions": outcome.evictions,
        "evicted_tokens": outcome.evicted_tokens,
        "prompts_cut": outcome.prompts_cut,
    }
