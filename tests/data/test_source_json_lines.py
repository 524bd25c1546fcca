"""JSON Lines: blocks, blank lines, encodings of line ends, and lines that are wrong."""

from __future__ import annotations

import json
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from source_checks import check_order_and_seeking, take

from evenstep.data import Source, open_reader
from evenstep.data.source_files import list_files
from evenstep.errors import ConfigurationError, EvenstepError, SampleError

fsspec = pytest.importorskip("fsspec")

texts = st.text(st.characters(codec="utf-8"), max_size=20)


@given(
    st.lists(st.lists(texts, max_size=12), min_size=1, max_size=3).filter(any),
    st.integers(1, 6),
    st.sampled_from(["\n", "\r\n", "\n\n", "\n \t\n"]),
    st.booleans(),
)
def test_every_line_comes_as_it_was_written(files, block, end, last_end):
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    for number, lines in enumerate(files):
        content = end.join(json.dumps({"t": text}, ensure_ascii=False) for text in lines)
        memory.pipe(f"/lines/{number}.jsonl", (content + end * last_end).encode())
    source = Source("s", "memory://lines/*.jsonl", block=block)
    with open_reader(source) as reader:
        items = list(reader.read(passes=1))
        assert sorted(i.sample["t"] for i in items) == sorted(t for lines in files for t in lines)
        assert all(item.index < block for item in items)
        middle = len(items) // 2
        assert take(reader, len(items) - middle, middle) == items[middle:]


def test_order_and_seeking(tmp_path: Path):
    for name, count in (("a", 23), ("b", 1), ("c", 40)):
        lines = (json.dumps({"id": f"{name}{i}", "more": [i]}) for i in range(count))
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    first = check_order_and_seeking(
        lambda: Source("s", str(tmp_path / "*.jsonl"), block=8, columns=["id"]), 64
    )
    assert sorted(item.sample["id"] for item in first) == sorted(
        [f"a{i}" for i in range(23)] + ["b0"] + [f"c{i}" for i in range(40)]
    )


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"t": 1', "JSONDecodeError"),
        ("[1]", "not an object"),
        ('{"u": 1}', "no field 't'; it has u"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, says):
    path = tmp_path / "a.jsonl"
    path.write_text('{"t": 1}\n{"t": 2}\n{"t": 3}\n' + line)
    source = Source("s", str(path), block=2, shuffle=False, columns=["t"])
    with open_reader(source) as reader, pytest.raises(SampleError) as error:
        take(reader, 4)
    assert f"sample s[1][1] (lines from byte 18 of {path}) cannot be read" in str(error.value)
    assert says in str(error.value)


def test_compressed_or_empty_files_are_refused(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(b"")
    with pytest.raises(ConfigurationError, match="compressed, so its lines cannot be sought"):
        open_reader(Source("s", str(tmp_path / "a.jsonl.gz")))
    (tmp_path / "b.jsonl").write_text("\n \n")
    with pytest.raises(ConfigurationError, match="source 's' has no samples"):
        open_reader(Source("s", str(tmp_path / "b.jsonl")))


class Signed(SimpleHTTPRequestHandler):
    """Gives files to those who have the signature."""

    broken = False

    def send_head(self):
        if self.broken or not self.path.endswith("?Signature=s3cret/4?5*"):
            return self.send_error(403)
        return super().send_head()

    def log_message(self, *_):
        pass


def test_an_address_with_a_signature_is_read_and_the_signature_never_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(Signed, "broken", False)
    (tmp_path / "a.jsonl").write_text('{"t": 1}\n{"t": 2}\n')
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Signed, directory=tmp_path))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/a.jsonl"
    try:
        source = Source("s", f"{address}?Signature=s3cret/4?5*", patience=0)
        with open_reader(source) as fresh, open_reader(source) as reader:
            assert sorted(item.sample["t"] for item in reader.read(passes=1)) == [1, 2]
            assert "s3cret" not in reader.fingerprint
            assert [file.name for file in list_files(source)] == ["a.jsonl"]
            Signed.broken = True
            with pytest.raises(SampleError) as raised:
                list(fresh.read(passes=1))
        with pytest.raises(EvenstepError) as opened:
            open_reader(source)
        for error in (raised.value, opened.value):
            assert "a.jsonl" in str(error)
            assert "s3cret" not in str(error)
    finally:
        server.shutdown()
        server.server_close()
