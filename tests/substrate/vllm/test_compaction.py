"""Tables without their null blocks, by hand; attention over them is attention over less."""

from __future__ import annotations

import pytest
import torch

from kri_core.substrate.vllm.compaction import Compacted

SIZE = 4


def compacted(table, seq_lens, query_lens, room=None, per_block=1):
    table = torch.tensor(table, dtype=torch.int32)
    room = room or Compacted.for_requests(*table.shape, torch.device("cpu"))
    lengths = [torch.tensor(of, dtype=torch.int32) for of in (seq_lens, query_lens)]
    return room.fill(table, *lengths, SIZE, per_block)


def test_null_rows_leave_the_table_and_their_tokens_the_length():
    """18 tokens in five rows of four, of which two are absent: 10 tokens in three rows."""
    rows, lengths = compacted([[7, 0, 3, 0, 9, 0]], [18], [1])

    assert rows[0, :3].tolist() == [7, 3, 9]
    assert lengths.tolist() == [10]


def test_a_table_without_null_rows_stays_as_it_is():
    rows, lengths = compacted([[7, 5, 3, 2], [4, 6, 0, 0]], [14, 7], [1, 1])

    assert rows[0].tolist() == [7, 5, 3, 2]
    assert rows[1, :2].tolist() == [4, 6]
    assert lengths.tolist() == [14, 7]


def test_null_rows_behind_the_sequence_are_padding_and_count_nothing():
    """Five tokens use two rows; what stands behind them in the table is not looked at."""
    _, lengths = compacted([[7, 3, 0, 5]], [5], [1])

    assert lengths.tolist() == [5]


def test_a_null_block_is_absent_in_all_its_parts():
    """Blocks 3, null and 2 of eight tokens in a kernel's halves of four: 22 tokens, 8 absent."""
    rows, lengths = compacted([[6, 7, 0, 1, 4, 5]], [22], [1], per_block=2)

    assert rows[0, :4].tolist() == [6, 7, 4, 5]
    assert lengths.tolist() == [14]


def test_a_length_never_falls_below_its_query():
    """A padding request of a CUDA graph has a table of zeros."""
    _, lengths = compacted([[0, 0]], [5], [2])

    assert lengths.tolist() == [2]


def test_tables_keep_their_address_from_step_to_step():
    """What a CUDA graph captured is where the next step's table is."""
    room = Compacted.for_requests(2, 3, torch.device("cpu"))

    first = compacted([[1, 0, 2], [3, 0, 0]], [9, 2], [1, 1], room)
    second = compacted([[4, 0, 5], [0, 6, 0]], [12, 8], [1, 1], room)

    assert [of.data_ptr() for of in first] == [of.data_ptr() for of in second]
    assert second[0][:, :2].tolist() == [[4, 5], [6, 0]]
    assert second[0].is_contiguous()


def test_a_builder_that_meets_a_larger_table_needs_another_room():
    room = Compacted.for_requests(2, 3, torch.device("cpu"))

    assert room.holds(torch.zeros(1, 3))
    assert not room.holds(torch.zeros(3, 3))
    assert not room.holds(torch.zeros(2, 4))


@pytest.mark.parametrize("query", [1, 3, 6])
def test_causal_attention_over_the_compacted_rows_is_masked_attention_over_all(query):
    """A kernel's rule, key index ≤ seq_len − query_len + query's, against a hand-made mask."""
    torch.manual_seed(0)
    length, table = 22, [[9, 0, 2, 0, 4, 1]]
    cache = torch.randn(10, SIZE, 8, dtype=torch.float64)  # [block, token, head_dim]
    queries = torch.randn(query, 8, dtype=torch.float64)

    rows, lengths = compacted(table, [length], [query])
    count = int(lengths[0])
    short = cache[rows[0].long()].reshape(-1, 8)[:count]
    seen = torch.arange(count) <= count - query + torch.arange(query)[:, None]
    found = (queries @ short.T).masked_fill(~seen, -torch.inf).softmax(-1) @ short

    whole = cache[torch.tensor(table[0])].reshape(-1, 8)[:length]
    position = torch.arange(length)
    present = torch.tensor(table[0]).repeat_interleave(SIZE)[:length] != 0
    visible = (position <= length - query + torch.arange(query)[:, None]) & present
    wanted = (queries @ whole.T).masked_fill(~visible, -torch.inf).softmax(-1) @ whole

    torch.testing.assert_close(found, wanted)
