"""LibTorch, as found in the torch wheel that `./dev setup` installs.

The wheel's libraries find each other by RPATH relative to where they really
are, so they are linked by their real path and never through a symlink tree.
"""

_BUILD = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "headers",
    hdrs = glob(["include/**/*.h", "include/**/*.hpp"]),
    includes = ["include", "include/torch/csrc/api/include"],
)

cc_library(
    name = "torch_cpu",
    deps = [":headers"],
    linkopts = [
        # Debian's libgloo must come before torch, which exports newer gloo
        # symbols of its own. A dependency on it would come after.
        "-lgloo",
        "-L{lib}",
        "-Wl,-rpath,{lib}",
        # --no-as-needed: kernels register themselves when the library loads.
        "-Wl,--push-state,--no-as-needed", "-ltorch_cpu", "-Wl,--pop-state",
        "-lc10",
    ],
)

cc_library(
    name = "torch_cuda",
    deps = [":torch_cpu"],
    linkopts = [
        "-L{lib}",
        "-Wl,--push-state,--no-as-needed", "-ltorch", "-ltorch_cuda",
        "-Wl,--pop-state",
        "-lc10_cuda",
    ],
)
"""

def _torch_repository_impl(ctx):
    home = ctx.os.environ.get("ITHACA_TORCH", "")
    if not home or not ctx.path(home + "/include").exists:
        fail("ITHACA_TORCH must name a LibTorch folder (include/ and lib/); " +
             "`./dev setup` installs one and `./dev build` names it. Got '%s'" % home)

    # Only LibTorch's own folders: the wheel also carries protobuf and fmt
    # headers, newer than the libraries that everything else here links.
    for folder in ["ATen", "c10", "torch", "caffe2"]:
        ctx.symlink(home + "/include/" + folder, "include/" + folder)
    ctx.file("BUILD.bazel", _BUILD.format(lib = home + "/lib"))

torch_repository = repository_rule(
    implementation = _torch_repository_impl,
    environ = ["ITHACA_TORCH"],
    local = True,
)
