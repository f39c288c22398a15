"""The CUDA toolkit of this host and the NCCL of its torch environment.

NCCL is the one that libtorch_cuda.so loads: two in a process would not know of
each other's work. Without a toolkit the repository is still there, empty, so
that a CPU build needs nothing of CUDA.
"""

_BUILD = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "cudart",
    hdrs = glob(
        ["include/*.h", "include/*.hpp", "include/crt/**"],
        allow_empty = True,
    ),
    includes = ["include"],
    linkopts = ["-L{cuda_lib}", "-Wl,-rpath,{cuda_lib}", "-lcudart"],
)

cc_library(
    name = "nccl",
    hdrs = glob(["nccl/include/*.h"], allow_empty = True),
    includes = ["nccl/include"],
    linkopts = ["-L{nccl_lib}", "-Wl,-rpath,{nccl_lib}", "-l:libnccl.so.2"],
    deps = [":cudart"],
)
"""

def _cuda_repository_impl(ctx):
    cuda = ctx.os.environ.get("CUDA_HOME", "/usr/local/cuda")
    if ctx.path(cuda + "/include").exists:
        ctx.symlink(cuda + "/include", "include")

    # A torch wheel's neighbour, or a folder where LibTorch came without one.
    nccl = ctx.os.environ.get("ITHACA_TORCH", "") + "/../nvidia/nccl"
    if not ctx.path(nccl + "/include/nccl.h").exists:
        nccl = ctx.os.environ.get("NCCL_HOME", "/usr")
    if ctx.path(nccl + "/include/nccl.h").exists:
        ctx.symlink(nccl + "/include/nccl.h", "nccl/include/nccl.h")

    ctx.file("nvcc_path.bzl", 'NVCC = "%s/bin/nvcc"\n' % cuda)
    ctx.file("BUILD.bazel", _BUILD.format(
        cuda_lib = cuda + "/lib64",
        nccl_lib = str(ctx.path(nccl + "/lib").realpath),
    ))

cuda_repository = repository_rule(
    implementation = _cuda_repository_impl,
    environ = ["CUDA_HOME", "ITHACA_TORCH", "NCCL_HOME"],
    local = True,
)
