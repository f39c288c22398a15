"""clang-tidy over our own C++ as build actions, so that results are cached.

    ./dev bazel build //... \
        --aspects=//third_party/clang_tidy:aspect.bzl%clang_tidy_aspect \
        --output_groups=clang_tidy
"""

def _flags(contexts):
    flags = ["-std=c++20", "-iquote", "."]
    for context in contexts:
        flags += ["-D" + d for d in context.defines.to_list()]
        for path in context.quote_includes.to_list():
            flags += ["-iquote", path]
        for path in (context.includes.to_list() +
                     context.system_includes.to_list()):
            # Not ours, so not to be warned about.
            flags += ["-isystem", path]
    return flags + ["-Wall", "-Wextra", "-Wthread-safety", "-Wno-unknown-warning-option"]

def _impl(target, ctx):
    if ctx.rule.kind not in ["cc_library", "cc_binary", "cc_test"]:
        return []
    if ctx.label.workspace_root or ctx.label.package.startswith("third_party"):
        return []
    if getattr(ctx.rule.attr, "target_compatible_with", []):
        # Not for this build: what it includes may not be here.
        return []
    if ctx.rule.kind == "cc_test" or getattr(ctx.rule.attr, "testonly", False):
        # clang-tidy 14 walks every header anew for each source: gtest's would
        # take longer than all that ships, and what a test does shows when it
        # runs. The compiler's warnings are errors there too.
        return []
    files = [
        f
        for attr in ["srcs", "hdrs"]
        for t in getattr(ctx.rule.attr, attr, [])
        for f in t.files.to_list()
    ]
    contexts = [
        dep[CcInfo].compilation_context
        for dep in getattr(ctx.rule.attr, "deps", [])
        if CcInfo in dep
    ]
    flags = _flags(contexts)
    reports = []
    for source in [f for f in files if f.is_source and f.extension == "cc"]:
        report = ctx.actions.declare_file(
            "%s.%s.clang_tidy" % (ctx.label.name, source.basename),
        )
        ctx.actions.run(
            executable = ctx.executable._runner,
            arguments = [report.path, ctx.file._config.path, source.path] + flags,
            inputs = depset(
                files + [ctx.file._config],
                transitive = [context.headers for context in contexts],
            ),
            outputs = [report],
            mnemonic = "ClangTidy",
            progress_message = "Checking " + source.short_path,
        )
        reports.append(report)
    return [OutputGroupInfo(clang_tidy = depset(reports))]

clang_tidy_aspect = aspect(
    implementation = _impl,
    attrs = {
        "_config": attr.label(
            default = "//:.clang-tidy",
            allow_single_file = True,
        ),
        "_runner": attr.label(
            default = "//third_party/clang_tidy:run_clang_tidy.sh",
            allow_single_file = True,
            executable = True,
            cfg = "host",
        ),
    },
)
