"""What `kvcache demo` shows a reader: two tables and the answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from kvcache.cli.chat import outputs_equal
from kvcache.cli.console import report_console

if TYPE_CHECKING:
    from kvcache.cli.chat import EvictionReport, Turn


def print_report(name: str, turns: list[Turn], eviction: EvictionReport, *, to_stderr: bool) -> None:
    """Prints the tables and the answers, to stdout or where a JSON object has stdout to itself."""
    console = report_console(to_stderr=to_stderr)
    console.print(_chat_table(name, turns))
    for number, turn in enumerate(turns, start=1):
        # Text: square brackets in an answer are no markup.
        console.print(Text(f"  {number}  {turn.text_cold.strip()}"))
        if turn.text_warm != turn.text_cold:
            console.print(Text(f"     with the cache: {turn.text_warm.strip()}"))
    console.print(f"Texts identical: {'yes' if outputs_equal(turns) else 'no'}\n")
    console.print(_eviction_table(eviction))
    if eviction.retained_bytes:
        console.print(
            "Where the allocator rounds sizes up (Metal, CUDA), a small difference is that rounding."
        )


def _chat_table(name: str, turns: list[Turn]) -> Table:
    table = Table(title=f"{name}: time to first token (TTFT), without the cache and with it")
    for heading in ("turn", "prompt tokens", "reused", "TTFT cold", "TTFT warm", "speed-up"):
        table.add_column(heading, justify="right")
    for number, turn in enumerate(turns, start=1):
        speed_up = turn.ttft_cold_ms / turn.ttft_warm_ms
        times = (f"{turn.ttft_cold_ms:,.0f} ms", f"{turn.ttft_warm_ms:,.0f} ms", f"{speed_up:.1f}x")
        table.add_row(str(number), str(turn.prompt_tokens), str(turn.reused_tokens), *times)
    return table


def _eviction_table(eviction: EvictionReport) -> Table:
    table = Table(title=f"{eviction.stores} chats under a limit of {eviction.limit_bytes:,} bytes")
    table.add_column("")
    table.add_column("bytes", justify="right")
    table.add_row("stored", f"{eviction.stored_bytes:,}")
    table.add_row("evicted", f"{eviction.evicted_bytes:,}")
    table.add_row("freed, as MLX counts", f"{eviction.freed_bytes:,}", end_section=True)
    table.add_row("MLX active + cached before the stores", f"{eviction.before_bytes:,}")
    table.add_row("MLX active + cached after the stores", f"{eviction.after_bytes:,}")
    table.add_row("held by the ledger", f"{eviction.ledger_bytes:,}")
    table.add_row("difference to the ledger", f"{eviction.retained_bytes:,}")
    table.caption = f"reclaimed in {eviction.reclaim_ms:.1f} ms, {eviction.cycles} cycles"
    return table
