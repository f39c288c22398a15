"""The CUDA toolkit and NCCL of this host, for --config=cuda only.

Without a toolkit the repository is still there, empty, so that a CPU build
needs nothing of CUDA.
"""

_BUILD = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "cudart",
    defines = [],
    copts = [],
    includes = ["include"],
    hdrs = glob(["include/**/*.h", "include/**/*.hpp"], allow_empty = True),
    linkopts = ["-L{lib}", "-lcudart"],
)

cc_library(
    name = "nccl",
    deps = [":cudart"],
    linkopts = ["-lnccl"],
)
"""

def _cuda_repository_impl(ctx):
    home = ctx.os.environ.get("CUDA_HOME", "/usr/local/cuda")
    if ctx.path(home + "/include").exists:
        ctx.symlink(home + "/include", "include")
    ctx.file("nvcc_path.bzl", 'NVCC = "%s/bin/nvcc"\n' % home)
    ctx.file("BUILD.bazel", _BUILD.format(lib = home + "/lib64"))

cuda_repository = repository_rule(
    implementation = _cuda_repository_impl,
    environ = ["CUDA_HOME"],
    local = True,
)
