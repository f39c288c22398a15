"""CUDA sources in a cc_library, compiled by the nvcc of @cuda.

A quick build makes code for one GPU generation; with
--define=cuda_architectures=release, for every one that is supported.
"""

load("@cuda//:nvcc_path.bzl", "NVCC")
load("//third_party/cuda:gpu_only.bzl", "GPU_ONLY")

_QUICK = ["90a"]
_RELEASE = ["80", "86", "89", "90a", "100", "120"]

def _nvcc_object_impl(ctx):
    source = ctx.file.src
    output = ctx.actions.declare_file(ctx.label.name + ".o")
    contexts = [dep[CcInfo].compilation_context for dep in ctx.attr.deps]
    arguments = ctx.actions.args()
    arguments.add_all(["-c", source, "-o", output])
    arguments.add_all(ctx.attr.flags)
    for architecture in ctx.attr.architectures:
        arguments.add("-gencode=arch=compute_{0},code=sm_{0}".format(architecture))
    for context in contexts:
        # System headers of @cuda are nvcc's own: it finds them alone.
        arguments.add_all(context.quote_includes, before_each = "-I")
    ctx.actions.run(
        executable = NVCC,
        arguments = [arguments],
        inputs = depset(
            [source] + ctx.files.hdrs,
            transitive = [context.headers for context in contexts],
        ),
        outputs = [output],
        mnemonic = "CudaCompile",
        progress_message = "Compiling %s" % source.short_path,
        use_default_shell_env = True,
    )
    return [DefaultInfo(files = depset([output]))]

_nvcc_object = rule(
    implementation = _nvcc_object_impl,
    attrs = {
        "src": attr.label(allow_single_file = [".cu"], mandatory = True),
        "hdrs": attr.label_list(allow_files = [".h", ".cuh"]),
        "deps": attr.label_list(providers = [CcInfo]),
        "architectures": attr.string_list(),
        "flags": attr.string_list(),
    },
)

def cuda_library(name, srcs, hdrs, device_hdrs = [], deps = [], **kwargs):
    """A cc_library of .cu files, for --config=cuda alone.

    Args:
      name: its name.
      srcs: .cu files.
      hdrs: headers for everybody who depends on it.
      device_hdrs: .cuh headers for its own sources.
      deps: cc_library targets.
      **kwargs: as in cc_library.
    """
    objects = []
    for src in srcs:
        object_name = name + "_" + src.replace(".cu", "")
        objects.append(object_name)
        _nvcc_object(
            name = object_name,
            src = src,
            hdrs = hdrs + device_hdrs,
            architectures = select({
                "//third_party/cuda:release_architectures": _RELEASE,
                "//conditions:default": _QUICK,
            }),
            flags = [
                "-std=c++20",
                "-O3",
                "-lineinfo",
                "-Werror",
                "all-warnings",
                "-Xcompiler",
                "-fPIC,-Wall,-Wextra,-Werror",
            ],
            target_compatible_with = GPU_ONLY,
            deps = deps,
        )
    native.cc_library(
        name = name,
        srcs = objects,
        hdrs = hdrs,
        target_compatible_with = GPU_ONLY,
        deps = deps,
        **kwargs
    )
