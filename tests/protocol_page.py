"""The tables of docs/protocol.md, made from the code.

``python tests/protocol_page.py`` writes them into the page, each between its two comments.
"""

from __future__ import annotations

import ast
import inspect
import re
import struct
import textwrap
from pathlib import Path

from evenstep.loader.transport import ticks
from evenstep.protocol import bodies, own_receipt, wire

PAGE = Path(__file__).parents[1] / "docs" / "protocol.md"
_TYPES = {"B": "u8", "I": "u32", "i": "i32", "q": "i64", "c": "byte", "s": "bytes"}


def meanings(holder: type) -> dict[str, str]:
    """The fields of a class, and the first paragraph of what its source says of each."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(holder))).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, text in zip(body.body, body.body[1:]):
        name = getattr(field, "target", None) or getattr(field, "targets", [None])[0]
        if isinstance(name, ast.Name) and isinstance(text, ast.Expr):
            said = ast.literal_eval(text.value)
            found[name.id] = " ".join(said.split())
    return found


def parts(layout: str) -> list[tuple[str, int]]:
    """Type and bytes of each field of a struct."""
    found = []
    for count, code in re.findall(r"(\d*)([a-zA-Z])", layout):
        field = count + code if code == "s" else code
        times = int(count or 1) if code != "s" else 1
        found += [(_TYPES[code], struct.calcsize("<" + field))] * times
    return found


def table(rows: list[tuple[str, ...]]) -> str:
    head, *rest = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([head, "|" + "---|" * len(rows[0]), *rest])


def fields_table(layout: struct.Struct, said: dict[str, str], *more: tuple[str, str, str]) -> str:
    """One row for each field of a struct, and further rows of size, name and meaning."""
    rows = [("at", "bytes", "type", "field", "meaning")]
    place = 0
    for (kind, size), (name, text) in zip(parts(layout.format), said.items(), strict=True):
        rows.append((str(place), str(size), kind, f"`{name}`", text))
        place += size
    at = str(place)
    for size, name, text in more:
        rows.append((at, size, "bytes", f"`{name}`", text))
        at = ""
    return table(rows)


def totals_table() -> str:
    names = [*own_receipt.COLUMNS, "cost"]
    (kind, first), *widths = parts(own_receipt.TEXT.head.format)
    lows = parts(own_receipt.TEXT.lows.format)
    assert len(names) == len(widths) == len(lows) + 1
    every = ", ".join(f"`{name}`" for name in names)
    rows = [
        ("at", "bytes", "type", "field", "meaning"),
        ("0", str(first), kind, "`steps`", "Of this rank in this round."),
        (
            str(first),
            f"{len(widths)} x 1",
            widths[0][0],
            "widths",
            f"Bytes for each step of each column: {every}.",
        ),
        (
            str(own_receipt.TEXT.head.size),
            f"{len(lows)} x {lows[0][1]}",
            lows[0][0],
            "lows",
            "The smallest value of each column but `cost`, in this order.",
        ),
        (
            str(own_receipt.TEXT.head.size + own_receipt.TEXT.lows.size),
            "steps x width each",
            "unsigned",
            "columns",
            "Column after column: each step's value less the smallest. 8 bytes are an i64.",
        ),
        (
            "",
            "steps x width",
            "f32",
            "`cost`",
            "Not sent where it is tokens + padding in all steps.",
        ),
    ]
    return table(rows)


def tick_table() -> str:
    said = {"mark": "0xE5.", **dict.fromkeys(ticks.Tick._fields, "")}
    said["state"] = "0 waits for its batcher, 1 has a message, 2 is done."
    doing = {ticks.Doing[name]: text for name, text in meanings(ticks.Doing).items()}
    said["doing"] = "Its trainer: " + " ".join(f"{int(d)}: {text}" for d, text in doing.items())
    said["step"] = "The last step that its trainer took; -1 before the first."
    said["seconds"] = "For how long it has been doing this."
    said["length"] = f"Bytes of the message, at most {ticks.LONGEST:,}; 0 unless the state is 1."
    rest = ("the rest of 1,024", "message", "As much of it as fits, then zeros.")
    return fields_table(ticks._HEAD, said, rest)


def generated() -> dict[str, str]:
    """Each generated part of the page, by its name."""
    left, totals = meanings(bodies.ReceiptBody)["left"], meanings(bodies.ReceiptBody)["totals"]
    lent = meanings(bodies.ReceiptBody)["lent"]
    hello = {"left": "Samples of the rank that are to be planned; -1 if unknown."}
    compared = ("all the rest", "compared", "JSON object: what must be equal on all ranks.")
    numbers = ("8 k", "numbers", "k i64 of the policy; none of a rank that has finished.")
    return {
        "head": fields_table(wire.HEAD_LAYOUT, meanings(wire.Head)),
        "hello": fields_table(bodies.HELLO_LAYOUT, hello, compared),
        "proposal": fields_table(bodies.PROPOSAL_LAYOUT, meanings(bodies.ProposalHead), numbers),
        "receipt": fields_table(
            bodies.RECEIPT_LAYOUT,
            {"left": left, "size": "Bytes of the totals."},
            ("size", "totals", totals),
            ("all the rest", "lent", lent),
        ),
        "totals": totals_table(),
        "tick": tick_table(),
    }


def filled(page: str) -> str:
    """The page with its generated parts as the code makes them now."""
    for name, text in generated().items():
        begin, end = f"<!-- generated: {name} -->\n\n", f"\n\n<!-- end: {name} -->"
        before, found, rest = page.partition(begin)
        assert found, f"{PAGE.name} has no place for {name}"
        page = before + begin + text + rest[rest.index(end) :]
    return page


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
