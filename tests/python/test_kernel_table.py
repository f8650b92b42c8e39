"""The gates on compiled kernels: no spills where sizes are tuned, no serialised wgmma."""

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

import linattn
from linattn._library import library_path

ROOT = Path(__file__).resolve().parents[2]


def load_tool():
    spec = importlib.util.spec_from_file_location("kernel_table", ROOT / "tools/kernel_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


table = load_tool()
DUMP = """
arch = sm_90
 Function _ZN7linattn4cuda26recurrent_forward_portableILi27ELi1EEEvNS0_12DecodeParamsE:
  REG:120 STACK:0 SHARED:2560 LOCAL:0 CONSTANT[0]:1104
 Function _ZN7linattn4cuda19chunk_scan_portableILNS_4TypeE2ELi256ELb0ELb1ELi2EEEvNS0_11ChunkParamsE:
  REG:255 STACK:40 SHARED:1024 LOCAL:0 CONSTANT[0]:1968
 Function _ZN7linattn4cuda4sm9011other_sm100ILi3ELb1EEEvNS0_11ChunkParamsE:
  REG:255 STACK:8 SHARED:0 LOCAL:0 CONSTANT[0]:1968
"""


def test_rows_of_a_dump():
    rows = {row["kernel"]: row for row in table.parse(DUMP)}
    assert rows["recurrent_forward_portable"]["instance"] == "VK bf16 delta channel shape=1"
    assert rows["chunk_scan_portable"]["instance"] == "bf16 K=256 no channel delta parts=2"
    assert rows["other_sm100"]["instance"] == "3 1"
    assert [row["registers"] for row in rows.values()] == [255, 255, 120]
    spilled = {row["kernel"] for row in table.spills(list(rows.values()))}
    assert spilled == {"chunk_scan_portable", "other_sm100"}


def test_no_kernel_of_this_build_spills():
    if not any(lists["cuda"] for lists in linattn.implementations(device="cuda").values()):
        pytest.skip("this build has no CUDA kernels")
    if table.cuobjdump() is None:
        pytest.skip("cuobjdump is not installed")
    rows = table.kernels(str(library_path()))
    assert {"recurrent_forward_portable", "chunk_scan_portable"} <= {row["kernel"] for row in rows}
    assert table.spills(rows) == []


# The accumulator is touched between two wgmma of a branch that is not uniform.
SERIALISED = """
__device__ void multiply(float (&d)[4], unsigned long long a, unsigned long long b) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0;"
               "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, p, 1, 1,"
               " 0, 0; }" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(a), "l"(b));
}
__global__ void kernel(float* out, unsigned long long a, unsigned long long b, int n) {
  float d[4] = {};
  for (int i = 0; i < n; ++i) {
    if (threadIdx.x > i) {
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
      multiply(d, a, b);
      d[0] *= 2.0f;
      multiply(d, a, b);
      asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    }
    d[1] += d[0];
  }
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = d[i];
}
"""


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
@pytest.mark.parametrize("source, passes", [(SERIALISED, False), ("__global__ void k() {}", True)])
def test_serialised_wgmma_fails_the_build(source, passes, tmp_path):
    file = tmp_path / "kernel.cu"
    file.write_text(source)
    compile_it = ["nvcc", "-gencode", "arch=compute_90a,code=sm_90a", "-c", file, "-o", "kernel.o"]
    gate = ["sh", ROOT / "cmake/ptxas_gate.sh"]
    assert subprocess.run(compile_it, cwd=tmp_path, check=True, capture_output=True)
    done = subprocess.run([*gate, *compile_it], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode == 0) == passes, done.stderr
    assert ("not shipped" in done.stderr) != passes
