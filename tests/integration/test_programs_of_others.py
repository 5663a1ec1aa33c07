"""A small `.pte` or `.ptd` that would expand to terabytes is refused before all of it is read."""

from __future__ import annotations

from pathlib import Path

import flatbuffers
import pytest
from executorch.exir import schema
from executorch.exir._serialize import _program
from executorch.exir._serialize._named_data_store import NamedDataStoreOutput
from executorch.exir._serialize._program import PTEFile
from executorch.exir._serialize.data_serializer import DataEntry
from executorch.exir._serialize.generated.executorch_flatbuffer import (
    Chain,
    ExecutionPlan,
    Instruction,
    Operator,
    Program,
)

from etbuild.errors import InputError
from etbuild.files import program_file

COUNT = 2000
SEEDS = Path(__file__).parents[1] / "fuzz/seeds"


def vector(builder: flatbuffers.Builder, entry: int) -> int:
    """A vector whose entries are all the same part of the file."""
    builder.StartVector(4, COUNT, 4)
    for _ in range(COUNT):
        builder.PrependUOffsetTRelative(entry)
    return int(builder.EndVector())


def program(builder: flatbuffers.Builder, plan: int) -> bytes:
    plans = vector(builder, plan)
    Program.ProgramStart(builder)
    Program.ProgramAddExecutionPlan(builder, plans)
    builder.Finish(Program.ProgramEnd(builder), file_identifier=b"ET12")
    return bytes(builder.Output())


def nested() -> bytes:
    """2,000 plans, each of 2,000 chains, each of 2,000 instructions."""
    builder = flatbuffers.Builder()
    Instruction.InstructionStart(builder)
    instructions = vector(builder, Instruction.InstructionEnd(builder))
    Chain.ChainStart(builder)
    Chain.ChainAddInstructions(builder, instructions)
    chains = vector(builder, Chain.ChainEnd(builder))
    ExecutionPlan.ExecutionPlanStart(builder)
    ExecutionPlan.ExecutionPlanAddChains(builder, chains)
    return program(builder, ExecutionPlan.ExecutionPlanEnd(builder))


def long_names() -> bytes:
    """2,000 plans, each of 2,000 operators with a name of 100 kB."""
    builder = flatbuffers.Builder()
    name = builder.CreateString("n" * 100_000)
    Operator.OperatorStart(builder)
    Operator.OperatorAddName(builder, name)
    operators = vector(builder, Operator.OperatorEnd(builder))
    ExecutionPlan.ExecutionPlanStart(builder)
    ExecutionPlan.ExecutionPlanAddOperators(builder, operators)
    return program(builder, ExecutionPlan.ExecutionPlanEnd(builder))


def named_data() -> bytes:
    """Named data of 2,000 blobs that share one key of 100 kB, in an otherwise valid file."""
    builder = flatbuffers.Builder()
    key = builder.CreateString("k" * 100_000)
    builder.StartObject(3)
    builder.PrependUOffsetTRelativeSlot(0, key, 0)
    named = vector(builder, builder.EndObject())
    builder.StartObject(2)
    builder.PrependUint64Slot(1, 7, 0)
    segments = vector(builder, builder.EndObject())
    builder.StartObject(3)
    builder.PrependUOffsetTRelativeSlot(1, segments, 0)
    builder.PrependUOffsetTRelativeSlot(2, named, 0)
    builder.Finish(builder.EndObject(), file_identifier=b"FT01")
    made = bytes(builder.Output())
    header = (SEEDS / "ptd-net").read_bytes()[8:48]
    root = int.from_bytes(made[:4], "little") + len(header)
    size = (8 + len(header) + len(made) - 8).to_bytes(8, "little")
    sizes = header[:8] + (0).to_bytes(8, "little") + size + (0).to_bytes(8, "little") * 2
    return root.to_bytes(4, "little") + made[4:8] + sizes + made[8:]


@pytest.mark.parametrize("make", [nested, long_names, named_data])
def test_a_small_file_that_expands_to_terabytes_is_refused(tmp_path: Path, make: object) -> None:
    assert callable(make)
    path = tmp_path / "bomb"
    path.write_bytes(make())
    with pytest.raises(InputError, match="stands for much more than its bytes"):
        program_file.describe(path)


def test_named_data_is_read_as_executorch_reads_it() -> None:
    path = SEEDS / "ptd-net"
    content = program_file.named_data_content(path.read_bytes())
    expected = {named.key: content.segments[named.segment_index].size for named in content.named_data}
    described = program_file.describe(path)
    assert described["kind"] == "named_data"
    assert described["named_data"] == program_file.named_data_facts(path) == expected
    assert expected


@pytest.mark.parametrize(
    ("segments", "offsets"),
    [
        ([schema.DataSegment(0, 1 << 20)] * COUNT, []),
        ([schema.DataSegment(0, 1 << 20)], [0, 1 << 20] * COUNT),
    ],
)
def test_segments_and_tensors_that_overlap_are_not_copied(
    segments: list[schema.DataSegment], offsets: list[int]
) -> None:
    """Each copy would contain the whole file."""
    parts = schema.SubsegmentOffsets(0, offsets)
    overlapping = schema.Program(0, [], [], [], segments, parts)
    with pytest.raises(ValueError, match="its segments overlap"):
        program_file._restore_segments(overlapping, memoryview(bytes(1 << 20)))


def test_a_program_is_read_as_executorch_reads_it(tmp_path: Path) -> None:
    """Only blobs of named data are not copied."""
    content = _program.deserialize_pte_binary((SEEDS / "pte-net").read_bytes()).program
    content.constant_buffer = [schema.Buffer(b""), schema.Buffer(b"constant" * 4)]
    mutable = [schema.Buffer(b""), schema.Buffer(b"mutable" * 4)]
    entries = {"first": DataEntry(1, 16, None), "same": DataEntry(1, 16, None), "second": DataEntry(0, 16, None)}
    named = NamedDataStoreOutput([b"second" * 10, b"first" * 10], entries, {})
    written = _program.serialize_pte_binary(PTEFile(content, mutable, named), extract_delegate_segments=True)
    path = tmp_path / "net.pte"
    path.write_bytes(bytes(written))
    expected = _program.deserialize_pte_binary(path.read_bytes())
    read = program_file.read_program_file(path)
    assert (read.program, read.mutable_data) == (expected.program, expected.mutable_data)
    assert blobs(read) == blobs(expected) == {"first": b"first" * 10, "same": b"first" * 10, "second": b"second" * 10}


def blobs(file: PTEFile) -> dict[str, bytes]:
    named = file.named_data
    return {key: bytes(named.buffers[entry.buffer_index]) for key, entry in named.pte_data.items()} if named else {}
