"""For target_compatible_with of what is built with --config=cuda alone."""

GPU_ONLY = select({
    "//:cuda": [],
    "//conditions:default": ["//third_party/cuda:needs_config_cuda"],
})
