"""C++ from .proto files with Debian's protoc and grpc_cpp_plugin."""

def cc_grpc_library(name, srcs, deps = [], grpc = True, **kwargs):
    """A cc_library of the messages and, where grpc is set, the services.

    Args:
      name: the library's name.
      srcs: .proto files below //proto; imported as <path below proto/>.
      deps: other cc_grpc_library targets whose .proto files are imported.
      grpc: whether to generate services too.
      **kwargs: passed to cc_library.
    """
    bases = [src[:-len(".proto")] for src in srcs]
    hdrs = [base + ".pb.h" for base in bases]
    ccs = [base + ".pb.cc" for base in bases]
    flags = "--cpp_out=$(RULEDIR)"
    if grpc:
        hdrs += [base + ".grpc.pb.h" for base in bases]
        ccs += [base + ".grpc.pb.cc" for base in bases]
        flags += " --plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin --grpc_out=$(RULEDIR)"
    native.filegroup(
        name = name + "_protos",
        srcs = srcs + [dep + "_protos" for dep in deps],
        visibility = kwargs.get("visibility"),
    )
    native.genrule(
        name = name + "_gen",
        srcs = [name + "_protos"],
        outs = hdrs + ccs,
        cmd = "/usr/bin/protoc -Iproto %s %s" % (
            flags,
            " ".join(["proto/" + src for src in srcs]),
        ),
    )
    native.cc_library(
        name = name,
        srcs = ccs,
        hdrs = hdrs,
        includes = ["."],
        # Generated code is not ours to warn about.
        copts = ["-w"],
        deps = deps + [
            "//third_party:grpc++" if grpc else "//third_party:protobuf",
        ],
        **kwargs
    )
